"""The tutorial's programs, one after the other, against a real Redis."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import RedisServer

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorial" / "redis-in-ten-minutes.md"
URL = "redis://localhost:6379/0"


@pytest.mark.servers
def test_the_redis_tutorial_works_as_it_stands(tmp_path: Path) -> None:
    text = PAGE.read_text()
    programs = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(programs) >= 4
    with RedisServer() as server:
        for program in programs:
            assert URL in program
            ran = subprocess.run(
                [sys.executable, "-W", "error", "-c", program.replace(URL, server.url)],
                capture_output=True, text=True, check=False, cwd=tmp_path, timeout=100,
                stdin=subprocess.DEVNULL, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
            )  # fmt: skip
            assert ran.returncode == 0, f"{program}\n{ran.stdout}{ran.stderr}"
            assert "Exception ignored" not in ran.stderr


def test_every_program_of_the_tutorial_is_excused_or_run() -> None:
    """Whoever adds one that needs no server lets tests/test_docs.py run it."""
    text = PAGE.read_text()
    assert text.count("```python") == text.count("and tests/test_tutorial.py runs it with")
