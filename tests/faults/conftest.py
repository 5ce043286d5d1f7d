"""A sqlite:// store of one's own; see `sqlite.py`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite://{path}"


@pytest.fixture
def locks(url: str) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url) as locks:
        yield locks


@pytest.fixture(autouse=True)
def logging_is_unlocked() -> Iterator[None]:
    """A real Ctrl-C may strike inside Python's own logging, and leave its lock taken: then every
    thread that logs in a later test would wait for ever."""
    yield
    handlers = [ref() for ref in logging._handlerList]  # type: ignore[attr-defined]
    for lock in (logging._lock, *(handler.lock for handler in handlers if handler)):  # type: ignore[attr-defined]
        while lock is not None and lock._is_owned():
            lock.release()
