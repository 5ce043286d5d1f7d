"""A backend without a client: the suite speaks the protocol itself, on either port.

Contract: the calls of `core/backend.py`, with a number of seconds in place of a deadline. Nothing
is renewed, repeated or cleaned up behind a test's back, so a claim made here and left alone is a
client that died; what is still claimed at the end of a test is withdrawn.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.core.backend import Backend, Downgrading
from holdfast.core.port import Port
from holdfast.ports.asyncio import AsyncioPort
from holdfast.ports.thread import ThreadPort, drive
from holdfast.testing.conformance.threaded import in_thread
from holdfast.types import (
    AlreadyLost,
    Buried,
    Busy,
    Cell,
    CellConflict,
    Claim,
    Grant,
    LockInfo,
    Lost,
    Mode,
    Released,
    Renewed,
    Unknown,
)

__all__ = ["Raw"]

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds until a call whose answer is expected must have it."""


class _Signals:
    """What the backend reports on its own is not of interest here."""

    def lost(self, owner: str, reason: str) -> None: ...

    def certain_until(self, owner: str, moment: float) -> None: ...


class Raw:
    def __init__(self, backend: Backend, port: str) -> None:
        self.backend = backend
        self.port: Port = AsyncioPort() if port == "aio" else ThreadPort()
        self._claims: list[Claim] = []
        self._closed = False
        self._signals = _Signals()
        backend.open(self.port, self._signals)

    def claim(
        self,
        name: str,
        mode: Mode = Mode.EXCLUSIVE,
        *,
        ttl: float = 30.0,
        fair: bool = True,
        permits: int = 1,
        limit: int = 1,
    ) -> Claim:
        """A claim with an owner of its own, as each acquire makes one."""
        owner = secrets.token_hex(16)
        info = {"host": "nowhere", "pid": "0"}
        claim = Claim(name, owner, mode, ttl, fair, permits, limit, info)
        self._claims.append(claim)
        return claim

    async def _call(self, request: Callable[[float], Coroutine[Any, Any, T]], within: float) -> T:
        if self.port.asynchronous:
            return await request(self.port.now() + within)
        return await in_thread(lambda: drive(request(self.port.now() + within)))

    async def close(self) -> None:
        claims, self._claims = self._claims, []
        for claim in claims:
            await self.withdraw(claim)
        if not self._closed:
            self._closed = True
            await self._call(lambda _: self.backend.close(), PATIENCE)

    # -- the protocol -----------------------------------------------------------------------------

    async def attempt(
        self, claim: Claim, queue: bool = True, within: float = PATIENCE
    ) -> Grant | Busy | Buried | Unknown:
        return await self._call(lambda end: self.backend.attempt(claim, queue, end), within)

    async def grant(self, claim: Claim) -> Grant:
        """An attempt that must succeed."""
        answer = await self.attempt(claim)
        assert isinstance(answer, Grant), answer
        return answer

    async def queue(self, claim: Claim) -> Busy:
        """An attempt that must end in the line."""
        answer = await self.attempt(claim)
        assert isinstance(answer, Busy), answer
        return answer

    async def wait(self, claim: Claim, busy: Busy, within: float = PATIENCE) -> Grant | None:
        return await self._call(lambda end: self.backend.wait(claim, busy, end), within)

    async def withdraw(
        self, claim: Claim, tombstone: bool = True, within: float = PATIENCE
    ) -> Released | Unknown:
        return await self._call(lambda end: self.backend.withdraw(claim, tombstone, end), within)

    async def renew(
        self, *grants: Grant, within: float = PATIENCE
    ) -> Sequence[Renewed | Lost | Unknown]:
        return await self._call(lambda end: self.backend.renew(grants, end), within)

    async def release(
        self, grant: Grant, tombstone: bool = False, within: float = PATIENCE
    ) -> Released | AlreadyLost | Unknown:
        return await self._call(lambda end: self.backend.release(grant, tombstone, end), within)

    async def downgrade(self, grant: Grant, within: float = PATIENCE) -> Lost | Unknown | None:
        backend = self.backend
        assert isinstance(backend, Downgrading)
        return await self._call(lambda end: backend.downgrade(grant, end), within)

    async def inspect(self, prefix: str, exact: bool = True) -> list[LockInfo]:
        return await self._call(lambda end: self.backend.inspect(prefix, exact, end), PATIENCE)

    async def read(self, name: str) -> Cell | None:
        return await self._call(lambda end: self.backend.cell_read(name, end), PATIENCE)

    async def try_write(
        self,
        name: str,
        value: bytes | None,
        *,
        expect: int | None = None,
        fence: int | None = None,
        ttl: float | None = None,
        within: float = PATIENCE,
    ) -> Cell | CellConflict | Unknown:
        return await self._call(
            lambda end: self.backend.cell_write(
                name, value, expect=expect, fence=fence, ttl=ttl, deadline=end
            ),
            within,
        )

    async def write(
        self,
        name: str,
        value: bytes | None,
        *,
        expect: int | None = None,
        fence: int | None = None,
        ttl: float | None = None,
    ) -> Cell:
        """A write that must be accepted."""
        answer = await self.try_write(name, value, expect=expect, fence=fence, ttl=ttl)
        assert isinstance(answer, Cell), answer
        return answer

    async def wait_for_change(
        self, name: str, version: int, within: float = PATIENCE
    ) -> Cell | None:
        return await self._call(lambda end: self.backend.cell_wait(name, version, end), within)
