"""The strategy: the one thing a backend's author writes to run the suite on a backend.

Contract: `name` and `url` must be given; every hook may be. A hook that is not overridden, or that
cannot do what is asked, raises `NotApplicable`: the tests that need it are then skipped, with the
reason, and counted. Nothing is skipped by a backend's name, and nothing silently.

Hooks are called from the test's own thread, which for the asyncio port is that of the event loop:
they may block for a moment and must not wait for a client to do something. Each has taken effect
when it returns. They act on the store of the last `url()`. Partner: `harness.py`, which calls them.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import holdfast
from holdfast import aio
from holdfast.backends import find
from holdfast.backends.url import parse
from holdfast.core.backend import Backend

__all__ = ["NotApplicable", "Strategy"]


class NotApplicable(Exception):
    """This store has no such fault, or this strategy cannot cause it. Say why."""


class Strategy:
    """How the suite reaches a store, and how it breaks the way there."""

    name: ClassVar[str]
    """What the test ids call this backend: `[name-sync]`, `[name-aio]`."""

    short_ttl: float = 0.3
    """The shortest lease worth testing with, in seconds. Raise it where a store counts in whole
    seconds or answers slowly: everything that must expire takes a small multiple of it."""

    claim_window: float = 0.0
    """If a lease that was handed over must first be confirmed within such a window (see
    `Grant.confirm_by`), its length: tests then use leases that are clearly longer."""

    child_imports: tuple[str, ...] = ()
    """Modules a child process imports before it connects, for example to register a scheme."""

    # -- reaching it ------------------------------------------------------------------------------

    def start_server(self) -> None:
        """Before the first test of a class."""

    def stop_server(self) -> None:
        """After the last test of a class, whatever happened."""

    def url(self) -> str:
        """The URL of a store, or of a namespace in it, that nobody has used before. Called once
        before each test; child processes connect to it too."""
        raise NotImplementedError

    def connect(self, url: str, **options: Any) -> holdfast.Locks:
        """A blocking client."""
        return holdfast.connect(url, **options)

    def aio_connect(self, url: str, **options: Any) -> aio.Locks:
        """An asyncio client."""
        return aio.connect(url, **options)

    def backend(self, url: str) -> Backend:
        """A backend object that no client drives: the suite calls the protocol itself."""
        parsed = parse(url)
        return find(parsed.scheme).from_url(parsed)

    # -- breaking the way there -------------------------------------------------------------------

    def heal(self) -> None:
        """Undo every fault below. Called after each test, whatever happened."""

    def sever_connections(self) -> None:
        """Cut every connection, and let no new one be made, until `heal`."""
        self._cannot("sever_connections")

    def hang(self) -> None:
        """Accept connections and requests, do nothing and answer nothing, until `heal`. What was
        swallowed meanwhile may arrive then, or never."""
        self._cannot("hang")

    def drop_next_reply(self) -> None:
        """The next request about a lock or a cell is applied, and its reply is lost. (The suite
        has used the connection before, so that no handshake is in the way.)"""
        self._cannot("drop_next_reply")

    def delay_next_request(self, seconds: float) -> None:
        """The next request about a lock or a cell arrives so much later, even if its sender has
        given up or gone; what is sent after it is not delayed."""
        self._cannot("delay_next_request")

    def delay_requests(self, seconds: float) -> None:
        """Every request arrives so much later, until `heal`."""
        self._cannot("delay_requests")

    def hold_requests(self) -> None:
        """Keep every request that is sent from now on, even if its sender gives up or goes."""
        self._cannot("hold_requests")

    def release_requests(self) -> None:
        """Let what `hold_requests` kept arrive, in its order, and hold no more."""
        self._cannot("release_requests")

    # -- breaking the store -----------------------------------------------------------------------

    def pause_server(self) -> None:
        """The server stops (SIGSTOP) until `resume_server` or `heal`; time goes on."""
        self._cannot("pause_server")

    def resume_server(self) -> None:
        """What was sent meanwhile is now read, and answered late."""
        self._cannot("resume_server")

    def restart_server(self) -> None:
        """The server ends and comes back, having lost whatever it may lose."""
        self._cannot("restart_server")

    def expire_now(self, name: str) -> None:
        """The holders' time is over in the store, as if their ttl had passed there; they are not
        told, and nobody else is."""
        self._cannot("expire_now")

    def steal(self, name: str) -> None:
        """Delete by hand what the store keeps of this name, its line included, as DEL, FLUSHALL or
        DELETE would: without the library's knowledge."""
        self._cannot("steal")

    # -- looking ----------------------------------------------------------------------------------

    def leftovers(self) -> list[str]:
        """What the store still keeps for locks, one line for each thing; empty is good. Fencing
        counters, which must outlive the locks, do not count; tombstones do (they end in time)."""
        self._cannot("leftovers")

    def line(self, name: str) -> int:
        """How many wait for this name: only asked where `inspect` cannot tell (capabilities)."""
        self._cannot("line")

    def requests(self) -> int:
        """How many requests all clients have sent to the store until now."""
        self._cannot("requests")

    def _cannot(self, hook: str) -> NoReturn:
        raise NotApplicable(f"the strategy of {self.name!r} has no {hook}()")
