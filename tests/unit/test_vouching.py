"""The client's half of the crash detector, by steps of a fake clock: what a link vouches for."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Sequence
from typing import Any, cast

import pytest

from holdfast.core.presence import Detectable
from holdfast.core.vouching import LINGER, Vouched
from holdfast.errors import Misconfigured, Unavailable
from holdfast.testing.world import Fiber, Host, Park, World, WorldPort
from holdfast.types import Busy, Claim, Grant, Lost, Released, Renewed, Unknown

pytestmark = pytest.mark.req("R23", "law 1", "law 5")

GRACE = 6.0
HALF = pytest.approx(GRACE / 2, abs=0.02)


class Link:
    def __init__(self, inner: Inner) -> None:
        self.inner = inner
        self.alive = True

    async def ping(self, deadline: float) -> None:
        await self.inner.pass_by("ping", deadline)
        if not self.alive:
            raise Unavailable("cut")

    async def rest(self, until: float) -> None:
        await Park(lambda: not self.alive, until)
        if not self.alive:
            raise Unavailable("cut")

    def cut(self) -> None:
        self.alive = False

    def close(self) -> None:
        self.alive = False


class Inner:
    """A store that answers at once, except where a gate is closed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.closed: set[str] = set()
        self.did: list[str] = []
        self.links: list[Link] = []
        self.gone: set[str] = set()
        self.refuses = False

    def open(self, port: object, signals: object) -> None: ...

    async def close(self) -> None: ...

    async def pass_by(self, what: str, deadline: float = math.inf) -> None:
        """It has been done when it passes the gate."""
        if what in self.closed:
            await Park(lambda: what not in self.closed, deadline)
            if what in self.closed:
                raise Unavailable(f"no answer to {what}")
        self.did.append(what)

    async def appear(self, presence: str, deadline: float) -> Link:
        await self.pass_by("appear", deadline)
        if self.refuses:
            raise Misconfigured("not you")
        link = Link(self)
        self.links.append(link)
        return link

    async def attempt(self, claim: Claim, queue: bool, deadline: float) -> Grant | Busy:
        sent = self.world.time
        await self.pass_by("attempt", deadline)
        return Busy() if claim.name == "busy" else Grant(claim, sent + claim.ttl, fence=7)

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant:
        await self.pass_by("call", deadline)
        return Grant(claim, self.world.time + 2, fence=8, confirm_by=self.world.time + 1)

    async def renew(self, grants: Sequence[Grant], deadline: float) -> list[Any]:
        sent = self.world.time
        try:
            await self.pass_by("renew", deadline)
        except Unavailable as error:
            return [Unknown(str(error))] * len(grants)
        return [
            Lost("gone") if g.claim.owner in self.gone else Renewed(sent + g.claim.ttl)
            for g in grants
        ]

    async def release(self, grant: Grant, tombstone: bool, deadline: float) -> Released:
        return await self.withdraw(grant.claim, tombstone, deadline)

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released:
        await self.pass_by("withdraw", deadline)
        return Released()


class Bench:
    def __init__(self) -> None:
        self.world = World()
        self.host = Host(self.world, "client")
        self.inner = Inner(self.world)
        self.certain: dict[str, float] = {}
        self.told: list[tuple[float, str]] = []
        self.backend = Vouched(cast(Detectable, self.inner), "me/6", GRACE)
        self.backend.open(cast(Any, WorldPort(self.host)), self)

    def lost(self, owner: str, reason: str) -> None:
        self.told.append((self.world.time, owner))

    def certain_until(self, owner: str, moment: float) -> None:
        self.certain[owner] = moment

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> tuple[Fiber, list[Any]]:
        results: list[Any] = []

        async def run() -> None:
            results.append(await coroutine)

        return self.world.spawn(self.host, run(), "user"), results

    def run(self, seconds: float = 0.0) -> None:
        """Let everything happen that happens by then."""
        end = self.world.time + seconds
        while True:
            runnable = self.world.runnable()
            if runnable:
                for fiber in runnable:
                    fiber.step()
                    if fiber.error is not None:
                        raise fiber.error
                continue
            moment = self.world.next_moment()
            if moment > end:
                self.world.time = end
                return
            self.world.time = moment

    def take(self, owner: str = "o", name: str = "x", ttl: float = 100.0) -> Grant:
        claim = Claim(name, owner, ttl=ttl)
        _, results = self.begin(self.backend.attempt(claim, False, self.world.time + 5))
        self.run()
        [grant] = results
        assert isinstance(grant, Grant)
        self.certain.setdefault(owner, grant.certain_until)
        return grant

    def left(self, owner: str = "o") -> float:
        """For how long it is certain from now on."""
        return self.certain[owner] - self.world.time

    def cut(self) -> None:
        self.inner.links[-1].alive = False


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_nothing_is_asked_for_before_there_is_a_link(bench: Bench) -> None:
    bench.inner.closed.add("appear")
    _, results = bench.begin(bench.backend.attempt(Claim("x", "o"), False, bench.world.time + 50))
    bench.run(3)
    assert bench.inner.did == []
    bench.inner.closed.clear()
    bench.run(2)
    assert bench.inner.did[:3] == ["appear", "ping", "attempt"]
    assert results[0].certain_until - bench.world.time < GRACE / 2


def test_without_a_link_it_is_said_and_nothing_was_asked(bench: Bench) -> None:
    bench.inner.closed.add("appear")
    fiber, _ = bench.begin(bench.backend.attempt(Claim("x", "o"), False, bench.world.time + 3))
    with pytest.raises(Unavailable, match="crash_grace"):
        bench.run(4)
    assert fiber.done
    assert bench.inner.did == []
    bench.inner.closed.clear()
    bench.inner.refuses = True
    bench.begin(bench.backend.attempt(Claim("x", "p"), False, bench.world.time + 3))
    with pytest.raises(Misconfigured, match="not you"):
        bench.run(4)


def test_a_lease_is_certain_from_the_sending_of_the_last_answered_ping(bench: Bench) -> None:
    grant = bench.take()
    assert grant.certain_until - bench.world.time == HALF
    bench.run(3 * GRACE)
    assert bench.left() > GRACE / 2 - GRACE / 6 - 0.02
    bench.inner.closed.add("ping")
    bench.run(1.5)  # so that one is on its way
    before = bench.certain["o"]
    bench.inner.closed.clear()
    bench.run()
    assert bench.certain["o"] > before
    assert bench.left() < GRACE / 2 - 0.4, "dated from the answer"


def test_a_pause_is_uncertain_and_then_as_before(bench: Bench) -> None:
    bench.take()
    bench.run(1)
    bench.host.paused_until = bench.world.time + 3 * GRACE
    bench.run(3 * GRACE - 0.001)
    assert bench.left() < 0
    bench.run(0.01)
    assert bench.left() == HALF
    assert bench.told == []
    assert "renew" not in bench.inner.did, "the same link answered"


def test_a_new_link_vouches_for_what_was_renewed_after_it_came(bench: Bench) -> None:
    bench.take()
    bench.run(GRACE)
    bench.inner.closed.add("renew")
    before = bench.certain["o"]
    bench.cut()
    bench.run(0.5)
    assert bench.inner.did.count("appear") == 2
    assert bench.certain["o"] == before, "nobody has renewed it yet"
    bench.inner.closed.clear()
    bench.run(GRACE / 6)
    assert bench.left() > GRACE / 2 - GRACE / 6 - 0.1
    bench.run(2 * GRACE)
    assert bench.told == []


def test_a_renewal_that_was_sent_before_the_new_link_came_does_not_count(bench: Bench) -> None:
    grant = bench.take()
    bench.run(GRACE)
    bench.inner.closed.add("renew")
    _, results = bench.begin(bench.backend.renew([grant], bench.world.time + 50))
    bench.run(0.1)
    bench.inner.closed.add("appear")
    bench.cut()
    bench.run(0.1)
    bench.inner.closed = {"appear"}
    bench.run()
    assert isinstance(results[0][0], Renewed)
    before = bench.certain["o"]
    bench.inner.closed = {"renew"}
    bench.run(1)
    assert bench.inner.did.count("appear") == 2
    assert bench.certain["o"] == before


def test_what_nothing_vouches_for_is_lost_in_time(bench: Bench) -> None:
    bench.take()
    bench.take("fixed", "y")
    bench.run(GRACE)
    bench.inner.closed = {"appear", "ping", "renew", "withdraw"}
    contact = bench.certain["o"] - GRACE / 2
    bench.run(GRACE * 0.8)
    assert bench.told == []
    bench.run(GRACE * 0.3)
    assert sorted(owner for _, owner in bench.told) == ["fixed", "o"]
    assert all(GRACE * 0.84 < moment - contact < GRACE * 0.95 for moment, _ in bench.told)
    # When the store is back, what it has of them is withdrawn.
    bench.inner.closed.clear()
    bench.run(GRACE)
    assert bench.inner.did.count("withdraw") == 2


def test_what_the_store_has_given_away_is_lost_at_once(bench: Bench) -> None:
    bench.take()
    bench.inner.gone.add("o")
    bench.cut()
    bench.run(0.2)
    assert [owner for _, owner in bench.told] == ["o"]
    assert bench.inner.did.count("withdraw") == 0


@pytest.mark.parametrize("way", ["attempt", "call"])
def test_a_grant_on_its_way_while_the_link_is_replaced(bench: Bench, way: str) -> None:
    """It may be from before the new link came: it is renewed before anybody relies on it."""
    backend = bench.backend
    claim = Claim("x" if way == "attempt" else "busy", "o", ttl=100)
    bench.take("other", "y")
    deadline = bench.world.time + 50
    bench.inner.closed.add(way)
    if way == "attempt":
        _, results = bench.begin(backend.attempt(claim, True, deadline))
    else:
        bench.begin(backend.attempt(claim, True, deadline))
        bench.run()
        _, results = bench.begin(backend.wait(claim, Busy(), deadline))
    bench.run(0.1)
    bench.cut()
    bench.run(0.5)
    assert bench.inner.did.count("appear") == 2
    renewed = bench.inner.did.count("renew")
    bench.inner.closed.add("renew")
    bench.inner.closed.discard(way)
    bench.run(0.5)
    assert results == []
    bench.inner.closed.clear()
    bench.run(0.1)
    [grant] = results
    assert bench.inner.did.count("renew") > renewed
    assert grant.confirm_by is None
    assert grant.until > bench.world.time + 90
    assert grant.certain_until > bench.world.time


def test_nothing_piles_up(bench: Bench) -> None:
    backend = bench.backend
    for number in range(5):
        grant = bench.take(f"a{number}")
        bench.begin(backend.release(grant, False, bench.world.time + 1))
        bench.begin(backend.attempt(Claim("busy", f"b{number}"), False, bench.world.time + 1))
        waiting = Claim("busy", f"c{number}")
        bench.begin(backend.attempt(waiting, True, bench.world.time + 1))
        bench.run()
        assert list(backend._asked) == [f"c{number}"]
        bench.begin(backend.withdraw(waiting, False, bench.world.time + 1))
        bench.run()
    assert (backend._asked, backend._held, backend._doubted, backend._left) == ({}, {}, {}, {})


def test_a_link_that_vouches_for_nothing_ends_after_a_while(bench: Bench) -> None:
    """A client that nobody closed keeps neither connection nor thread; and comes back."""

    def alive() -> bool:
        return bench.inner.links[-1].alive

    grant = bench.take()
    bench.run(2 * LINGER)
    assert alive()
    bench.begin(bench.backend.release(grant, False, bench.world.time + 1))
    bench.run(LINGER + GRACE)
    assert not alive()
    assert [fiber for fiber in bench.world.fibers if not fiber.done] == []
    bench.take("again")
    assert alive()
    bench.begin(bench.backend.close())
    bench.run(2)
    assert not alive()
