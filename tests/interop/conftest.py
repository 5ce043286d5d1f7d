"""A Redis, seen by somebody else's client and by ours."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.servers import RedisServer

_numbers = itertools.count()


@pytest.fixture
def theirs(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port, decode_responses=True) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A key that no other test uses."""
    return f"interop-{next(_numbers)}"


@pytest.fixture
def url(redis_server: RedisServer) -> Callable[[str], str]:
    """The URL of a dialect. Heartbeats are longer than anything here may take."""
    return lambda dialect: f"{redis_server.url}?dialect={dialect}&window=60&heartbeat=30"
