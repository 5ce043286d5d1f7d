"""The options of a lock.

Nothing here waits, talks or reads a clock. What a user sees of a refusal, through `connect` and
`lock`, is in `test_bad_input.py`; here is the rule behind it, with both sides of each limit.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.core.options import (
    MAX_TTL,
    LockOptions,
    Want,
    check_known,
    checked_timeout,
    want,
)
from holdfast.errors import Misconfigured, Unsupported
from holdfast.types import Mode


def wish(mode: Mode = Mode.EXCLUSIVE, permits: int = 1, limit: int = 1, **options: Any) -> Want:
    given: LockOptions = options  # type: ignore[assignment]
    check_known(given, LockOptions)
    return want("n", mode, given, MemoryBackend.capabilities, permits=permits, limit=limit)


def test_the_defaults() -> None:
    made = wish()
    assert (made.ttl, made.renew_every, made.timeout) == (30.0, 10.0, -1.0)
    assert (made.fair, made.reentrant, made.on_lost) == (True, False, None)


@pytest.mark.req("R20", "R22")
@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"ttl": 3}, "ttl", 3.0),
        ({"ttl": 3}, "renew_every", 1.0),
        ({"ttl": MAX_TTL}, "ttl", MAX_TTL),
        ({"renew": False}, "renew_every", None),
        ({"renew": 29.9}, "renew_every", 29.9),
        ({"timeout": 0}, "timeout", 0.0),
        ({"timeout": -1}, "timeout", -1.0),
        ({"timeout": math.inf}, "timeout", -1.0),
        ({"timeout": 10**400}, "timeout", -1.0),
    ],
)
def test_good_options(options: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(wish(**options), field) == value


@pytest.mark.parametrize(
    ("options", "because"),
    [
        *(({"ttl": ttl}, "ttl=.*positive") for ttl in (0, -1, math.nan, math.inf, -math.inf)),
        ({"ttl": 10**400}, "ttl=.*positive"),
        ({"ttl": MAX_TTL + 1}, "ten years"),
        ({"ttl": "30"}, "not str"),
        ({"ttl": True}, "not bool"),
        ({"ttl": None}, "not NoneType"),
        ({"renew": 30.0}, "not shorter than ttl=30"),
        ({"renew": 0}, "renew=0 must be"),
        ({"renew": math.nan}, "renew=nan"),
        ({"timeout": math.nan}, "nan"),
        ({"timeout": -2}, "say -1"),
        ({"timeout": "1"}, "not str"),
        ({"fair": 1}, "True or False"),
        ({"reentrant": "yes"}, "True or False"),
        ({"on_lost": 7}, "callable"),
        ({"metadata": {"pid": "1"}}, "cannot set 'pid'"),
        ({"tttl": 1}, "did you mean 'ttl'"),
        ({"zzzzzz": 1}, "known are: ttl"),
    ],
)
def test_bad_options(options: dict[str, Any], because: str) -> None:
    with pytest.raises(Misconfigured, match=because):
        wish(**options)


@pytest.mark.parametrize(
    ("permits", "limit", "because"),
    [
        (0, 1, "take=0"),
        (1, 0, "permits=0"),
        (-1, 3, "take=-1"),
        (True, 3, "take=True"),
        (1.0, 3, "take=1.0"),
        (1, None, "permits=None"),
        (4, 3, "never be granted"),
    ],
)
def test_bad_permits(permits: Any, limit: Any, because: str) -> None:
    with pytest.raises(Misconfigured, match=because):
        wish(Mode.PERMITS, permits, limit)


def test_a_semaphore_is_not_reentrant() -> None:
    with pytest.raises(Misconfigured, match="second permit"):
        wish(Mode.PERMITS, 1, 2, reentrant=True)


def test_a_mode_the_backend_has_not() -> None:
    none = dataclasses.replace(MemoryBackend.capabilities, modes=frozenset({Mode.EXCLUSIVE}))
    with pytest.raises(Unsupported, match="it has: exclusive"):
        want("n", Mode.SHARED, {}, none)


@pytest.mark.parametrize("timeout", [-1, 0, 0.1, 1e9])
def test_timeouts_at_the_call(timeout: float) -> None:
    assert checked_timeout(timeout) == timeout


def test_each_acquire_makes_a_claim_of_its_own() -> None:
    made = wish(metadata={"job": "x"}, ttl=7)
    parent, child = {"host": "h", "pid": "1"}, {"host": "h", "pid": "2"}
    one, two = made.claim("o1", parent), made.claim("o2", parent)
    assert (one.owner, two.owner) == ("o1", "o2")
    assert one.info == {"host": "h", "pid": "1", "job": "x"}
    assert made.claim("o3", child).info["pid"] == "2"
    assert "o1" not in repr(one)
