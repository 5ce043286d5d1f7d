"""The crash detector on MariaDB, PostgreSQL and Redlock: deaths, pauses, cut links, partitions, and
deaths of its own. On Redis: `test_redis_crash.py`. How fast it is: `tests/stress/crash.py`.

Over 400 lines: a list of cases, each read by itself, that share their stores.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import aio
from holdfast.core.presence import Suspect
from holdfast.ports.clock import now
from tests.cli.harness import holdfast as command
from tests.faults.crash import (
    MariaDBStore,
    PostgresStore,
    Pulse,
    RedisStore,
    RedlockStore,
    Store,
    Turned,
    plain,
    presence_of,
    watching,
)
from tests.faults.peers import Peer
from tests.faults.redis import in_line, waiting
from tests.servers.base import stopped
from tests.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.req("R23")]

GRACE = 1.0
LONG = 60.0
KINDS: dict[str, tuple[type[Store], str]] = {
    "redis": (RedisStore, "redis_server"),
    "mariadb": (MariaDBStore, "mariadb_server"),
    "postgres": (PostgresStore, "postgres_server"),
    "redlock": (RedlockStore, "redis_masters"),
}


@pytest.fixture(params=list(KINDS))
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    kind, server = KINDS[request.param]
    store = kind(request.getfixturevalue(server))
    yield store
    store.close()


@pytest.fixture
def url(store: Store) -> str:
    return store.fresh(GRACE)


@pytest.fixture
def locks(url: str) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url) as locks:
        yield locks


@pytest.fixture
def turned(url: str) -> Iterator[Turned]:
    with holdfast.connect(plain(url)) as locks:
        turned = Turned(locks)
        yield turned
        turned.close()


# -- deaths ----------------------------------------------------------------------------------------


@pytest.mark.req("holder killed -9", "R2", "law 6")
def test_the_dead_are_freed_after_their_grace_and_nobody_else_is(
    store: Store, tmp_path: Path
) -> None:
    """All modes, fixed leases too; handed over to who is in line. With a grace that who lives can
    keep on a busy machine."""
    grace = 4.0
    url = store.fresh(grace)
    with (
        holdfast.connect(url) as locks,
        watching(url, tmp_path) as watch,
        Peer(url) as dead,
        Peer(url) as alive,
        Peer(plain(url)) as other,
    ):
        watch.leads()
        names = {"x", "fixed"}
        wanted: list[Any] = [locks.lock("fixed", ttl=LONG)]
        dead.acquire("lock('x', ttl=60)")
        dead.acquire("lock('fixed', ttl=60, renew=False)")
        alive.acquire("lock('a', ttl=60)")
        other.acquire("lock('o', ttl=60)")
        if store.shares:
            names |= {"rw", "sem", "shared"}
            wanted += [locks.rwlock("rw", ttl=LONG).write(), locks.semaphore("sem", 1, ttl=LONG)]
            dead.acquire("rwlock('rw', ttl=60).read()")
            dead.acquire("semaphore('sem', 1, ttl=60)")
            for peer in (alive, other, dead):
                peer.acquire("rwlock('shared', ttl=60).read()")
        with waiting(locks.lock("x", ttl=LONG)) as waiter:
            if store.shares:
                in_line(locks, 1)
            killed = now()
            dead.kill()
            other.kill()
            lease = waiter.result()
            assert lease
            assert grace < waiter.at - killed < LONG / 2
        assert all(lock.acquire(timeout=20) for lock in wanted)
        watch.wait("freed", len(names))
        assert {event["name"] for event in watch.events("freed")} == names
        assert alive.run("any(lease.lost.is_set() for lease in held)") is False
        until(lambda: alive.run("all(lease.held for lease in held)"), "the living hold")
        [nobodys] = locks.inspect("o")
        assert nobodys.holders, "who did not opt in is not touched"
        if store.shares:
            [shared] = locks.inspect("shared")
            assert len(shared.holders) == 2
        shown = command("sentinel", "--status", url=url)
        assert shown.returncode == 0
        assert shown.stdout.startswith("leader ")


def test_an_asyncio_client_is_watched_as_well(url: str, store: Store, tmp_path: Path) -> None:
    """Its link, too, is seen, and replaced when it is cut."""

    async def wait() -> None:
        patient = url.replace("crash_grace=1", "crash_grace=6")  # a busy machine is not to matter
        async with aio.connect(patient) as locks, locks.lock("x", ttl=LONG, timeout=20) as lease:
            for _ in range(2):
                while not store.cut():  # a cut that is seen by the next ping takes a second here
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0.3)
                assert lease.held

    child = (
        "import asyncio\nfrom holdfast import aio\nasync def hold():\n"
        "    locks = aio.connect(locks_url)\n    lease = await locks.lock('x', ttl=60).acquire()\n"
        "    took.append(lease.held)\n    await asyncio.sleep(100)\n"
        "took = []\nimport sys\nlocks_url = sys.argv[1]\n"
        "threading.Thread(target=lambda: asyncio.run(hold()), daemon=True).start()"
    )
    with watching(url, tmp_path) as watch, Peer(url) as peer:
        watch.leads()
        peer.run(f"exec({child!r}, globals())")
        until(lambda: peer.run("took") == [True], "it holds")
        peer.kill()
        asyncio.run(wait())
        watch.wait("freed")
        assert len(watch.events("freed")) == 1


# -- pauses, and links that are cut ----------------------------------------------------------------


@pytest.mark.req("client paused longer than its lease")
def test_a_stopped_process_is_not_dead(store: Store, tmp_path: Path) -> None:
    """Below half the grace it costs nothing; above, the lease is uncertain, and held again. With a
    grace that a busy machine can keep."""
    grace = 4.0
    url = store.fresh(grace)
    with watching(url, tmp_path) as watch, Peer(url) as peer, holdfast.connect(url) as locks:
        watch.leads()
        peer.acquire("lock('x', ttl=60)")
        for _ in range(2):
            peer.signal(signal.SIGSTOP)
            time.sleep(0.4 * grace)
            peer.signal(signal.SIGCONT)
            assert peer.run("held[0].lost.is_set()") is False
            until(lambda: peer.run("held[0].held"), "held again")
        # Looked at by the very next line after the pause: no thread of holdfast has run before.
        peer.start("(os.kill(os.getpid(), signal.SIGSTOP), held[0].uncertain, held[0].held)[1:]")
        time.sleep(1.2 * grace)
        assert locks.lock("x").acquire(blocking=False) is None
        peer.signal(signal.SIGCONT)
        uncertain, held = peer.result()
        # The link may have been quicker than that line, or between the two words.
        assert uncertain or held
        until(lambda: peer.run("held[0].held"), "held again")
        assert watch.events("missing") == []


@pytest.mark.req("law 5")
def test_who_is_stopped_without_its_link_has_lost(
    store: Store, url: str, locks: holdfast.Locks, tmp_path: Path
) -> None:
    with watching(url, tmp_path) as watch, Peer(url) as peer:
        watch.leads()
        peer.acquire("lock('x', ttl=60)")
        presence = presence_of(peer)
        peer.start("(os.kill(os.getpid(), signal.SIGSTOP), held[0].held)[1]")
        until(lambda: stopped(peer.pid), "it stops")
        assert store.cut(presence) == 1
        with waiting(locks.lock("x", ttl=LONG)) as waiter:
            lease = waiter.result()
            assert lease
            peer.signal(signal.SIGCONT)
            assert peer.result() is False
            until(lambda: peer.run("held[0].lost.is_set()"), "it was told")
            assert peer.run("held[0].release()") is False
            assert lease.held
            lease.release()
        watch.wait("freed")


def test_links_cut_at_random_while_renewals_work(store: Store, url: str, tmp_path: Path) -> None:
    """A grace that a busy machine can keep: nobody may lose anything here."""
    url = store.fresh(4)
    with watching(url, tmp_path) as watch, Peer(url) as peer:
        watch.leads()
        peer.acquire("lock('x', ttl=30, renew=0.5)")
        peer.acquire("lock('y', ttl=60, renew=False)")
        peer.acquire("rwlock('z', ttl=60).read()" if store.shares else "lock('z', ttl=60)")
        killed = 0
        begun = now()
        while killed <= 3 or now() < begun + 4:
            assert now() < begun + LONG, f"{killed} links in all this time"
            killed += store.cut(presence_of(peer))
            time.sleep(random.uniform(0.0, 0.4))
            assert peer.run("[lease.lost.is_set() for lease in held]") == [False] * 3
        until(lambda: peer.run("all(lease.held for lease in held)"), "all are held")
        assert watch.events("freed") == []
        assert peer.run("[lease.release() for lease in held]") == [True] * 3


@pytest.mark.req("one-way partition", "law 5")
def test_who_is_cut_off_gives_up_first(store: Store, tmp_path: Path) -> None:
    """Uncertain, told of the loss before anybody else has it; and when it is back, it stands in
    line, and in nobody's way."""
    grace = 3.0
    url = store.fresh(grace)
    told: list[float] = []
    with (
        Pulse() as pulse,
        store.behind_proxies(url) as (around, proxies),
        watching(url, tmp_path) as watch,
        holdfast.connect(around) as here,
        holdfast.connect(url) as there,
    ):
        watch.leads()
        mine = here.lock("x", ttl=LONG, on_lost=lambda lost: told.append(now())).acquire()
        assert mine
        presence = here._current.backend._presence  # type: ignore[attr-defined]
        cut_at = now()
        for proxy in proxies:
            proxy.blackhole()
        assert store.cut(presence) == 1
        until(lambda: mine.uncertain, "uncertain")
        lease = there.lock("x", ttl=LONG).acquire(timeout=20)
        granted = now()
        assert lease
        assert not mine.held
        assert granted - cut_at > grace
        until(lambda: told, "it was told")
        assert len(told) == 1
        assert told[0] < granted + pulse.worst
        assert watch.wait("freed")["name"] == "x"
        for proxy in proxies:
            proxy.heal()
        with waiting(here.lock("x", ttl=LONG)) as waiter:
            if store.shares:
                in_line(there, 1)
            assert lease.held
            assert lease.release()
            assert waiter.result()
            waiter.lease.release()


def test_what_was_given_up_is_given_back(store: Store, url: str) -> None:
    """Without any detector; and though the server still believes in the link that hangs."""
    with (
        store.behind_proxies(url) as (around, proxies),
        holdfast.connect(around) as locks,
    ):
        lease = locks.lock("x", ttl=LONG).acquire()
        assert lease
        for proxy in proxies:
            proxy.blackhole()
        until(lease.lost.is_set, "it was told")
        for proxy in proxies:
            proxy.heal()
        again = locks.lock("x", ttl=LONG).acquire(timeout=20)
        assert again
        assert again.held
        again.release()


# -- the detector's own troubles -------------------------------------------------------------------


def test_the_leader_is_killed_in_the_middle(store: Store, tmp_path: Path) -> None:
    """With a grace that leaves time enough to kill it in."""
    url = store.fresh(5)
    with (
        holdfast.connect(url) as locks,
        watching(url, tmp_path, "one") as one,
        watching(url, tmp_path, "two") as two,
        Peer(url) as peer,
    ):
        until(lambda: one.events("leading") or two.events("leading"), "one leads")
        leader, other = (one, two) if one.events("leading") else (two, one)
        peer.acquire("lock('x', ttl=60)")
        with waiting(locks.lock("x", ttl=LONG)) as waiter:
            if store.shares:
                in_line(locks, 1)
            peer.kill()
            leader.wait("missing")
            os.kill(leader.process.pid, signal.SIGKILL)
            lease = waiter.result()
            assert lease
            lease.release()
        assert leader.events("freed") == []
        other.wait("freed")


@pytest.mark.parametrize("kind", ["lock('x', ttl=60, renew=False)", "rwlock('x', ttl=60).read()"])
@pytest.mark.parametrize("how", ["renewed", "released", "not at all"])
@pytest.mark.req("law 5")
def test_a_detector_is_stopped_between_its_look_and_freeing(
    url: str, turned: Turned, store: Store, monkeypatch: pytest.MonkeyPatch, how: str, kind: str
) -> None:
    """The client is back, and has renewed, when a freeing arrives that was decided before."""
    if not store.shares and "rwlock" in kind:
        pytest.skip("capabilities: exclusive claims only")
    # The detector's grace is so short here that it decides while the client may still come back.
    monkeypatch.setattr("holdfast.sentinel.detector.grace_of", lambda presence: 0.1)
    sure = "not backend._doubted and len(backend._held)"
    with Peer(url.replace("crash_grace=1", "crash_grace=6")) as peer:
        peer.acquire(kind)
        peer.run("backend = locks._current.backend")
        number = peer.run("backend._number")
        presence = presence_of(peer)
        turned.turn()
        peer.signal(signal.SIGSTOP)
        until(lambda: store.cut(presence), "its link is cut")
        free = turned.roll.free

        async def late(suspects: list[Suspect], deadline: float) -> list[bool | None]:
            if how != "not at all":
                peer.signal(signal.SIGCONT)
                until(lambda: peer.run(f"backend._number > {number} and {sure}"), "it is back")
            if how == "released":
                assert peer.run("held[0].release()") is True
            freed: list[bool | None] = await free(suspects, deadline + 10)
            return freed

        monkeypatch.setattr(turned.roll, "free", late)
        until(lambda: turned.turn("freed", "changed"), "decided")
        if how == "not at all":
            assert turned.heard("freed") == 1
            peer.signal(signal.SIGCONT)
            until(lambda: peer.run("held[0].lost.is_set()"), "it was told")
            return
        assert turned.heard("freed") == 0
        assert turned.heard("changed") == 1
        if how == "renewed":
            until(lambda: peer.run("held[0].held"), "it holds")
            assert peer.run("held[0].release()") is True


def test_two_detectors_free_once(url: str, store: Store, turned: Turned) -> None:
    with holdfast.connect(plain(url)) as locks, Peer(url) as peer:
        other = Turned(locks)
        peer.acquire("lock('x', ttl=60)")
        peer.acquire("semaphore('y', 2, ttl=60)" if store.shares else "lock('y', ttl=60)")
        peer.kill()
        until(lambda: turned.turn("freed") + other.turn("freed") >= 2, "freed")
        turned.turn()
        other.turn()
        assert turned.heard("freed") + other.heard("freed") == 2
        other.close()


# -- who may, and who need not ---------------------------------------------------------------------


@pytest.mark.req("law 8", "fork after acquire")
def test_a_child_does_not_keep_its_parents_link(
    url: str, locks: holdfast.Locks, tmp_path: Path
) -> None:
    with watching(url, tmp_path) as watch, Peer(url) as peer:
        watch.leads()
        peer.acquire("lock('x', ttl=60)")
        child = peer.run("(pid := os.fork()) or time.sleep(60)")
        try:
            assert peer.run("held[0].held") is True
            peer.kill()
            lease = locks.lock("x").acquire(timeout=20)
            assert lease
            lease.release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_who_closes_leaves_no_link_and_no_thread(url: str, store: Store) -> None:
    before = set(store.links())
    threads = threading.active_count()
    for _ in range(3):
        with holdfast.connect(url) as locks, locks.lock("x"):
            assert len(set(store.links()) - before) == 1
    until(lambda: set(store.links()) == before, "no link is left")
    until(lambda: threading.active_count() == threads, "no thread is left")

    async def main() -> None:
        for _ in range(3):
            async with aio.connect(url) as locks, locks.lock("x"):
                pass

    asyncio.run(main())
    until(lambda: set(store.links()) == before, "no link is left")
