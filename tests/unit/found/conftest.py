"""A client of a store of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.found.memory import url

import holdfast


@pytest.fixture
def locks() -> Iterator[holdfast.Locks]:
    with holdfast.connect(url()) as client:
        yield client
