"""What a failing test says about itself is enough to see it fail again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAILS = """
import random

def test_of_chance():
    assert random.random() == "drawn"
"""


def test_a_failure_says_how_to_run_it_again(tmp_path: Path) -> None:
    (tmp_path / "test_chance.py").write_text(FAILS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p tests.replay\n")
    first = ran(tmp_path, sys.executable, "-m", "pytest", "-n", "1")
    again = first.split("run it again as it was")[1].splitlines()[1]
    assert drawn(ran(tmp_path, "sh", "-c", again)) == drawn(first)


def ran(folder: Path, *words: str) -> str:
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def drawn(said: str) -> str:
    """What chance gave."""
    return next(line for line in said.splitlines() if line.startswith("E  "))
