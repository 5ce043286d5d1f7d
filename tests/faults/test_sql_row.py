"""Rows and claims: what can happen to their connections, transactions and tables. On both ports.

What every store must survive is in the conformance suite; here is what only databases do. Each test
runs on MariaDB and on PostgreSQL, as the user of docs/backends/*-grants.sql.

Over 400 lines: a list of cases, each read by itself, that share two servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from holdfast import Mode, Unavailable
from holdfast.backends.postgres.session import PostgresSession
from holdfast.backends.sql import bells
from holdfast.backends.sql.ear import SessionEar
from holdfast.backends.sql.row import RowBackend
from holdfast.backends.sql.rules import Line
from holdfast.backends.sql.session import Session, Statement
from holdfast.testing import FaultProxy
from holdfast.testing.conformance import Strategy
from holdfast.testing.conformance.harness import LONG, Api, Theme, refused, take
from holdfast.testing.conformance.suite import Suite
from holdfast.types import AlreadyLost, Busy, Cell, Claim, Grant, Lost, Released, Renewed
from tests.conformance.sql import (
    USER,
    MySQLNamedLock,
    MySQLStrategy,
    PostgresStrategy,
    SqlStrategy,
)

pytestmark = pytest.mark.servers

Fault = Callable[[SqlStrategy, FaultProxy], object]

BROKEN: dict[str, Fault] = {
    "no reply": lambda s, proxy: proxy.drop_reply(to=s.about_locks),
    "no reply, reset": lambda s, proxy: proxy.reset_on_reply(to=s.about_locks),
    "half a reply": lambda s, proxy: proxy.reset_on_reply(after=1, to=s.about_locks),
    "half a request": lambda s, proxy: proxy.reset_on_request(after=40, matching=s.about_locks),
    "no request": lambda s, proxy: proxy.drop_request(matching=s.about_locks),
    "in pieces": lambda s, proxy: proxy.split(3),
}


def sql(api: Api) -> SqlStrategy:
    assert isinstance(api.strategy, SqlStrategy)
    return api.strategy


class Killing:
    """How a database is told to end the sessions of our user."""

    @staticmethod
    def kill(strategy: SqlStrategy) -> int:
        if isinstance(strategy, PostgresStrategy):
            found = strategy.say(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (USER,)
            )
            return len(found)
        found = strategy.say(
            "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = %s", (USER,)
        )
        for (number,) in found:
            with contextlib.suppress(Exception):  # it ended by itself
                strategy.say(f"KILL {number}")
        return len(found)


@contextlib.contextmanager
def row_locked(strategy: SqlStrategy, name: str) -> Iterator[None]:
    """Somebody has locked the name's row, in a transaction that goes on."""
    other = strategy.connect_admin()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT * FROM holdfast WHERE name = %s FOR UPDATE", (name.encode(),))
            cursor.fetchall()
            yield
            cursor.execute("ROLLBACK")
    finally:
        other.close()


class RowFaults(Theme):
    # -- connections ------------------------------------------------------------------------------

    @pytest.mark.req("RST mid-command", "reply lost, command applied")
    @pytest.mark.parametrize("fault", BROKEN)
    async def test_an_exchange_breaks(self, api: Api, fault: str) -> None:
        """Attempt, renewal and release, each: resolved or released, nothing left, nobody stuck."""
        client = api.connect(request_timeout=5 if fault == "in pieces" else 2)
        proxy = sql(api).proxy
        await (await take(client.lock("warm up"))).release()
        BROKEN[fault](sql(api), proxy)
        with contextlib.suppress(Unavailable):
            lease = await client.lock("x").acquire(timeout=LONG)
            assert lease is not None, "its own lock was in its way"
            await lease.release()
        await api.free("x")
        lease = await take(client.lock("x"))
        BROKEN[fault](sql(api), proxy)
        with contextlib.suppress(Unavailable):
            await lease.renew()
        assert lease.held
        await lease.renew()
        BROKEN[fault](sql(api), proxy)
        assert await lease.release() is True
        await api.free("x")

    @pytest.mark.req("MySQL 1213 / 1205 / 3058, KILL", "PostgreSQL backend terminated")
    async def test_all_sessions_are_killed(self, api: Api) -> None:
        """A lease is not bound to a connection: it stays, and who waits still gets its turn."""
        client = api.connect(request_timeout=LONG)
        lease = await take(client.lock("x"))
        waiter = await api.queue_up(client.lock("x"))
        for _ in range(3):
            assert Killing.kill(sql(api))
            await lease.renew()
        assert lease.held
        assert await refused(api.there.lock("x"))
        Killing.kill(sql(api))
        await lease.release()
        handed_over = await waiter
        assert handed_over is not None
        await handed_over.release()
        await api.free("x")

    @pytest.mark.req("MySQL 1213 / 1205 / 3058, KILL", "PostgreSQL backend terminated", "law 2")
    async def test_sessions_are_killed_while_they_wait_for_a_row(self, api: Api) -> None:
        client = api.connect(request_timeout=LONG)
        lease = await take(api.there.lock("x"))
        with row_locked(sql(api), "x"):
            attempt = api.spawn(client.lock("x").acquire(timeout=LONG))
            await asyncio.sleep(0.2)
            Killing.kill(sql(api))
            await asyncio.sleep(0.1)
        await api.in_line("x", 1)
        await lease.release()
        handed_over = await attempt
        assert handed_over is not None
        await handed_over.release()
        await api.free("x")

    @pytest.mark.req("R7", "law 3", "reply lost, command applied")
    async def test_time_runs_out_before_the_place_in_line_is_acknowledged(self, api: Api) -> None:
        """It was seen busy, so that is the answer; and the place that it has is given up."""
        lease = await take(api.here.lock("x"))
        client = api.connect()
        assert await refused(client.lock("x"))
        strategy = sql(api)
        entered = (b"INSERT INTO", strategy.dialect.quote("holdfast_claims").encode())
        strategy.proxy.drop_reply(to=lambda frame: all(word in frame for word in entered))
        begun = api.now()
        assert await client.lock("x").acquire(timeout=0.5) is None
        assert api.now() - begun >= 0.5
        await api.in_line("x", 0)
        await lease.release()
        await api.free("x")

    @pytest.mark.req("one-way partition")
    async def test_a_waiters_connections_are_half_open(self, api: Api) -> None:
        """They stay open and nothing arrives: it is noticed by time limits alone."""
        client = api.connect(request_timeout=1.0)
        lease = await take(api.there.lock("x"))
        waiter = await api.queue_up(client.lock("x"))
        sql(api).proxy.one_way("to_client")
        with pytest.raises(Unavailable):
            await asyncio.wait_for(waiter, LONG)
        api.strategy.heal()
        await lease.release()
        await api.free("x")

    # -- transactions -----------------------------------------------------------------------------

    @pytest.mark.req("MySQL 1213 / 1205 / 3058, KILL", "law 4")
    async def test_a_row_is_locked_for_longer_than_anybody_waits(self, api: Api) -> None:
        client = api.connect(request_timeout=LONG)
        await (await take(client.lock("x"))).release()
        with row_locked(sql(api), "x"):
            begun = api.now()
            with pytest.raises(Unavailable):
                await client.lock("x").acquire(timeout=0.3)
            assert api.now() - begun < 8
            with pytest.raises(Unavailable):
                await client.lock("x").acquire(timeout=1.3)
            assert api.now() - begun < 16
        await api.free("x")

    @pytest.mark.req("MySQL 1213 / 1205 / 3058, KILL")
    async def test_a_row_is_locked_for_a_while(self, api: Api) -> None:
        """Longer than the database waits for a row, and shorter than we do: asked again."""
        client = api.connect(request_timeout=LONG)
        lease = await take(client.lock("x"))
        waiter = await api.queue_up(api.there.lock("x"))
        with row_locked(sql(api), "x"):
            release = api.spawn(lease.release())
            await asyncio.sleep(1.5)
            assert not release.done()
        assert await release is True
        handed_over = await waiter
        assert handed_over is not None
        await handed_over.release()

    @pytest.mark.req("MySQL 1213 / 1205 / 3058, KILL", "law 4")
    async def test_statements_have_a_time_limit(self, api: Api) -> None:
        """The server ends each after a moment, and a row is locked for longer: asked again as long
        as the caller has time, and then told as what it is, and not as somebody else's lock."""
        strategy = sql(api)
        with strategy.statements_limited(0.2):
            client = api.connect(request_timeout=LONG)
            await (await take(client.lock("free"))).release()
            lease = await take(client.lock("x"))
            waiter = await api.queue_up(api.there.lock("x"))
            with row_locked(strategy, "x"), row_locked(strategy, "free"):
                release = api.spawn(lease.release())
                with pytest.raises(Unavailable):
                    await client.lock("free").acquire(timeout=0.7)
                assert not release.done()
            assert await release is True
            handed_over = await waiter
            assert handed_over is not None
            await handed_over.release()
            await api.free("x")

    @pytest.mark.req("MySQL 1213 / 1205 / 3058, KILL")
    async def test_a_deadlock(self, api: Api) -> None:
        """Somebody locks a claim and then the name; a step does it the other way round. Whoever
        the database chooses: the release goes through, and who waited has it."""
        strategy = sql(api)
        lease = await take(api.here.lock("x"))
        waiter = await api.queue_up(api.there.lock("x"))
        other = strategy.connect_admin()
        try:
            with other.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SELECT * FROM holdfast_claims WHERE kind = 0 FOR UPDATE")
                cursor.fetchall()
                release = api.spawn(lease.release())
                await asyncio.sleep(0.2)  # it has the row and wants the claim

                def cross() -> None:
                    with contextlib.suppress(Exception):  # it may be the victim
                        cursor.execute("SELECT * FROM holdfast WHERE name = 'x' FOR UPDATE")
                        cursor.fetchall()
                    cursor.execute("ROLLBACK")

                await asyncio.get_running_loop().run_in_executor(None, cross)
        finally:
            other.close()
        assert await release is True
        handed_over = await waiter
        assert handed_over is not None
        await handed_over.release()
        await api.free("x")

    @pytest.mark.req("server paused")
    async def test_who_is_stopped_inside_a_step_blocks_nobody_for_long(self, api: Api) -> None:
        """It has locked the row, and says nothing more: the server ends its session."""
        strategy = sql(api)
        lease = await take(api.here.lock("x", ttl=10 * LONG))
        raw = api.raw()
        await raw.attempt(raw.claim("warm up"), queue=False)
        backend = raw.backend
        assert isinstance(backend, RowBackend)
        stopped, go_on = threading.Event(), threading.Event()

        def stop(line: Line) -> None:
            if not stopped.is_set():
                stopped.set()
                go_on.wait(LONG)

        def look() -> None:
            from holdfast.ports.thread import ThreadPort, drive

            other = strategy.backend(api.url)
            assert isinstance(other, RowBackend)
            other.open(ThreadPort(), None)  # type: ignore[arg-type]
            step = other._steps.step(b"x", b"", stop, lambda _: 1, api.now() + 3 * LONG)
            assert drive(step) == 1
            drive(other.close())

        stopping = asyncio.get_running_loop().run_in_executor(None, look)
        await asyncio.get_running_loop().run_in_executor(None, stopped.wait)
        begun = api.now()
        assert await lease.release() is True
        assert 0.5 < api.now() - begun < 5.0
        go_on.set()
        await stopping
        await api.free("x")

    @pytest.mark.req("law 3", "R10")
    async def test_a_renewal_between_a_look_and_its_consequence(self, api: Api) -> None:
        """A reader seems to have expired, and is renewed before it is dropped: it stays."""
        strategy = sql(api)
        reader, writer = api.raw(), api.raw()
        held = reader.claim("x", Mode.SHARED)
        grant = await reader.grant(held)
        strategy.expire_now("x")
        backend = writer.backend
        assert isinstance(backend, RowBackend)
        renewed = 0
        original = backend._steps._drop

        async def drop(*args: object) -> None:
            nonlocal renewed
            if not renewed:
                renewed = 1
                now = strategy.dialect.now
                strategy.say(f"UPDATE holdfast_claims SET expires = {now} + 30000000")
            await original(*args)  # type: ignore[arg-type]

        backend._steps._drop = drop  # type: ignore[method-assign, assignment]
        assert isinstance(await writer.attempt(writer.claim("x"), queue=False), Busy)
        assert renewed
        assert isinstance(await reader.release(grant), Released)

    @pytest.mark.req("law 3", "waiter withdrawn", "several dead waiters in a row")
    async def test_who_leaves_behind_the_dead_is_not_let_in(self, api: Api) -> None:
        """Its own withdrawal finds the lock free and the line's head dead, and reads on."""
        raw = api.raw()
        grant = await raw.grant(raw.claim("x"))
        for _ in range(3):
            await raw.queue(raw.claim("x", ttl=api.short))
        leaver, stays = raw.claim("x"), raw.claim("x")
        await raw.queue(leaver)
        await api.pass_time(1.2 * api.short)
        sql(api).expire_now("x")
        assert isinstance(await raw.withdraw(leaver, tombstone=False), Released)
        assert isinstance(await raw.attempt(stays, queue=False), Grant)
        assert isinstance(await raw.release(grant), AlreadyLost)

    # -- time -------------------------------------------------------------------------------------

    @pytest.mark.req("client wall clock +-1 h")
    @pytest.mark.parametrize("offset", [-3600.0, 3600.0])
    async def test_the_clients_wall_clock_decides_nothing(
        self, api: Api, offset: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease = await take(api.there.lock("x"))
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + offset)
        assert await refused(api.here.lock("x"))
        own = await take(api.here.lock("y", ttl=60, renew=api.often))
        await api.renewed(own)
        assert own.held
        waiter = await api.queue_up(api.here.lock("x"))
        await lease.release()
        handed_over = await waiter
        assert handed_over is not None
        assert handed_over.fence is not None
        assert handed_over.fence > lease.fence
        await handed_over.release()
        await own.release()

    # -- cost -------------------------------------------------------------------------------------

    @pytest.mark.req("R20", "thousands of renewals due at once")
    async def test_a_thousand_leases_are_renewed_by_one_statement(self, api: Api) -> None:
        """On one connection. The rows are made by hand: a thousand acquires say no more."""
        raw, strategy, size = api.raw(), sql(api), 1000
        claims = [Claim(f"n{n}", secrets.token_hex(16), ttl=30.0) for n in range(size)]
        for names in (claims[:500], claims[500:]):
            row = f"(%s, %s, %s, {strategy.dialect.now} + 5000000, 0, 30000000, 0, '')"
            values = [(c.name.encode(), 1, c.owner.encode()) for c in names]
            strategy.say(
                "INSERT INTO holdfast (name, version, owner, expires, since, ttl, line, info)"
                f" VALUES {', '.join([row] * len(names))}",
                tuple(value for row in values for value in row),
            )
        grants = [Grant(claim, api.now() + 5, 1) for claim in claims]
        lost = Claim("lost", secrets.token_hex(16), ttl=30.0)
        await raw.renew(*grants)  # connects
        proxy = strategy.proxy
        before, connections = proxy.requests, len(proxy.connections)
        answers = await raw.renew(*grants)
        assert proxy.requests - before == 1
        assert len(proxy.connections) == connections == 1
        assert all(isinstance(answer, Renewed) for answer in answers)
        # One that is lost among them is told from the others.
        *answers, last = await raw.renew(*grants[1:], Grant(lost, api.now() + 5, 1))
        assert all(isinstance(answer, Renewed) for answer in answers)
        assert isinstance(last, Lost)
        strategy.say("DELETE FROM holdfast")

    @pytest.mark.req("R9")
    async def test_a_hand_over_costs_the_same_however_many_wait(self, api: Api) -> None:
        """Round trips of release and confirmation, counted at the protocol: nobody else's."""
        costs: list[int] = []
        for crowd in (2, 40):
            raw = api.raw()
            backend: Any = raw.backend  # whose claims nobody attends: a slow machine ends none
            backend._patience, backend._steps._window = 30.0, 30_000_000
            name = f"crowd of {crowd}"
            grant = await raw.grant(raw.claim(name))
            claims = [raw.claim(name) for _ in range(crowd)]
            for claim in claims:
                await raw.queue(claim)
            before = sql(api).proxy.requests
            await raw.release(grant)
            answer = await raw.attempt(claims[0], queue=True)
            costs.append(sql(api).proxy.requests - before)
            assert isinstance(answer, Grant)
            for claim in claims:
                await raw.withdraw(claim)
        assert costs == [4, 4]  # each a look at the line, and what follows from it


class PostgresOnly(Theme):
    @pytest.mark.req("R9")
    async def test_who_is_called_need_not_ask(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The call names the token; a hand-over is what the release costs."""
        asked: list[str] = []
        confirmed = RowBackend._confirmed

        async def find_out(self: RowBackend, claim: Claim, deadline: float) -> Grant | None:
            asked.append(claim.name)
            return await confirmed(self, claim, deadline)

        monkeypatch.setattr(RowBackend, "_confirmed", find_out)
        here, there = (api.connect(heartbeat=4 * LONG, window=4 * LONG) for _ in range(2))
        makers: list[Callable[[Any], Any]] = [
            lambda locks: locks.lock("the first, while it begins to listen"),
            lambda locks: locks.lock("x", ttl=20 * LONG),
            lambda locks: locks.rwlock("y", ttl=20 * LONG).write(),
            lambda locks: locks.semaphore("z", 1, ttl=20 * LONG),
        ]
        for make in makers:
            lease = await take(make(here))
            waiter = await api.queue_up(make(there))
            await lease.release()
            handed_over = await waiter
            assert handed_over is not None
            assert handed_over.held
            assert handed_over.fence is None or handed_over.fence > (lease.fence or 0)
            assert await handed_over.release() is True
        assert set(asked) <= {"the first, while it begins to listen"}

    @pytest.mark.req("R9")
    async def test_the_next_is_called_and_does_not_find_out_by_its_heartbeat(
        self, api: Api
    ) -> None:
        here, there = (api.connect(heartbeat=2 * LONG) for _ in range(2))
        for one, other in ((here.lock("x"), there.lock("x")), (here.lock("y"), here.lock("y"))):
            lease = await take(one)
            waiter = await api.queue_up(other)
            await lease.release()
            handed_over = await waiter
            assert handed_over is not None
            await handed_over.release()

    @pytest.mark.req("cells", "R9")
    async def test_who_begins_to_watch_while_the_ear_is_made_is_called(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first to wait for a cell comes between LISTEN and its answer."""
        writer, raw = api.raw(), api.raw()
        first = await writer.write("c", b"one")
        room = raw.backend._room  # type: ignore[attr-defined]
        listen = PostgresSession.batch
        waiting: list[asyncio.Task[Cell | None]] = []
        loop = asyncio.get_running_loop()
        begun = threading.Event()

        def begin() -> None:
            waiting.append(api.spawn(raw.wait_for_change("c", first.version, within=10 * LONG)))

        async def late(self: Session, statements: Sequence[Statement], deadline: float) -> Any:
            answer = await listen(self, statements, deadline)
            if statements[0][0].startswith("LISTEN") and not begun.is_set():
                begun.set()
                if api.port == "aio":
                    begin()
                    await asyncio.sleep(0.1)
                else:
                    loop.call_soon_threadsafe(begin)
                    while not room.watched:
                        time.sleep(0.001)
            return answer

        monkeypatch.setattr(PostgresSession, "batch", late)
        grant = await writer.grant(writer.claim("x"))
        busy = await raw.queue(raw.claim("x"))
        entered = room.enter(
            raw.claim("x"), busy.token
        )  # an attendant is needed, and not for cells
        while not waiting or not room.hears:
            await asyncio.sleep(0.01)
        second = await writer.write("c", b"two")
        assert await asyncio.wait_for(waiting[0], 2 * LONG) == second
        room.leave(entered)
        await writer.release(grant)


class TestPostgresRowFaults(RowFaults, PostgresOnly, Suite):
    strategy = PostgresStrategy

    @classmethod
    def make_strategy(cls, request: pytest.FixtureRequest) -> Strategy:
        return cls.strategy(request.getfixturevalue("postgres_server"))


class MySQLOnly(Theme):
    @pytest.mark.req("R9")
    async def test_who_waits_in_the_same_client_need_not_ask(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """MySQL calls nobody; but what a step of this client did, this client knows."""

        async def all_wait(
            self: SessionEar, owners: Sequence[bytes], deadline: float
        ) -> set[bytes]:
            return set(owners)

        monkeypatch.setattr(SessionEar, "still", all_wait)
        client = api.connect(heartbeat=2 * LONG)
        for lock in (client.lock("x"), client.semaphore("y", 1)):
            lease = await take(lock)
            waiter = await api.queue_up(lock)
            await lease.release()
            handed_over = await waiter
            assert handed_over is not None
            await handed_over.release()

    @pytest.mark.req("R9")
    async def test_who_waits_is_not_asked_for_more_often_because_others_come(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Behind one of this client's own: it has nothing to learn."""
        asked = 0
        still = SessionEar.still

        async def counted(self: SessionEar, owners: Sequence[bytes], deadline: float) -> set[bytes]:
            nonlocal asked
            asked += 1
            return await still(self, owners, deadline)

        monkeypatch.setattr(SessionEar, "still", counted)
        lease = await take(api.there.lock("x"))
        client = api.connect(heartbeat=2 * LONG, poll=0.5)
        turns = [await api.queue_up(client.lock("x"))]
        await api.pass_time(0.5)  # by now it asks rarely
        asked = 0
        begun = api.now()
        for _ in range(8):
            turns.append(await api.queue_up(client.lock("x")))
            await api.pass_time(0.06)
        assert asked <= 2 + (api.now() - begun) / 0.32
        await lease.release()
        for turn in turns:
            handed_over = await turn
            assert handed_over is not None
            await handed_over.release()


class TestMySQLRowFaults(RowFaults, MySQLOnly, Suite):
    strategy = MySQLStrategy

    @classmethod
    def make_strategy(cls, request: pytest.FixtureRequest) -> Strategy:
        return cls.strategy(request.getfixturevalue("mariadb_server"))


class Bells(Theme):
    @pytest.mark.req("R9")
    async def test_a_release_rings(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who is next waits for the bell of who is ahead, and hears it."""
        heard: list[bool | None] = []
        wait = bells.Bells.wait

        async def listening(self: bells.Bells, owner: bytes, until: float) -> bool | None:
            heard.append(await wait(self, owner, until))
            return heard[-1]

        monkeypatch.setattr(bells.Bells, "wait", listening)
        for _ in range(3):
            lease = await take(api.here.lock("x"))
            waiter = await api.queue_up(api.there.lock("x"))
            await api.pass_time(0.1)  # it listens by now
            await lease.release()
            handed_over = await waiter
            assert handed_over is not None
            await handed_over.release()
        assert any(heard)


class TestMySQLBells(Bells, Suite):
    strategy = MySQLNamedLock

    @classmethod
    def make_strategy(cls, request: pytest.FixtureRequest) -> Strategy:
        return cls.strategy(request.getfixturevalue("mariadb_server"))
