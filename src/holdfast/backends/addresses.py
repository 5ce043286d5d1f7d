"""One deadline for several: servers, or the addresses of one, that are tried one after another.

Contract: each has its part of the time that is left, so that one that is silent does not take it
from the others. (The system's resolver cannot be given a time limit when it blocks: it has its
own.)
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from holdfast.backends.quiet import Socket
from holdfast.ports.clock import now

__all__ = ["Found", "Reasons", "connected", "one_by_one", "reason_of", "share"]

ENOUGH = 0.1
"""Seconds in which a try to connect finds out what is wrong. One that has less, since a deadline
was near, only finds that it had no time."""

Found = tuple[Any, ...]
"""One address, as `socket.getaddrinfo` has it."""


def reason_of(error: BaseException) -> str:
    """What the system says of a failure: asyncio has words of its own, and no reason."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
        return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)
    return str(error)


class Reasons:
    """Why servers cannot be reached, as the last try said that had the time to find out."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[Hashable, str] = {}

    def why(self, where: Hashable, reason: str, begun: float, deadline: float) -> str:
        """`reason`, or a better one: of a try that began then and had until the deadline."""
        if deadline - begun >= ENOUGH:
            self._last[where] = reason
        return self._last.get(where, reason)

    def reached(self, where: Hashable) -> None:
        if self._last:
            self._last.pop(where, None)


def share(deadline: float, parts: int) -> float:
    """Until when the first of so many may take, if the others are to have their time, too."""
    return deadline if parts <= 1 else now() + (deadline - now()) / parts


def one_by_one(found: Sequence[Found], deadline: float) -> Iterator[tuple[Found, float]]:
    """Each address, and the seconds it has. TimeoutError: there are none left."""
    for place, address in enumerate(found):
        seconds = share(deadline, len(found) - place) - now()
        if seconds <= 0:
            raise TimeoutError("no time was left to connect")
        yield address, seconds


def connected(found: Sequence[Found], deadline: float) -> Socket:
    """A socket that blocks, connected to the first that lets us. Raises OSError."""
    trouble: OSError = OSError("it has no address")
    for (family, kind, protocol, _, where), seconds in one_by_one(found, deadline):
        sock = Socket(family, kind, protocol)
        try:
            sock.settimeout(seconds)
            sock.connect(where)
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise
            trouble = error
        else:
            return sock
    raise trouble
