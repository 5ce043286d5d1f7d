"""Calls to a cluster: which endpoint, with which credentials, and what a failure means.

Contract: `ask` sends requests to one endpoint at the same time and returns, for each, the answer or
a `Failure`; it does not raise for anything the network or the store does. It goes to the next
endpoint when one cannot be reached, has no leader or stays silent. A request is sent a second time
only if the first surely had no effect: everything else is for the caller to repeat, who knows what
is idempotent. Partners: `threads.py` and `loops.py`, which move the bytes and decide
nothing.
"""

from __future__ import annotations

import ssl
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.backends.addresses import Reasons
from holdfast.backends.etcd import answers, hpack, wire
from holdfast.backends.etcd.errand import Errand
from holdfast.backends.etcd.http2 import NO_ANSWER, NO_TRUST, Failure
from holdfast.core.port import Port
from holdfast.errors import Misconfigured, Unavailable

__all__ = ["Channel", "Endpoint", "Request", "Site", "Stream", "Transport", "no_space", "refusal"]

Request = tuple[str, bytes]
Block = tuple[bytes, bytes]
Access = tuple[bytes, dict[str, bytes]]
"""A token, and the header blocks that have it: changed together, whoever else is at it."""

# Codes of gRPC.
DEADLINE_EXCEEDED, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 4, 5, 7, 8
INVALID_ARGUMENT, FAILED_PRECONDITION, UNIMPLEMENTED, UNAVAILABLE, UNAUTHENTICATED = (
    3,
    9,
    12,
    14,
    16,
)
REFUSALS = (INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION,
            UNIMPLEMENTED, UNAUTHENTICATED)  # fmt: skip
"""etcd says these before it does anything; but see `no_space`."""
TOO_MUCH = ("too many operations", "request is too large", "larger than max")

SHORTEST_TRY = 1.0
"""Where there are several endpoints, one that is silent is given half of the time there is, and at
least so many seconds."""


@dataclass(slots=True, frozen=True)
class Endpoint:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True, frozen=True)
class Site:
    """Where the store is and how one gets in."""

    endpoints: tuple[Endpoint, ...]
    tls: ssl.SSLContext | None = None
    user: str = ""
    password: str = field(default="", repr=False)


class Stream(Protocol):
    """A call in which both sides say something again and again."""

    def send(self, message: bytes) -> None:
        """Soon. From any thread; never waits."""

    async def receive(self, deadline: float) -> bytes | Failure | None:
        """The next message, the end, or None: nothing until the deadline, or it was nudged."""
        ...

    def ping(self) -> None:
        """Have the other side show that it lives: `heard` then changes."""

    @property
    def heard(self) -> float:
        """When anything was last heard."""
        ...

    def nudge(self) -> None:
        """Have `receive` return."""

    async def close(self) -> None: ...


class Transport(Protocol):
    """Moves bytes: one for each port."""

    async def exchange(
        self, endpoint: Endpoint, calls: Sequence[Block], deadline: float, apart: bool
    ) -> list[bytes | Failure]:
        """Begin all these calls on one connection; their answers, in the same order. `apart`: what
        keeps leases must not stand in one line with what acquires."""
        ...

    async def stream(self, endpoint: Endpoint, headers: bytes, deadline: float) -> Stream | Failure:
        """Begin a call of many messages, on a connection of its own."""
        ...

    async def close(self) -> None: ...


class Channel:
    def __init__(self, site: Site, transport: Transport, port: Port) -> None:
        self._site = site
        self._transport = transport
        self._port = port
        self._turn = 0  # which endpoint is asked
        self._reasons = Reasons()
        self._access: Access = b"", {}
        self._login = Errand[str | Failure](port)

    @property
    def _endpoint(self) -> Endpoint:
        endpoints = self._site.endpoints
        return endpoints[self._turn % len(endpoints)]

    def _headers(self, method: str) -> bytes:
        """The header block of a method: made once for each token."""
        token, blocks = self._access
        block = blocks.get(method)
        if block is None:
            headers = [
                (b":method", b"POST"),
                (b":scheme", b"https" if self._site.tls else b"http"),
                (b":path", method.encode()),
                (b":authority", str(self._site.endpoints[0]).encode()),
                (b"te", b"trailers"),
                (b"content-type", b"application/grpc"),
                (b"hasleader", b"true"),  # a member that has lost its leader is to say so at once
            ]
            if token:
                headers.append((b"token", token))
            block = blocks[method] = hpack.encode(headers)
        return block

    async def ask(
        self, deadline: float, *requests: Request, apart: bool = False
    ) -> list[bytes | Failure]:
        return await self._ask(deadline, requests, bool(self._site.user), apart)

    async def _ask(
        self, deadline: float, requests: Sequence[Request], again: bool, apart: bool
    ) -> list[bytes | Failure]:
        """`again`: if the token is refused, log in and ask once more."""
        if self._site.user and not self._access[0]:
            failure = await self._log_in(b"", deadline)
            if failure is not None:
                return [failure] * len(requests)
        left = len(self._site.endpoints)
        while True:
            turn, token = self._turn, self._access[0]
            calls = [(self._headers(method), message) for method, message in requests]
            endpoint, limit, begun = self._endpoint, self._limit(deadline), self._port.now()
            results = await self._transport.exchange(endpoint, calls, limit, apart)
            failure = next((one for one in results if isinstance(one, Failure)), None)
            if failure is None:
                self._reasons.reached(endpoint)
                return results
            results = [self._told(one, endpoint, begun, limit) for one in results]
            without_effect = all(map(_without_effect, results))
            results = [_judged(one) for one in results]
            if not _trouble(failure):
                # Not all of them need be refused: etcd keeps a lease alive for whoever asks.
                late = [n for n, one in enumerate(results) if again and _stale(one)]
                if late:
                    failure = await self._log_in(token, deadline)
                    asked = [requests[n] for n in late]
                    fresh = (
                        await self._ask(deadline, asked, False, apart)
                        if failure is None
                        else [failure] * len(late)
                    )
                    for n, answer in zip(late, fresh, strict=True):
                        results[n] = answer
                return results
            self._move_on(turn)
            left -= 1
            if left <= 0 or self._port.now() >= deadline or not without_effect:
                return results

    def _told(
        self, result: bytes | Failure, endpoint: Endpoint, begun: float, limit: float
    ) -> bytes | Failure:
        if isinstance(result, bytes) or result.code != NO_ANSWER:
            return result
        text = self._reasons.why(endpoint, result.text, begun, limit)
        return Failure(result.code, text, result.applied)

    async def open(self, method: str, deadline: float) -> Stream | Failure:
        """A stream to the first endpoint that can be reached."""
        if self._site.user and not self._access[0]:
            failure = await self._log_in(b"", deadline)
            if failure is not None:
                return failure
        result: Stream | Failure = Failure(NO_ANSWER, "no time was left", applied=False)
        for _ in self._site.endpoints:
            turn = self._turn
            result = await self._transport.stream(
                self._endpoint, self._headers(method), self._limit(deadline)
            )
            if not isinstance(result, Failure):
                return result
            self._move_on(turn)
        return result

    def move_on(self) -> None:
        """The endpoint in use is not to be trusted: the next one, please."""
        self._move_on(self._turn)

    @contextmanager
    def understood(self) -> Generator[None]:
        """Around what reads answers: who gives others than etcd's is named, and not asked again
        while there is another."""
        try:
            yield
        except answers.Garbled as error:
            text = self.stranger(error)
            self.move_on()
            raise answers.Garbled(text) from None

    def stranger(self, error: answers.Garbled) -> str:
        return f"what answers at {self._endpoint} is no etcd: {error}"

    def forget_token(self) -> None:
        """It was refused: log in again before the next call."""
        self._access = b"", {}

    def _move_on(self, turn: int) -> None:
        if self._turn == turn:  # else somebody did it already
            self._turn += 1

    def _limit(self, deadline: float) -> float:
        if len(self._site.endpoints) == 1:
            return deadline
        now = self._port.now()
        return min(deadline, now + max(SHORTEST_TRY, (deadline - now) / 2))

    async def _log_in(self, stale: bytes, deadline: float) -> Failure | None:
        """Have another token than this one. It costs etcd a tenth of a second of its processor, so
        one logs in for all."""

        def settles(outcome: str | Failure) -> bool:
            return isinstance(outcome, str) or not _trouble(outcome)

        outcome = await self._login.do(
            lambda: self._authenticate(stale, deadline), settles, deadline
        )
        if outcome is None:
            return Failure(NO_ANSWER, "no time was left to log in", applied=False)
        return outcome if isinstance(outcome, Failure) else None

    async def _authenticate(self, stale: bytes, deadline: float) -> str | Failure:
        token = self._access[0]
        if token and token != stale:  # somebody did it just before
            return token.decode()
        self.forget_token()
        message = wire.authenticate(self._site.user, self._site.password)
        failure = Failure(NO_ANSWER, "no time was left", applied=False)
        for _ in self._site.endpoints:
            turn = self._turn
            calls = [(self._headers(wire.AUTHENTICATE), message)]
            (result,) = await self._transport.exchange(
                self._endpoint, calls, self._limit(deadline), apart=True
            )
            if isinstance(result, bytes):
                try:
                    fresh = answers.token_of(result)
                except answers.Garbled as error:
                    result = Failure(NO_ANSWER, self.stranger(error))
                else:
                    self._access = fresh.encode(), {}
                    return fresh
            failure = result
            if not _trouble(result):
                break
            self._move_on(turn)
        # Whatever was to be asked was not asked.
        return Failure(failure.code, failure.text, applied=False)

    async def close(self) -> None:
        await self._transport.close()


def _trouble(failure: Failure) -> bool:
    """Whether another endpoint might do better: also one whose certificate is in date."""
    return failure.code in (NO_ANSWER, NO_TRUST, UNAVAILABLE, DEADLINE_EXCEEDED)


def _without_effect(result: bytes | Failure) -> bool:
    return isinstance(result, Failure) and _refused(result)


def _refused(failure: Failure) -> bool:
    """Whether nothing was done, surely: etcd is known to refuse before it does anything."""
    if no_space(failure):
        return False
    if failure.applied is not None or failure.code in REFUSALS:
        return not failure.applied
    return failure.code == UNAVAILABLE and "no leader" in failure.text


def no_space(failure: Failure) -> bool:
    """etcd is over its quota. It may say so of what it did all the same: if others used up the
    space after it had looked whether there is any."""
    return failure.code == RESOURCE_EXHAUSTED and "space" in failure.text


def _judged(result: bytes | Failure) -> bytes | Failure:
    if isinstance(result, bytes) or not _refused(result):
        return result
    return Failure(result.code, result.text, applied=False)


def _stale(result: bytes | Failure) -> bool:
    """The token is over, or somebody changed users and roles since it was made."""
    if isinstance(result, bytes) or not _refused(result):
        return False
    signs = ("auth store is old", "user name is empty")
    return result.code == UNAUTHENTICATED or any(sign in result.text for sign in signs)


def refusal(failure: Failure) -> Unavailable | Misconfigured:
    """The error of a request that surely was not applied."""
    text = failure.text.removeprefix("etcdserver: ")
    if failure.code == NO_TRUST:
        return Misconfigured(
            f"no trust between us and etcd: {text}. Check the options ca, cert and key, the name "
            "in the server's certificate, and that both are in date"
        )
    if failure.code == PERMISSION_DENIED:
        return Misconfigured(
            f"etcd refuses it: {text}. The user's role must have readwrite on the key prefix of "
            "the locks (docs/backends/etcd.md has an example)"
        )
    if failure.code == UNAUTHENTICATED or (
        failure.code in (INVALID_ARGUMENT, FAILED_PRECONDITION)
        and ("auth" in text or "user name" in text)
    ):
        return Misconfigured(f"etcd does not let us in: {text}. Check the user and the password")
    if any(sign in text for sign in TOO_MUCH):
        return Misconfigured(
            f"more than etcd takes at once: {text}. Its options --max-txn-ops and "
            "--max-request-bytes say how much that is"
        )
    if failure.code == RESOURCE_EXHAUSTED:
        return Unavailable(
            f"etcd refuses to write: {text}. If it is out of space, compact, defragment and "
            "disarm its alarm"
        )
    return Unavailable(f"etcd cannot be asked: {text}")
