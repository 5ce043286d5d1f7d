"""A test that fails says how to run it again as it was run: its interpreter, seed and draw."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

__all__ = ["command"]

DRAW = ("HOLDFAST_SPARINGLY", "HOLDFAST_EVERYTHING")
"""What decides beside the seed (`tests/rotation.py`)."""


def command(item: pytest.Item) -> str:
    """In a shell, from the root of the project."""
    python, root = Path(sys.executable), item.config.rootpath
    words = [f"{name}={os.environ[name]}" for name in DRAW if os.environ.get(name)]
    words += [str(python.relative_to(root) if python.is_relative_to(root) else python)]
    words += ["-m", "pytest"]
    if (seed := item.config.getoption("randomly_seed", None)) is not None:  # else -p no:randomly
        words += [f"--randomly-seed={seed}"]
    return shlex.join([*words, item.nodeid])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("run it again as it was", command(item)))
    return report
