"""A sqlite:// store of one's own; see `sqlite.py`."""

from __future__ import annotations

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
