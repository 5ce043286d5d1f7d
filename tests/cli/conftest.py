"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from tests.cli.store import Store


@pytest.fixture
def store() -> Iterator[Store]:
    """A store that other processes reach."""
    server = Store()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def locks(store: Store) -> Iterator[holdfast.Locks]:
    """A client of that store, in this process."""
    with holdfast.connect(store.url) as client:
        yield client
