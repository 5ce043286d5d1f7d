"""A TCP proxy that loses, delays, holds, splits and cuts whole requests and replies, for tests.

`framing.py` says where a request or reply ends, `rules.py` what happens to it, `relay.py` moves it;
here is the public side, which holds no state of its own.

    with FaultProxy(("127.0.0.1", 6379), framing="resp") as proxy:
        client = redis.Redis(host=proxy.host, port=proxy.port)
        proxy.drop_reply(to=b"SET")            # the server applies it, the client never hears
        ...
        proxy.heal()

Contract:

1. One background thread does the forwarding, so sync and asyncio tests use it alike. Every method
   may be called from any thread and has taken effect when it returns: frames the proxy reads from
   then on meet the fault; those it had read before do not.
2. Order is kept: within one direction of one connection nothing overtakes, the end included.
3. A request outlives its client: what was held or delayed reaches the server even if the client
   has hung up meanwhile. That is how ghosts are made.
4. Faults add up, and each can be undone: by `undo()` of what its method returned, at the end of a
   `with` block, or all at once by `heal()`.
5. No more than `WINDOW` bytes and a frame are buffered per direction, except what is held.
6. After `fork` the proxy is closed in the child, and untouched in the parent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Literal, TypeVar

from holdfast.testing import rules
from holdfast.testing.framing import FRAMINGS, Way
from holdfast.testing.relay import Address, Link, Relay
from holdfast.testing.rules import Direction, Match, Pick, Rule

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds that a test waits for what must happen: a machine may stand still for a while."""


class Fault:
    """A fault in force. Undo it by `undo()`, or use it as a `with` block."""

    def __init__(self, undo: Callable[[], None]) -> None:
        self.undo = undo

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.undo()


class FaultProxy:
    """Listens on a free loopback port and forwards to `upstream`, an address or a unix path.

    `matching=` is a predicate over a frame's bytes, or bytes that it contains. A predicate runs in
    the proxy's thread: let it be quick. `only=` is one of `connections`.
    """

    def __init__(self, upstream: Address | str, *, framing: str = "raw") -> None:
        if framing not in FRAMINGS:
            raise ValueError(f"no framing {framing!r}; there are {', '.join(FRAMINGS)}")
        self._relay = Relay(upstream, framing)
        self.address = self._relay.address
        self.host, self.port = self.address

    # Faults on frames.

    def delay(
        self, seconds: float, direction: Direction = "both", *, only: Link | None = None
    ) -> Fault:
        """Deliver each frame `seconds` after it came."""
        return self._install(rules.Delay(direction, only, seconds))

    def split(
        self,
        size: int = 1,
        direction: Direction = "both",
        *,
        gap: float = 0,
        only: Link | None = None,
    ) -> Fault:
        """Send at most `size` bytes per packet, `gap` seconds apart (0: some may merge)."""
        return self._install(rules.Split(direction, only, size, gap))

    def hold(
        self, direction: Direction = "both", *, matching: Match = None, only: Link | None = None
    ) -> Fault:
        """Keep all frames, or those that match and whatever is behind them, until released.

        with proxy.hold("to_server"):          # the request is on its way ...
            start_attempt()
            proxy.wait_for_held()
            client.close()                     # ... its client gives up ...
        proxy.wait_for_reply()                 # ... and the server applies it all the same
        """
        return self._install(rules.Hold(direction, only, matching))

    def release_held(self) -> None:
        """End every `hold` and deliver what they kept."""
        self._relay.lift(lambda rule: isinstance(rule, rules.Hold))

    def one_way(self, lost: Direction, *, only: Link | None = None) -> Fault:
        """Lose all frames in the direction `lost`, silently: connections stay open."""
        return self._install(rules.Lose(lost, only))

    def blackhole(self, *, only: Link | None = None) -> Fault:
        """Accept and never answer: both directions are lost, for new connections too."""
        return self.one_way("both", only=only)

    def drop_request(
        self, n: int = 1, *, times: int = 1, matching: Match = None, only: Link | None = None
    ) -> Fault:
        """Swallow the n-th next request (that matches), and `times` in all from there on."""
        return self._install(
            Pick("to_server", only, "to_server", n, times, matching, rules.swallow)
        )

    def delay_request(
        self,
        seconds: float,
        n: int = 1,
        *,
        times: int = 1,
        matching: Match = None,
        only: Link | None = None,
    ) -> Fault:
        """Deliver the n-th next request (that matches) so much later; what its connection sends
        after it waits behind it, other connections do not."""
        act = rules.late(seconds)
        return self._install(Pick("to_server", only, "to_server", n, times, matching, act))

    def drop_reply(
        self,
        n: int = 1,
        *,
        times: int = 1,
        matching: Match = None,
        to: Match = None,
        only: Link | None = None,
    ) -> Fault:
        """Swallow the n-th next reply: the command is applied, the connection stays open.

        `matching` looks at the reply; `to`, in its place, at the request that it answers.
        """
        watch: Way = "to_server" if to else "to_client"
        return self._install(
            Pick("to_client", only, watch, n, times, to or matching, rules.swallow)
        )

    def reset_on_request(
        self, n: int = 1, *, after: int = 0, matching: Match = None, only: Link | None = None
    ) -> Fault:
        """RST both sides when `after` bytes of the n-th next request have been sent."""
        act = rules.cut_after(after)
        return self._install(Pick("to_server", only, "to_server", n, 1, matching, act))

    def reset_on_reply(
        self,
        n: int = 1,
        *,
        after: int = 0,
        matching: Match = None,
        to: Match = None,
        only: Link | None = None,
    ) -> Fault:
        """RST both sides in place of the n-th next reply, or behind its first `after` bytes."""
        watch: Way = "to_server" if to else "to_client"
        act = rules.cut_after(after)
        return self._install(Pick("to_client", only, watch, n, 1, to or matching, act))

    # Faults on connections.

    def reset(self, side: Literal["both", "client"] = "both", *, only: Link | None = None) -> None:
        """RST now. With "client", the server gets what is under way and then an ordinary end."""
        relay = self._relay
        with relay.changed:
            relay.check_open()
            for link in [link for link in relay.links if only in (None, link)]:
                if side == "client":
                    relay.reset_client(link)
                else:
                    relay.discard(link, reset=True)
            relay.settle()

    def sever(self) -> Fault:
        """Close every connection and refuse new ones."""
        relay = self._relay
        with relay.changed:
            relay.check_open()
            relay.set_door("shut")
            for link in list(relay.links):
                relay.discard(link)
            relay.settle()
        return Fault(lambda: relay.set_door("open"))

    def pause_accept(self) -> Fault:
        """Leave new connections in the kernel's queue: they open, and then nothing happens."""
        self._relay.set_door("paused")
        return Fault(lambda: self._relay.set_door("open"))

    def heal(self) -> None:
        """Undo every fault, and deliver at once what was held or delayed."""
        with self._relay.changed:
            self._relay.set_door("open")
            for parcel in self._relay.parcels():
                parcel.due = parcel.gap = 0
            self._relay.lift(lambda rule: True)

    # Looking and waiting.

    @property
    def requests(self) -> int:
        """Requests read so far, on all connections, before any fault."""
        return self._relay.counts["to_server"]

    @property
    def replies(self) -> int:
        """Replies read so far, on all connections, before any fault."""
        return self._relay.counts["to_client"]

    @property
    def connections(self) -> tuple[Link, ...]:
        """Open connections, oldest first. One whose client left stays while requests are kept."""
        with self._relay.changed:
            return tuple(self._relay.links)

    @property
    def held(self) -> int:
        """How many frames are kept by holds."""
        with self._relay.changed:
            return sum(bool(parcel.holders and parcel.data) for parcel in self._relay.parcels())

    def frames(self, direction: Way) -> list[bytes]:
        """The last frames read in a direction, as they were before any fault."""
        with self._relay.changed:
            return [frame.data for frame in self._relay.log[direction]]

    def forget(self) -> None:
        """Empty the logs: the next `wait_for_...` sees only what comes after."""
        with self._relay.changed:
            for log in (*self._relay.log.values(), *self._relay.unseen.values()):
                log.clear()

    def wait_until(self, condition: Callable[[], T | None], timeout: float = PATIENCE) -> T:
        """Wait for a true `condition()` and return it; it is asked again after every change.

        proxy.wait_until(lambda: len(proxy.connections) == 2)
        """
        deadline = monotonic() + timeout
        with self._relay.changed:
            while not (result := condition()):
                self._relay.check_open()
                if not self._relay.changed.wait(max(0, deadline - monotonic())):
                    raise TimeoutError(f"waited {timeout} s in vain; {self!r}")
            return result

    def wait_for_request(self, matching: Match = None, timeout: float = PATIENCE) -> bytes:
        """The next request read that matches, each being returned once; what it skips is gone."""
        return self.wait_until(lambda: self._next_unseen("to_server", matching), timeout)

    def wait_for_reply(self, matching: Match = None, timeout: float = PATIENCE) -> bytes:
        """The same for replies; a reply in the proxy means that the server is done."""
        return self.wait_until(lambda: self._next_unseen("to_client", matching), timeout)

    def wait_for_held(self, n: int = 1, timeout: float = PATIENCE) -> None:
        """Wait until holds keep at least `n` frames."""
        self.wait_until(lambda: self.held >= n, timeout)

    def close(self) -> None:
        """Close every socket and end the thread; frames still held are lost. Idempotent."""
        with self._relay.changed:
            self._relay.closed = True
            self._relay.wake()
        if threading.current_thread() is not self._relay.thread:
            self._relay.thread.join()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        counts = f"{self.requests} requests, {self.replies} replies, {self.held} held"
        faults = ", ".join(type(rule).__name__ for rule in self._relay.rules) or "none"
        where = f"{self._relay.framing} {self.host}:{self.port}"
        return f"<FaultProxy {where}: {counts}; faults: {faults}; {list(self.connections)}>"

    def _install(self, rule: Rule) -> Fault:
        self._relay.install(rule)
        return Fault(lambda: self._relay.lift(lambda one: one is rule))

    def _next_unseen(self, way: Way, matching: Match) -> bytes | None:
        unseen = self._relay.unseen[way]
        while unseen:
            frame = unseen.popleft()
            if rules.matches(frame, matching):
                return frame.data
        return None
