"""The options of a lock: their types, their defaults, and what is wrong with a bad one.

Contract: everything the user can say about a lock is checked here, once, when the lock object is
made; `Want` is the checked result, from which every acquire makes its claim.
"""

from __future__ import annotations

import difflib
import inspect
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from holdfast.core.names import checked_metadata, checked_name
from holdfast.core.presence import KEY
from holdfast.core.stores import ALL_KINDS
from holdfast.errors import LeaseLost, Misconfigured, Unsupported
from holdfast.types import Capabilities, Claim, Mode

__all__ = [
    "MAX_TTL", "LockOptions", "Want", "awaits", "check_known", "checked_callback",
    "checked_timeout", "new_owner", "seconds", "want",
]  # fmt: skip

_unguessable = secrets.SystemRandom().randbytes

RESERVED = ("host", "pid", "label", KEY)
"""What the client itself says about a claim; metadata cannot pretend to be it."""

MAX_TTL = 10 * 366 * 86400.0
"""Ten years: beyond it a store's arithmetic overflows before anybody wants the lock."""

MAX_PERMITS = 2**31 - 1
"""As many as every store can count: a table's column holds no more."""


KINDS = {
    Mode.EXCLUSIVE: "exclusive locks",
    Mode.SHARED: "shared (read) locks",
    Mode.PERMITS: "semaphores",
}


class LockOptions(TypedDict, total=False):
    """What `lock`, `rwlock` and `semaphore` accept, sync and async."""

    ttl: float
    """Seconds after which the store frees the lock if nobody renews it. Default 30."""
    renew: bool | float
    """True (default): renewed every third of the ttl while held. A number: renewed so often.
    False: a fixed lease that ends after its ttl."""
    timeout: float
    """Seconds to wait for the lock; -1 (default) waits for ever, 0 does not wait."""
    fair: bool
    """True (default): in order of request. False: whoever comes first may overtake."""
    reentrant: bool
    """False (default). True: the same thread or task may take it again; counted."""
    metadata: Mapping[str, str]
    """Shown to operators by `inspect` and `holdfast ls`; at most 4096 bytes. Default none."""
    on_lost: Callable[[LeaseLost], Any]
    """Called once if the lease is lost, apart from your threads and tasks. Default none."""


def check_known(given: Mapping[str, Any], known: type) -> None:
    """A misspelt option is an error that names the nearest, never silently ignored."""
    for option in given:
        if option not in known.__annotations__:
            close = difflib.get_close_matches(option[:80], known.__annotations__, n=1)
            every = ", ".join(known.__annotations__)
            hint = f"did you mean {close[0]!r}?" if close else f"known are: {every}"
            if option == "cancel_on_lost":
                hint = "only asyncio can cancel a body; here, look at lease.held, or use on_lost"
            raise Misconfigured(f"a lock has no option {option!r:.80}; {hint}")


def new_owner() -> str:
    """Fresh for every acquire (law 3), and a secret (law 9)."""
    return _unguessable(16).hex()


@dataclass(slots=True, eq=False)
class Want:
    """A checked wish: what every acquire of one lock object asks for."""

    name: str
    mode: Mode
    ttl: float
    renew_every: float | None
    timeout: float
    fair: bool
    reentrant: bool
    permits: int
    limit: int
    metadata: Mapping[str, str]
    on_lost: Callable[[LeaseLost], Any] | None
    _identity: Mapping[str, str] | None = None
    _info: Mapping[str, str] | None = None

    def claim(self, owner: str, identity: Mapping[str, str]) -> Claim:
        if identity is not self._identity:  # the first time, and after a fork
            self._info = {**identity, **self.metadata} if self.metadata else identity
            self._identity = identity
        info = self._info or identity
        fixed = self.renew_every is None
        return Claim(
            self.name, owner, self.mode, self.ttl, self.fair, self.permits, self.limit, info, fixed
        )


def want(
    name: str,
    mode: Mode,
    options: LockOptions,
    capabilities: Capabilities,
    *,
    permits: int = 1,
    limit: int = 1,
    asynchronous: bool = True,
) -> Want:
    ttl = seconds("ttl", options.get("ttl", 30.0), "a lease must end some day, and not at once")
    if mode not in capabilities.modes:
        able = ", ".join(sorted(mode.value for mode in capabilities.modes))
        reason = f", because {capabilities.why_not}" if capabilities.why_not else ""
        raise Unsupported(
            f"this backend has no {KINDS[mode]} (it has: {able}){reason}; {ALL_KINDS} "
            "have all kinds"
        )
    on_lost = options.get("on_lost")
    if on_lost is not None:
        checked_callback(on_lost, asynchronous)
    reentrant = _switch("reentrant", options.get("reentrant", False))
    if reentrant and mode is Mode.PERMITS:
        raise Misconfigured(
            "a semaphore cannot be reentrant: taking a second permit is what it is for"
        )
    return Want(
        name=checked_name(name),
        mode=mode,
        ttl=ttl,
        renew_every=_renew_every(options.get("renew", True), ttl),
        timeout=checked_timeout(options.get("timeout", -1.0)),
        fair=_switch("fair", options.get("fair", True)),
        reentrant=reentrant,
        permits=_permits("take", permits, limit),
        limit=_permits("permits", limit, None),
        metadata=checked_metadata(options.get("metadata"), RESERVED),
        on_lost=on_lost,
    )


def checked_callback(on_lost: Any, asynchronous: bool) -> None:
    if not callable(on_lost):
        raise Misconfigured(f"on_lost must be callable, not {type(on_lost).__name__}")
    if not asynchronous and awaits(on_lost):
        raise Misconfigured(
            "on_lost is a coroutine function, which nobody would await here: it belongs to a "
            "client from holdfast.aio.connect()"
        )


def awaits(function: Callable[..., Any]) -> bool:
    """Whether it is a coroutine function, or an object that is called like one."""
    called = getattr(type(function), "__call__", None)  # noqa: B004 - asked what it is, not whether
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def checked_timeout(timeout: Any) -> float:
    """-1 for ever, 0 not at all, else seconds."""
    number = math.nan if timeout is None else _number("timeout", timeout)
    if math.isnan(number) or (number < 0 and number != -1):
        given = "None" if timeout is None else f"{number:g}"
        raise Misconfigured(f"timeout={given}: say -1 to wait for ever, 0 not to wait")
    return -1.0 if math.isinf(number) else number


def _renew_every(renew: Any, ttl: float) -> float | None:
    if renew is True:
        return ttl / 3
    if renew is False:
        return None
    every = seconds("renew", renew, "say renew=False for a fixed lease")
    if every >= ttl:
        raise Misconfigured(
            f"renew={every:g} is not shorter than ttl={ttl:g}: the lease would end before its "
            "first renewal. A third of the ttl leaves room for two failures"
        )
    return every


def _permits(what: str, value: Any, limit: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Misconfigured(f"{what}={value!r:.80}: a semaphore counts whole permits, 1 or more")
    if value > MAX_PERMITS:
        raise Misconfigured(f"{what}: at most {MAX_PERMITS}")
    if limit is not None and isinstance(limit, int) and value > limit >= 1:
        raise Misconfigured(f"{what}={value} of {limit} permits could never be granted")
    return value


def seconds(what: str, value: Any, hint: str) -> float:
    number = _number(what, value)
    if not (0 < number < math.inf):
        raise Misconfigured(
            f"{what}={number:g} must be a positive, finite number of seconds: {hint}"
        )
    if number > MAX_TTL:
        raise Misconfigured(
            f"{what}={number:g}: more than ten years, where the arithmetic of stores ends"
        )
    return number


def _switch(what: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise Misconfigured(f"{what} is True or False, not {value!r:.80}")
    return value


def _number(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misconfigured(
            f"{what} is a number of seconds, not {type(value).__name__}: {value!r:.80}"
        )
    try:
        return float(value)
    except OverflowError:
        return math.inf
