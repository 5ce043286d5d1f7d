"""One deadline for several: servers, or the addresses of one, that are tried one after another.

Contract: each has its part of the time that is left, so that one that is silent does not take it
from the others. (The system's resolver cannot be given a time limit when it blocks: it has its
own.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.backends.quiet import Socket
from holdfast.ports.clock import now

__all__ = ["Found", "connected", "one_by_one", "share"]

Found = tuple[Any, ...]
"""One address, as `socket.getaddrinfo` has it."""


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
