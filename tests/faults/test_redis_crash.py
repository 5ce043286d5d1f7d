"""The crash detector on one Redis: deaths, pauses, cut links, partitions, and deaths of its own."""

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
from holdfast import Misconfigured, Unsupported, aio
from holdfast.core.presence import Look, Suspect
from holdfast.ports.clock import now
from holdfast.ports.thread import drive
from holdfast.testing import FaultProxy
from tests.cli.harness import holdfast as command
from tests.faults.crash import Turned, cut, links, watching
from tests.faults.peers import Peer
from tests.faults.redis import fresh, in_line, until, waiting
from tests.servers import RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.req("R23")]

GRACE = 1.0
LONG = 60.0
MARGIN = 8.0
"""This machine may be busy: here are bounds; `tests/stress/crash.py` has the figures."""


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return fresh(redis_server.url, crash_grace=GRACE)


@pytest.fixture
def locks(url: str) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url) as locks:
        yield locks


def plain(url: str) -> str:
    """The same store, for somebody who did not opt in."""
    return url.replace(f"crash_grace={GRACE}", "crash_grace=0")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("lock('x', ttl=60)", lambda locks: locks.lock("x", ttl=LONG)),
        ("lock('x', ttl=60, renew=False)", lambda locks: locks.lock("x", ttl=LONG)),
        ("rwlock('x', ttl=60).read()", lambda locks: locks.rwlock("x", ttl=LONG).write()),
        ("semaphore('x', 1, ttl=60)", lambda locks: locks.semaphore("x", 1, ttl=LONG)),
    ],
)
@pytest.mark.req("holder killed -9", "R2", "law 6")
def test_a_dead_clients_lock_is_handed_over_after_its_grace(
    url: str, locks: holdfast.Locks, tmp_path: Path, theirs: str, ours: Any
) -> None:
    with watching(url, tmp_path) as watch, Peer(url) as peer:
        watch.leads()
        peer.acquire(theirs)
        with waiting(ours(locks)) as waiter:
            in_line(locks, 1)
            killed = now()
            peer.kill()
            lease = waiter.result()
            assert lease
            assert GRACE < waiter.at - killed < GRACE + MARGIN
            freed = watch.wait("freed")
            assert (freed["name"], freed["grace"]) == ("x", GRACE)
            assert lease.release()


def test_an_asyncio_client_is_watched_as_well(url: str, tmp_path: Path) -> None:
    async def wait() -> float:
        async with aio.connect(url) as locks, locks.lock("x", ttl=LONG, timeout=20) as lease:
            begun = now()
            await asyncio.sleep(2 * GRACE)
            assert lease.held
            return begun

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
        killed = now()
        peer.kill()
        assert GRACE < asyncio.run(wait()) - killed < GRACE + MARGIN
        watch.wait("freed")


def test_many_locks_of_many_clients(url: str, locks: holdfast.Locks, tmp_path: Path) -> None:
    """All of the dead, none of the living, none of those who did not opt in."""
    with (
        watching(url, tmp_path) as watch,
        Peer(url) as dead,
        Peer(url) as alive,
        Peer(plain(url)) as other,
    ):
        watch.leads()
        for peer, name in ((dead, "d"), (alive, "a"), (other, "o")):
            peer.run(
                f"held.extend(locks.lock(f'{name}{{n}}', ttl=60).acquire() for n in range(700))"
            )
        dead.kill()
        other.kill()
        watch.wait("freed", 700)
        time.sleep(2 * GRACE)
        assert {event["name"][0] for event in watch.events("freed")} == {"d"}
        assert len(watch.events("freed")) == 700
        assert alive.run("all(lease.held for lease in held)") is True
        names = {info.name[0] for info in locks.inspect() if not info.name.startswith("holdfast")}
        assert names == {"a", "o"}


# -- pauses, and links that are cut ----------------------------------------------------------------


@pytest.mark.req("client paused longer than its lease")
def test_a_stop_of_less_than_half_the_grace_costs_nothing(url: str, tmp_path: Path) -> None:
    with watching(url, tmp_path) as watch, Peer(url) as peer:
        watch.leads()
        peer.acquire("lock('x', ttl=60)")
        for _ in range(5):
            peer.signal(signal.SIGSTOP)
            time.sleep(0.45 * GRACE)
            peer.signal(signal.SIGCONT)
            assert peer.run("held[0].lost.is_set()") is False
            until(lambda: peer.run("held[0].held"), "held again")
        assert watch.events("missing") == []


@pytest.mark.req("client paused longer than its lease")
def test_a_stop_longer_than_the_grace_is_uncertain_and_then_held(url: str, tmp_path: Path) -> None:
    """A stopped process keeps its connections: it is not dead. Nobody else gets its lock."""
    with watching(url, tmp_path) as watch, Peer(url) as peer, holdfast.connect(url) as locks:
        watch.leads()
        peer.acquire("lock('x', ttl=60)")
        # Looked at by the very next line after the pause: no thread of holdfast has run before.
        peer.start("(os.kill(os.getpid(), signal.SIGSTOP), held[0].uncertain, held[0].held)[1:]")
        time.sleep(2 * GRACE)
        assert locks.lock("x").acquire(blocking=False) is None
        peer.signal(signal.SIGCONT)
        uncertain, held = peer.result()
        assert uncertain is not held  # the link may have been quicker than that line
        until(lambda: peer.run("held[0].held"), "held again")
        assert watch.events("missing") == []


@pytest.mark.req("law 5")
def test_who_is_stopped_without_its_link_has_lost(
    redis_server: RedisServer, url: str, locks: holdfast.Locks, tmp_path: Path
) -> None:
    with watching(url, tmp_path) as watch, Peer(url) as peer:
        watch.leads()
        peer.acquire("lock('x', ttl=60)")
        [presence] = links(redis_server)
        peer.start("(os.kill(os.getpid(), signal.SIGSTOP), held[0].held)[1]")
        time.sleep(0.1)
        assert cut(redis_server, presence) == 1
        with waiting(locks.lock("x", ttl=LONG)) as waiter:
            lease = waiter.result()
            assert lease
            peer.signal(signal.SIGCONT)
            assert peer.result() is False
            until(lambda: peer.run("held[0].lost.is_set()"), "it was told")
            assert peer.run("held[0].held") is False
            assert peer.run("held[0].release()") is False
            assert lease.held
            lease.release()
        watch.wait("freed")


def test_links_cut_at_random_while_renewals_work(
    redis_server: RedisServer, url: str, locks: holdfast.Locks, tmp_path: Path
) -> None:
    with watching(url, tmp_path) as watch, Peer(url) as peer:
        watch.leads()
        peer.acquire("lock('x', ttl=3)")
        peer.acquire("lock('y', ttl=60, renew=False)")
        doubts = 0
        killed = 0
        end = now() + 6 * GRACE
        while now() < end:
            killed += cut(redis_server)
            time.sleep(random.uniform(0.0, 0.4 * GRACE))
            doubts += not peer.run("held[0].held and held[1].held")
        assert killed > 10
        assert doubts == 0
        assert watch.events("freed") == []
        assert peer.run("[lease.release() for lease in held]") == [True, True]


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy(("127.0.0.1", redis_server.port), framing="resp") as proxy:
        yield proxy


def cut_off(proxy: FaultProxy, server: RedisServer, presence: str) -> float:
    """Nothing comes through any more, and the server has seen the end of this link."""
    moment = now()
    proxy.blackhole()
    assert cut(server, presence) == 1
    return moment


@pytest.mark.req("one-way partition", "law 5")
def test_who_is_cut_off_gives_up_first(
    redis_server: RedisServer, proxy: FaultProxy, url: str, tmp_path: Path
) -> None:
    """Uncertain at half the grace, told of the loss before anybody else has it; and when it is
    back, it stands in line."""
    told: list[float] = []
    behind = url.replace(str(redis_server.port), str(proxy.port))
    with (
        watching(url, tmp_path) as watch,
        holdfast.connect(behind) as here,
        holdfast.connect(url) as there,
    ):
        watch.leads()
        mine = here.lock("x", ttl=LONG, on_lost=lambda lost: told.append(now())).acquire()
        assert mine
        [presence] = links(redis_server)
        cut_at = cut_off(proxy, redis_server, presence)
        until(lambda: mine.uncertain, "uncertain")
        assert now() - cut_at < GRACE / 2 + 0.3
        lease = there.lock("x", ttl=LONG).acquire(timeout=20)
        granted = now()
        assert lease
        assert not mine.held
        assert granted - cut_at > GRACE
        assert len(told) == 1
        assert told[0] < granted
        assert watch.wait("freed")["name"] == "x"
        proxy.heal()
        with waiting(here.lock("x", ttl=LONG)) as waiter:
            in_line(there, 1)
            assert lease.held
            assert lease.release()
            assert waiter.result()
            waiter.lease.release()


@pytest.mark.req("one-way partition", "law 5")
def test_a_body_is_cancelled_before_anybody_else_has_its_lock(
    redis_server: RedisServer, proxy: FaultProxy, url: str, tmp_path: Path
) -> None:
    left: list[float] = []

    async def hold() -> None:
        async with aio.connect(url.replace(str(redis_server.port), str(proxy.port))) as locks:
            with pytest.raises(holdfast.LeaseLost):
                async with locks.lock("x", ttl=LONG):
                    ready.set()
                    try:
                        await asyncio.sleep(30)
                    finally:
                        left.append(now())

    ready = threading.Event()
    with watching(url, tmp_path) as watch, holdfast.connect(url) as there:
        watch.leads()
        thread = threading.Thread(target=lambda: asyncio.run(hold()), daemon=True)
        thread.start()
        assert ready.wait(10)
        [presence] = links(redis_server)
        cut_off(proxy, redis_server, presence)
        lease = there.lock("x", ttl=LONG).acquire(timeout=20)
        granted = now()
        assert lease
        assert len(left) == 1
        assert left[0] < granted
        proxy.heal()
        thread.join(20)
        assert not thread.is_alive()
        lease.release()


def test_what_was_given_up_is_given_back(
    redis_server: RedisServer, proxy: FaultProxy, url: str
) -> None:
    """Without any detector: who was cut off and is back does not stand in its own way."""
    with holdfast.connect(url.replace(str(redis_server.port), str(proxy.port))) as locks:
        lease = locks.lock("x", ttl=LONG).acquire()
        assert lease
        with proxy.blackhole():
            until(lease.lost.is_set, "it was told")
        begun = now()
        again = locks.lock("x", ttl=LONG).acquire(timeout=10)
        assert again
        assert again.held
        assert now() - begun < 5
        again.release()


# -- the detector's own troubles -------------------------------------------------------------------


def test_the_leader_is_killed_in_the_middle(
    url: str, locks: holdfast.Locks, tmp_path: Path
) -> None:
    with (
        watching(url, tmp_path, "one") as one,
        watching(url, tmp_path, "two") as two,
        Peer(url) as peer,
    ):
        until(lambda: one.events("leading") or two.events("leading"), "one leads")
        leader, other = (one, two) if one.events("leading") else (two, one)
        peer.acquire("lock('x', ttl=60)")
        with waiting(locks.lock("x", ttl=LONG)) as waiter:
            in_line(locks, 1)
            peer.kill()
            leader.wait("missing")
            os.kill(leader.process.pid, signal.SIGKILL)
            lease = waiter.result()
            assert lease
            lease.release()
        assert leader.events("freed") == []
        other.wait("freed")


def test_a_leader_that_is_ended_hands_over_at_once(url: str, tmp_path: Path) -> None:
    with watching(url, tmp_path, "one") as one:
        one.leads()
        with watching(url, tmp_path, "two") as two:
            with holdfast.connect(url) as locks:
                until(lambda: any(i.waiters for i in locks.inspect("holdfast:sentinel")), "in line")
            shown = command("sentinel", "--status", url=url)
            assert shown.returncode == 0
            assert shown.stdout.count("standby") == 1
            begun = now()
            one.process.terminate()
            assert one.process.wait(10) == 0
            two.leads()
            assert now() - begun < 8


@pytest.fixture
def turned(url: str) -> Iterator[Turned]:
    with holdfast.connect(plain(url)) as locks:
        turned = Turned(locks)
        yield turned
        turned.close()


@pytest.mark.parametrize("how", ["renewed", "released", "not at all"])
def test_a_detector_is_stopped_between_its_look_and_freeing(
    url: str, turned: Turned, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The client is back, and has renewed, when a freeing arrives that was decided before."""
    with Peer(url) as peer:
        peer.acquire("lock('x', ttl=60, renew=False)")
        turned.turn()
        [presence] = links(redis_server)
        peer.signal(signal.SIGSTOP)
        cut(redis_server, presence)
        free = turned.roll.free

        async def late(suspects: list[Suspect], deadline: float) -> list[bool | None]:
            if how != "not at all":
                peer.signal(signal.SIGCONT)
                until(lambda: presence in links(redis_server), "it is back")
                if how == "released":
                    assert peer.run("held[0].release()") is True
                else:
                    until(lambda: peer.run("held[0].held"), "it is sure again")
            freed: list[bool | None] = await free(suspects, deadline + 10)
            return freed

        monkeypatch.setattr(turned.roll, "free", late)
        # So that it is decided while the client may still come back: it gives up at 0.85 graces.
        monkeypatch.setattr("holdfast.sentinel.detector.grace_of", lambda presence: 0.3 * GRACE)
        until(lambda: turned.turn("freed", "changed"), "decided")
        if how == "not at all":
            assert turned.heard("freed") == 1
            peer.signal(signal.SIGCONT)
            until(lambda: peer.run("held[0].lost.is_set()"), "it was told")
            return
        assert turned.heard("freed") == 0
        assert turned.heard("changed") == 1
        if how == "renewed":
            assert peer.run("held[0].held") is True
            assert peer.run("held[0].release()") is True


def test_two_detectors_free_once(url: str, turned: Turned) -> None:
    with holdfast.connect(plain(url)) as locks, Peer(url) as peer:
        other = Turned(locks)
        peer.acquire("lock('x', ttl=60)")
        peer.kill()
        until(
            lambda: turned.turn("freed") + other.turn("freed"),
            "freed",
        )
        turned.turn()
        other.turn()
        assert turned.heard("freed") + other.heard("freed") == 1
        other.close()


def test_absence_begins_anew_with_another_ground(
    url: str, turned: Turned, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    """Here: the detector's own connection is another one."""
    with Peer(url) as peer:
        peer.acquire("lock('x', ttl=60)")
        turned.turn()
        killed = now()
        peer.kill()
        until(lambda: turned.turn("missing"), "missing")
        while now() < killed + 0.7 * GRACE:
            turned.turn()
        cut_at = now()
        for line in str(redis_server.call("CLIENT", "LIST")).splitlines():
            if "cmd=client|list" in line or "cmd=client " in line:
                redis_server.call("CLIENT", "KILL", "ID", line.split()[0].removeprefix("id="))
        with pytest.raises(holdfast.Unavailable):
            drive(turned.detector.turn())
        assert turned.heard("anew") == 1
        until(lambda: turned.turn("freed"), "freed")
        assert now() - cut_at > GRACE
        assert turned.heard("missing") == 2


def test_a_look_and_a_search_pass_over_strangers(
    url: str, turned: Turned, redis_server: RedisServer, locks: holdfast.Locks
) -> None:
    """Locks without a presence, free ones, keys that are no locks, names that are not ours."""
    with holdfast.connect(plain(url)) as other, other.lock("other"), other.rwlock("rw").read():
        mine = [locks.lock("mine").acquire(), locks.rwlock("mine too").read().acquire()]
        look: Look = drive(turned.roll.look(now() + 1))
        assert set(look.present) >= set(links(redis_server))
        assert drive(turned.roll.claims(look.present, now() + 5)) == []
        found = drive(turned.roll.claims((), now() + 5))
        assert {suspect.name for suspect in found} == {"mine", "mine too"}
        assert drive(turned.roll.free(found, now() + 1)) == [True, True]
        assert drive(turned.roll.free(found, now() + 1)) == [False, False]
        assert [lease.release() for lease in mine if lease] == [False, False]
        assert {i.name for i in other.inspect()} == {"other", "rw"}


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
            killed = now()
            peer.kill()
            lease = locks.lock("x").acquire(timeout=20)
            assert lease
            assert now() - killed < GRACE + MARGIN
            lease.release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_who_closes_leaves_no_link_and_no_thread(url: str, redis_server: RedisServer) -> None:
    before = set(links(redis_server))
    threads = threading.active_count()
    for _ in range(5):
        with holdfast.connect(url) as locks, locks.lock("x"):
            assert len(set(links(redis_server)) - before) == 1
    assert set(links(redis_server)) == before
    until(lambda: threading.active_count() == threads, "no thread is left")

    async def main() -> None:
        for _ in range(3):
            async with aio.connect(url) as locks, locks.lock("x"):
                pass

    asyncio.run(main())
    until(lambda: set(links(redis_server)) == before, "no link is left")


def test_permissions(tmp_path: Path) -> None:
    """As the user of the page; and without its last line it is said what is missing."""
    page = Path(__file__).parents[2] / "docs" / "backends" / "redis-acl.txt"
    user = page.read_text().replace("PASSWORD", "secret").split()[1:]
    with RedisServer() as server:
        server.call("ACL", "SETUSER", *user)
        url = server.url.replace("redis://", "redis://holdfast:secret@") + "?crash_grace=1"
        with watching(url, tmp_path) as watch, Peer(url) as peer:
            watch.leads()
            peer.acquire("lock('x', ttl=60)")
            peer.kill()
            watch.wait("freed")
        server.call("ACL", "SETUSER", "holdfast", "-client|setname", "-client|list")
        with holdfast.connect(url) as locks, pytest.raises(Misconfigured, match="setname"):
            locks.lock("x").acquire(timeout=5)
        refused = command("sentinel", url=url)
        assert refused.returncode == 78
        assert "has the exact ACL" in refused.stderr
        assert "secret" not in refused.stderr


@pytest.mark.parametrize("value", ["-1", "0.05", "1e9", "nan", "soon"])
def test_graces_that_cannot_be(value: str) -> None:
    with pytest.raises(Misconfigured, match="crash_grace"):
        holdfast.connect(f"redis://localhost?crash_grace={value}")
    with pytest.raises(Misconfigured, match="crash_grace"):
        holdfast.connect("redis://localhost", crash_grace=value)


@pytest.mark.parametrize("store", ["memory://", "sqlite://", "redis://localhost?dialect=plain"])
def test_stores_that_have_no_use_for_it(store: str) -> None:
    with pytest.raises(Unsupported, match="crash_grace"):
        holdfast.connect(store, crash_grace=1)
    refused = command("sentinel", store)
    assert refused.returncode == 78
    assert "crash detector" in refused.stderr
