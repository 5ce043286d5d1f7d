"""The crash detector on MariaDB and PostgreSQL (`strategy=row`): deaths, pauses, cut links,
partitions, restarts, and deaths of its own. How fast it is, is in `tests/stress/crash.py`."""

from __future__ import annotations

import asyncio
import itertools
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
from holdfast import Misconfigured, Unavailable, Unsupported, aio
from holdfast.core.presence import Suspect
from holdfast.ports.clock import now
from holdfast.ports.thread import drive
from holdfast.testing import FaultProxy
from tests.cli.harness import holdfast as command
from tests.conformance.sql import PAGES, statements
from tests.faults.crash import MariaDBStore, PostgresStore, Store, Turned, watching
from tests.faults.peers import Peer
from tests.faults.redis import in_line, until, waiting
from tests.servers import MariaDBServer, PostgresServer
from tests.servers.pgbouncer import PgBouncer

pytestmark = [pytest.mark.servers, pytest.mark.req("R23")]

GRACE = 1.0
LONG = 60.0
KINDS: dict[str, type[Store]] = {"mariadb": MariaDBStore, "postgres": PostgresStore}
_numbers = itertools.count()


@pytest.fixture(params=list(KINDS))
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    store = KINDS[request.param](request.getfixturevalue(f"{request.param}_server"))
    yield store
    store.close()


def tables(store: Store, grace: float = GRACE) -> str:
    """Tables of one's own."""
    number = f"{os.getpid()}_{next(_numbers)}"
    return f"{store.url}?table=crash_{number}&crash_grace={grace:g}{store.options}"


@pytest.fixture
def url(store: Store) -> str:
    return tables(store)


@pytest.fixture
def locks(url: str) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url) as locks:
        yield locks


def plain(url: str) -> str:
    """The same store, for somebody who did not opt in."""
    return url.replace(f"crash_grace={GRACE:g}", "crash_grace=0")


@pytest.fixture
def turned(url: str) -> Iterator[Turned]:
    with holdfast.connect(plain(url)) as locks:
        turned = Turned(locks)
        yield turned
        turned.close()


def presence_of(peer: Peer) -> str:
    return str(peer.run("locks._current.backend._presence"))


# -- deaths ----------------------------------------------------------------------------------------


@pytest.mark.req("holder killed -9", "R2", "law 6")
def test_the_dead_are_freed_after_their_grace_and_nobody_else_is(
    url: str, locks: holdfast.Locks, tmp_path: Path
) -> None:
    """All modes, fixed leases too; handed over to who is in line."""
    with (
        watching(url, tmp_path) as watch,
        Peer(url) as dead,
        Peer(url) as alive,
        Peer(plain(url)) as other,
    ):
        watch.leads()
        dead.acquire("lock('x', ttl=60)")
        dead.acquire("lock('fixed', ttl=60, renew=False)")
        dead.acquire("rwlock('rw', ttl=60).read()")
        dead.acquire("semaphore('sem', 1, ttl=60)")
        for peer, name in ((alive, "a"), (other, "o")):
            peer.acquire(f"lock('{name}', ttl=60)")
            peer.acquire("rwlock('shared', ttl=60).read()")
        dead.acquire("rwlock('shared', ttl=60).read()")
        wanted: list[Any] = [
            locks.lock("x", ttl=LONG),
            locks.lock("fixed", ttl=LONG),
            locks.rwlock("rw", ttl=LONG).write(),
            locks.semaphore("sem", 1, ttl=LONG),
        ]
        with waiting(wanted[0]) as waiter:
            in_line(locks, 1)
            killed = now()
            dead.kill()
            other.kill()
            lease = waiter.result()
            assert lease
            assert GRACE < waiter.at - killed < LONG / 2
        assert all(lock.acquire(timeout=20) for lock in wanted[1:])
        watch.wait("freed", 5)
        assert {event["name"] for event in watch.events("freed")} == {
            "x", "fixed", "rw", "sem", "shared",
        }  # fmt: skip
        assert alive.run("[lease.held for lease in held]") == [True, True]
        [shared] = locks.inspect("shared")
        assert len(shared.holders) == 2
        [nobodys] = locks.inspect("o")
        assert nobodys.holders, "who did not opt in is not touched"
        shown = command("sentinel", "--status", url=url)
        assert shown.returncode == 0
        assert shown.stdout.startswith("leader ")


def test_an_asyncio_client_is_watched_as_well(url: str, store: Store, tmp_path: Path) -> None:
    """Its link, too, is seen, and replaced when it is cut."""

    async def wait() -> None:
        async with aio.connect(url) as locks, locks.lock("x", ttl=LONG, timeout=20) as lease:
            for _ in range(3):
                assert store.cut() >= 1
                await asyncio.sleep(0.3 * GRACE)
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
def test_a_stopped_process_is_not_dead(url: str, tmp_path: Path) -> None:
    """Below half the grace it costs nothing; above, the lease is uncertain, and held again."""
    with watching(url, tmp_path) as watch, Peer(url) as peer, holdfast.connect(url) as locks:
        watch.leads()
        peer.acquire("lock('x', ttl=60)")
        for _ in range(3):
            peer.signal(signal.SIGSTOP)
            time.sleep(0.4 * GRACE)
            peer.signal(signal.SIGCONT)
            assert peer.run("held[0].lost.is_set()") is False
            until(lambda: peer.run("held[0].held"), "held again")
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
    store: Store, url: str, locks: holdfast.Locks, tmp_path: Path
) -> None:
    with watching(url, tmp_path) as watch, Peer(url) as peer:
        watch.leads()
        peer.acquire("lock('x', ttl=60)")
        presence = presence_of(peer)
        peer.start("(os.kill(os.getpid(), signal.SIGSTOP), held[0].held)[1]")
        time.sleep(0.1)
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
    url = tables(store, 4)
    with watching(url, tmp_path) as watch, Peer(url) as peer:
        watch.leads()
        peer.acquire("lock('x', ttl=3)")
        peer.acquire("lock('y', ttl=60, renew=False)")
        peer.acquire("rwlock('z', ttl=60).read()")
        killed = 0
        end = now() + 4
        while now() < end:
            killed += store.cut(presence_of(peer))
            time.sleep(random.uniform(0.0, 0.4))
            assert peer.run("[lease.lost.is_set() for lease in held]") == [False] * 3
        assert killed > 3
        until(lambda: peer.run("all(lease.held for lease in held)"), "all are held")
        assert watch.events("freed") == []
        assert peer.run("[lease.release() for lease in held]") == [True] * 3


@pytest.mark.req("one-way partition", "law 5")
def test_who_is_cut_off_gives_up_first(store: Store, url: str, tmp_path: Path) -> None:
    """Uncertain, told of the loss before anybody else has it; and when it is back, it stands in
    line, and in nobody's way."""
    told: list[float] = []
    with (
        FaultProxy(("127.0.0.1", store.port), framing=store.framing) as proxy,
        watching(url, tmp_path) as watch,
        holdfast.connect(url.replace(str(store.port), str(proxy.port))) as here,
        holdfast.connect(url) as there,
    ):
        watch.leads()
        mine = here.lock("x", ttl=LONG, on_lost=lambda lost: told.append(now())).acquire()
        assert mine
        [presence] = store.links()
        cut_at = now()
        proxy.blackhole()
        assert store.cut(presence) == 1
        until(lambda: mine.uncertain, "uncertain")
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


def test_what_was_given_up_is_given_back(store: Store, url: str) -> None:
    """Without any detector; and though the server still believes in the link that hangs."""
    with (
        FaultProxy(("127.0.0.1", store.port), framing=store.framing) as proxy,
        holdfast.connect(url.replace(str(store.port), str(proxy.port))) as locks,
    ):
        lease = locks.lock("x", ttl=LONG).acquire()
        assert lease
        with proxy.blackhole():
            until(lease.lost.is_set, "it was told")
        again = locks.lock("x", ttl=LONG).acquire(timeout=20)
        assert again
        assert again.held
        again.release()


def test_a_new_link_takes_the_name_of_one_that_hangs(store: Store, url: str) -> None:
    """The server has not heard of the old one's end: it is seen throughout, and then only the
    new one."""
    with holdfast.connect(plain(url)) as locks:
        backend: Any = locks._current.backend
        old = drive(backend.appear("0123456789abcdef/1", now() + 5))
        drive(old.ping(now() + 5))
        first = store.links()["0123456789abcdef/1"]
        new = drive(backend.appear("0123456789abcdef/1", now() + 5))
        drive(new.ping(now() + 5))
        if isinstance(store, MariaDBStore):
            assert store.links()["0123456789abcdef/1"] != first
            with pytest.raises(Unavailable):
                drive(old.ping(now() + 5))
        old.close()
        begun = now()
        drive(new.rest(begun + 0.05))
        assert now() >= begun + 0.05
        new.cut()
        with pytest.raises(Unavailable):
            drive(new.rest(now() + 5))
        new.close()
        until(lambda: "0123456789abcdef/1" not in store.links(), "it is gone")


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


@pytest.mark.parametrize("kind", ["lock('x', ttl=60, renew=False)", "rwlock('x', ttl=60).read()"])
@pytest.mark.parametrize("how", ["renewed", "released", "not at all"])
@pytest.mark.req("law 5")
def test_a_detector_is_stopped_between_its_look_and_freeing(
    url: str, turned: Turned, store: Store, monkeypatch: pytest.MonkeyPatch, how: str, kind: str
) -> None:
    """The client is back, and has renewed, when a freeing arrives that was decided before."""
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
        store.cut(presence)
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


@pytest.mark.req("law 5")
def test_a_reader_is_renewed_between_the_look_and_its_deletion(
    url: str, turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims that share are renewed without the lock of their name's row."""
    with holdfast.connect(url) as locks:
        lease = locks.rwlock("x", ttl=LONG).read().acquire()
        assert lease
        drive(turned.roll.look(now() + 5))
        found = drive(turned.roll.claims((), now() + 5))
        assert [suspect.name for suspect in found] == ["x"]
        drop = turned.roll._steps._drop
        renewals = iter((True, False))

        async def late(*words: Any) -> None:
            if next(renewals):
                assert lease.renew()
            await drop(*words)

        monkeypatch.setattr(turned.roll._steps, "_drop", late)
        assert drive(turned.roll.free(found, now() + 10)) == [False]
        assert lease.release() is True


def test_every_renewal_changes_the_stamp(url: str, store: Any, turned: Turned) -> None:
    """Though the database's clock was set back by an hour meanwhile: which is the same as an expiry
    that is an hour too late."""
    table = url.partition("table=")[2].partition("&")[0]
    with holdfast.connect(url) as locks:
        leases = [locks.lock("x").acquire(), locks.rwlock("y").read().acquire()]
        for name, where in ((table, ""), (f"{table}_claims", "")):
            if isinstance(store, MariaDBStore):
                name = f"{store.server.database}.{name}"
                store.say(f"UPDATE {name} SET expires = expires + 3600000000{where}")
            else:
                store.say(f"UPDATE {name} SET expires = expires + 3600000000 RETURNING 1")
        drive(turned.roll.look(now() + 5))
        found = drive(turned.roll.claims((), now() + 5))
        assert len(found) == 2
        for lease in leases:
            assert lease
            assert lease.renew()
        assert drive(turned.roll.free(found, now() + 10)) == [False, False]
        assert [lease.release() for lease in leases if lease] == [True, True]


def test_two_detectors_free_once(url: str, turned: Turned) -> None:
    with holdfast.connect(plain(url)) as locks, Peer(url) as peer:
        other = Turned(locks)
        peer.acquire("lock('x', ttl=60)")
        peer.acquire("semaphore('y', 2, ttl=60)")
        peer.kill()
        until(lambda: turned.turn("freed") + other.turn("freed") >= 2, "freed")
        turned.turn()
        other.turn()
        assert turned.heard("freed") + other.heard("freed") == 2
        other.close()


def test_a_look_and_a_search_pass_over_strangers(
    url: str, turned: Turned, locks: holdfast.Locks
) -> None:
    """Locks without a presence, free ones, names and words of others that look like ours."""
    lure = {"job": '","presence":"x/1', "presence ": '"presence":"y/1"'}
    with (
        holdfast.connect(plain(url)) as other,
        other.lock("other", metadata=lure),
        other.rwlock("rw").read(),
        locks.lock("mine", metadata=lure),
        locks.rwlock("mine too").read(),
    ):
        other.lock("free").acquire().release()  # type: ignore[union-attr]
        for _ in range(3):
            turned.turn()
        assert turned.said == []
        found = drive(turned.roll.claims((), now() + 5))
        assert {suspect.name for suspect in found} == {"mine", "mine too"}
        look = drive(turned.roll.look(now() + 5))
        assert {suspect.presence for suspect in found} == set(look.present)
        assert drive(turned.roll.claims(look.present, now() + 5)) == []


# -- servers that change ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MariaDBServer, PostgresServer])
@pytest.mark.req("failover with the lock unreplicated")
def test_a_restart_shorter_than_the_grace_costs_nobody_anything(kind: Any, tmp_path: Path) -> None:
    """All absences begin anew with the server; the dead are still found."""
    with kind() as server:
        url = f"{server.url}?crash_grace=20&request_timeout=20"
        with (
            watching(url, tmp_path) as watch,
            holdfast.connect(url) as locks,
            Peer(url.replace("=20&", "=3&", 1)) as peer,
        ):
            watch.leads()
            lost: list[object] = []
            lease = locks.lock("x", ttl=LONG, on_lost=lost.append).acquire(timeout=10)
            assert lease
            peer.acquire("lock('y', ttl=60)")
            peer.kill()
            watch.wait("missing")
            server.kill()
            server.start()
            restarted = now()
            again = locks.lock("y", ttl=LONG).acquire(timeout=30)
            assert again
            assert now() - restarted > 2.5
            until(lambda: lease.held, "held", 20)
            assert not lost
            assert {event["name"] for event in watch.events("freed")} == {"y"}
            assert lease.release() is True
            again.release()


def test_a_server_that_is_demoted_without_a_word_is_left() -> None:
    """It answers, but nobody looks at it any more. (PostgreSQL ends connections when it is
    demoted.)"""
    with MariaDBServer() as server:
        store = MariaDBStore(server)
        with holdfast.connect(f"{server.url}?crash_grace=3") as locks:
            lease = locks.lock("x", ttl=LONG).acquire(timeout=10)
            assert lease
            backend: Any = locks._current.backend
            roll = backend._inner.roll()
            assert drive(roll.look(now() + 5)).present == {}
            begun = store.links()
            store.say("SET GLOBAL read_only = 1")
            until(lambda: store.links() != begun, "the link is given up")
            with pytest.raises(Unavailable, match="replica"):
                drive(roll.look(now() + 5))
            drive(roll.close())
            until(lease.lost.is_set, "it was told")
            store.say("SET GLOBAL read_only = 0")
        store.close()


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


@pytest.mark.parametrize("kind", [MariaDBServer, PostgresServer])
def test_permissions(kind: Any, tmp_path: Path) -> None:
    """Clients and the detector are two users with the grants of the page, and nothing else."""
    with kind() as server:
        page = "mysql" if kind is MariaDBServer else "postgresql"
        with holdfast.connect(server.url) as admin:
            for text in admin.schema():
                server.query(text if page == "postgresql" else f"USE holdfast; {text}")
        grants = [
            text
            for text in statements((PAGES / f"{page}-grants.sql").read_text())
            if "_rows" not in text and "_fence" not in text
        ]
        for user in ("app", "watcher"):
            server.query(f"CREATE USER {user}")
            for grant in grants:
                grant = grant.replace("TO app", f"TO {user}")
                server.query(grant if page == "postgresql" else f"USE holdfast; {grant}")
        root = "root@" if kind is MariaDBServer else "postgres@"
        url = f"{server.url.replace(root, 'app@')}?crash_grace=1"
        with watching(url.replace("app@", "watcher@"), tmp_path) as watch, Peer(url) as peer:
            watch.leads()
            with Peer(url) as alive:
                alive.acquire("lock('y', ttl=60)")
                peer.acquire("lock('x', ttl=60)")
                peer.kill()
                watch.wait("freed")
                assert alive.run("held[0].held") is True
        assert {event["name"] for event in watch.events("missing")} == {"x"}


def lie(locks: holdfast.Locks) -> None:
    """A link through a pooler that lets it meet one server after the other."""
    backend: Any = locks._current.backend
    link = drive(backend.appear("0123456789abcdef/1", now() + 5))
    with waiting(locks.lock("x")):  # so that there is a second server
        pass
    try:
        for _ in range(50):
            drive(link.ping(now() + 5))
            occupied = drive(backend._desk._ordinary.take(now() + 5))
            drive(occupied.run("BEGIN", (), now() + 5))
            try:
                drive(link.ping(now() + 5))
            finally:
                drive(occupied.run("ROLLBACK", (), now() + 5))
                backend._desk._ordinary.give(occupied)
    finally:
        link.close()


@pytest.mark.req("Galera, PgBouncer")
def test_behind_a_pooler(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Refused, unless the user says that each client has a connection of its own; that this is not
    so is noticed by a ping."""
    store = PostgresStore(postgres_server)
    where = tables(store).removeprefix(store.url)
    try:
        with PgBouncer(postgres_server, "session") as pooler:
            url = pooler.url + where
            with (
                holdfast.connect(url) as locks,
                pytest.raises(Misconfigured, match="pooler=session"),
            ):
                locks.lock("x").acquire(timeout=5)
            url += "&pooler=session"
            with watching(store.url + where, tmp_path) as watch, Peer(url) as peer:
                watch.leads()
                peer.acquire("lock('x', ttl=60)")
                assert presence_of(peer) in store.links()
                peer.kill()
                watch.wait("freed")
        with PgBouncer(postgres_server, "transaction", 3) as pooler:
            url = plain(pooler.url + where + "&pooler=session")
            with holdfast.connect(url) as locks, pytest.raises(Unavailable, match="another sess"):
                lie(locks)
    finally:
        store.close()


@pytest.mark.parametrize("strategy", ["advisory", "for-update", "optimistic"])
@pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
def test_strategies_that_have_no_use_for_it(scheme: str, strategy: str) -> None:
    where = f"{scheme}://app@localhost/db?strategy={strategy}"
    with pytest.raises(Unsupported, match="strategy=row"):
        holdfast.connect(where, crash_grace=1)
    refused = command("sentinel", where)
    assert refused.returncode == 78
    assert "crash detector" in refused.stderr
