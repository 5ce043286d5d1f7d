"""What the whole suite shares: the test servers' fixtures, and that nothing stays behind.

Seeds are printed by pytest-randomly.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.waiting import until

pytest_plugins = ["tests.servers.fixtures", "tests.replay"]


@pytest.fixture(scope="session", autouse=True)
def no_temporary_folder_is_left() -> Iterator[None]:
    """Whoever makes one in this process removes it. (One that shall go away although the process is
    killed is a `tests.servers.home.Home`.)"""
    made: dict[str, str] = {}
    make = tempfile.mkdtemp

    def noted(*args: Any, **options: Any) -> str:
        path: str = make(*args, **options)
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename == tempfile.__file__:
            frame = frame.f_back
        made[path] = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        return path

    tempfile.mkdtemp = noted  # type: ignore[assignment]
    try:
        yield
    finally:
        tempfile.mkdtemp = make
    left = [f"{path}, made at {where}" for path, where in made.items() if os.path.isdir(path)]
    assert not left, "temporary folders were left behind:\n" + "\n".join(left)


@pytest.fixture(autouse=True)
def nobody_is_left_in_line() -> Iterator[None]:
    """Who stands in line for any of several stripes has a thread, which ends with the wait."""
    yield
    until(
        lambda: not [one for one in threading.enumerate() if one.name == "holdfast-stripe"],
        "nobody stands in line any more",
    )
