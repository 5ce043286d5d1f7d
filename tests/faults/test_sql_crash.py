"""The crash detector on MariaDB and PostgreSQL (`strategy=row`): what is their own. The rest is in
`test_crash.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Misconfigured, Unavailable, Unsupported
from holdfast.ports.clock import now
from holdfast.ports.thread import drive
from tests.cli.harness import holdfast as command
from tests.conformance.sql import PAGES, statements
from tests.faults.crash import (
    MariaDBStore,
    PostgresStore,
    Store,
    Turned,
    plain,
    presence_of,
    watching,
)
from tests.faults.peers import Peer
from tests.faults.redis import waiting
from tests.servers import MariaDBServer, PostgresServer
from tests.servers.pgbouncer import PgBouncer
from tests.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.req("R23")]

LONG = 60.0
KINDS: dict[str, type[Store]] = {"mariadb": MariaDBStore, "postgres": PostgresStore}


@pytest.fixture(params=list(KINDS))
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    store = KINDS[request.param](request.getfixturevalue(f"{request.param}_server"))
    yield store
    store.close()


@pytest.fixture
def url(store: Store) -> str:
    return store.fresh(1)


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


def test_who_is_watched_may_look_after_its_tables(url: str, locks: holdfast.Locks) -> None:
    with locks.lock("x"):
        pass
    with holdfast.connect(plain(url)) as other:
        assert locks.schema() == other.schema()
    assert locks.sweep(0) >= 1
    swept = command("sweep", url, "--idle", "0")
    assert swept.returncode == 0, swept.stderr


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
            until(lambda: lease.held, "held")
            assert not lost
            watch.wait("freed")  # it says so after it has done so
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
            with Peer(url.replace("crash_grace=1", "crash_grace=4")) as alive:
                alive.acquire("lock('y', ttl=60)")
                peer.acquire("lock('x', ttl=60)")
                peer.kill()
                watch.wait("freed")
                assert alive.run("held[0].lost.is_set()") is False
                until(lambda: alive.run("held[0].held"), "the living holds")
        assert {event["name"] for event in watch.events("freed")} == {"x"}


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
    where = store.fresh(1).removeprefix(store.url)
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
