"""A store for tests of the command line: other processes reach it, it can turn a deaf ear to one of
them, and it knows to the microsecond when it granted what.

Its clock is CLOCK_BOOTTIME, like everybody's: a grant's moment compares with a heartbeat's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from holdfast.backends.local import Held
from holdfast.types import Claim
from tests.conformance.served import Server


class Granted(NamedTuple):
    moment: float
    owner: str


class Store(Server):
    def __init__(self) -> None:
        self.grants: dict[str, list[Granted]] = {}
        self._unheard: dict[str, threading.Event | None] = {}
        super().__init__()

    @property
    def url(self) -> str:
        return f"served://{self.path}"

    @contextmanager
    def silence(self, pid: int) -> Iterator[None]:
        """Requests of this process are neither answered nor carried out; others are."""
        self._unheard[str(pid)] = gate = threading.Event()
        try:
            yield
        finally:
            del self._unheard[str(pid)]
            gate.set()

    @contextmanager
    def absence(self, pid: int) -> Iterator[None]:
        """Each request of this process breaks its connection, for good."""
        self._unheard[str(pid)] = None
        try:
            yield
        finally:
            del self._unheard[str(pid)]

    def _method(self, name: str) -> Callable[..., Any]:
        method = super()._method(name)

        def heard(*args: Any) -> Any:
            pid = next((claim.info["pid"] for claim in _claims(args)), "")
            if pid in self._unheard:
                gate = self._unheard[pid]
                if gate is None:
                    raise OSError("away")
                gate.wait()
            answer = method(*args)
            if isinstance(answer, Held):
                self._record(args[0], answer)
            return answer

        return heard

    def _record(self, claim: Claim, held: Held) -> None:
        """The store dates an expiry from the grant itself, whoever's request led to it."""
        grants = self.grants.setdefault(claim.name, [])
        if claim.owner not in [granted.owner for granted in grants]:
            grants.append(Granted(held.expires - claim.ttl, claim.owner))


def _claims(args: tuple[Any, ...]) -> Iterator[Claim]:
    for arg in args:
        for claim in arg if isinstance(arg, list) else [arg]:
            if isinstance(claim, Claim):
                yield claim
