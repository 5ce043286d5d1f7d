"""Two clients of a store of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import holdfast

numbers = itertools.count()


@pytest.fixture
def url() -> str:
    return f"memory://toolbox{next(numbers)}"


@pytest.fixture
def locks(url: str) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url) as locks:
        yield locks


@pytest.fixture
def other(url: str) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url) as locks:
        yield locks
