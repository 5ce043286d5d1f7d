"""The crash detector on one Redis: what is Redis's own. The rest is in `test_crash.py`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Misconfigured, Unsupported, aio
from holdfast.core.presence import Look
from holdfast.ports.clock import now
from holdfast.ports.thread import drive
from holdfast.testing import FaultProxy
from tests.cli.harness import holdfast as command
from tests.faults.crash import Pulse, Turned, cut, links, plain, watching
from tests.faults.peers import Peer
from tests.faults.redis import fresh
from tests.servers import RedisServer
from tests.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.req("R23")]

GRACE = 1.0
LONG = 60.0


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return fresh(redis_server.url, crash_grace=GRACE)


@pytest.fixture
def locks(url: str) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url) as locks:
        yield locks


def test_many_locks_of_many_clients(redis_server: RedisServer, tmp_path: Path) -> None:
    """All of the dead, none of the living, none of those who did not opt in. With a grace that who
    lives can keep on a busy machine."""
    grace = 4.0
    url = fresh(redis_server.url, crash_grace=grace)
    with (
        holdfast.connect(url) as locks,
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
        time.sleep(grace)
        assert {event["name"][0] for event in watch.events("freed")} == {"d"}
        assert len(watch.events("freed")) == 700
        assert alive.run("any(lease.lost.is_set() for lease in held)") is False
        until(lambda: alive.run("all(lease.held for lease in held)"), "the living hold")
        names = {info.name[0] for info in locks.inspect() if not info.name.startswith("holdfast")}
        assert names == {"a", "o"}


# -- pauses, and links that are cut ----------------------------------------------------------------


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy(("127.0.0.1", redis_server.port), framing="resp") as proxy:
        yield proxy


@pytest.mark.req("one-way partition", "law 5")
def test_a_body_is_cancelled_before_anybody_else_has_its_lock(
    redis_server: RedisServer, proxy: FaultProxy, tmp_path: Path
) -> None:
    url = fresh(redis_server.url, crash_grace=3)
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
    with Pulse() as pulse, watching(url, tmp_path) as watch, holdfast.connect(url) as there:
        watch.leads()
        thread = threading.Thread(target=lambda: asyncio.run(hold()), daemon=True)
        thread.start()
        assert ready.wait(LONG)
        [presence] = links(redis_server)
        proxy.blackhole()
        assert cut(redis_server, presence) == 1
        lease = there.lock("x", ttl=LONG).acquire(timeout=20)
        granted = now()
        assert lease
        until(lambda: left, "it has left")
        assert len(left) == 1
        assert left[0] < granted + pulse.worst
        proxy.heal()
        thread.join(20)
        assert not thread.is_alive()
        lease.release()


# -- the detector's own troubles -------------------------------------------------------------------


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


def test_absence_begins_anew_with_another_ground(
    url: str, turned: Turned, redis_server: RedisServer
) -> None:
    """Here: the detector's own connection is another one."""
    grace = 6.0
    with Peer(plain(url).replace("crash_grace=0", f"crash_grace={grace:g}")) as peer:
        peer.acquire("lock('x', ttl=60)")
        turned.turn()
        killed = now()
        peer.kill()
        until(lambda: turned.turn("missing"), "missing")
        while now() < killed + 0.4 * grace:  # the rest is for a machine that stands still
            turned.turn()
        cut_at = now()
        for line in str(redis_server.call("CLIENT", "LIST")).splitlines():
            if "cmd=client|list" in line or "cmd=client " in line:
                redis_server.call("CLIENT", "KILL", "ID", line.split()[0].removeprefix("id="))
        with pytest.raises(holdfast.Unavailable):
            drive(turned.detector.turn())
        assert turned.heard("anew") == 1
        until(lambda: turned.turn("freed"), "freed")
        assert now() - cut_at > grace
        assert turned.heard("missing") == 2


def test_a_look_and_a_search_pass_over_strangers(
    url: str, turned: Turned, redis_server: RedisServer, locks: holdfast.Locks
) -> None:
    """Locks without a presence, free ones, keys that are no locks, names that are not ours."""
    with holdfast.connect(plain(url)) as other, other.lock("other"), other.rwlock("rw").read():
        mine = [locks.lock("mine").acquire(), locks.rwlock("mine too").read().acquire()]
        look: Look = drive(turned.roll.look(now() + 5))
        assert set(look.present) >= set(links(redis_server))
        assert drive(turned.roll.claims(look.present, now() + 5)) == []
        found = drive(turned.roll.claims((), now() + 5))
        assert {suspect.name for suspect in found} == {"mine", "mine too"}
        assert drive(turned.roll.free(found, now() + 5)) == [True, True]
        assert drive(turned.roll.free(found, now() + 5)) == [False, False]
        assert [lease.release() for lease in mine if lease] == [False, False]
        assert {i.name for i in other.inspect()} == {"other", "rw"}


# -- who may, and who need not ---------------------------------------------------------------------


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
