"""redlock://: what reviews found. Each test fails without the change that it is about."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

import holdfast
from holdfast import Misconfigured, Unavailable, aio
from holdfast.backends.redis.wire import pack
from holdfast.backends.redlock import backend as backends
from holdfast.backends.redlock import crew as crews
from holdfast.backends.redlock.backend import Backend
from holdfast.backends.redlock.ballot import Everybody
from holdfast.backends.redlock.letters import Letter
from holdfast.backends.redlock.nodes import Debt
from holdfast.backends.redlock.wires import DEAD
from holdfast.ports.clock import now
from holdfast.testing import FaultProxy
from holdfast.types import Claim, Grant, Unknown
from tests.faults.redis import SOON, asking_back, endlessly, fresh, stranger
from tests.servers import RedisMasters, RedisServer
from tests.waiting import until

pytestmark = pytest.mark.servers

OPTIONS = {"quarantine": "off", "max_ttl": 1000, "node_timeout": 1}
WAIT = {"node_timeout": 6, "request_timeout": 20}
SLOW = {**OPTIONS, "node_timeout": 5}
PORTS = pytest.mark.parametrize("port", ["sync", "aio"])


@pytest.fixture(scope="module")
def masters() -> Iterator[RedisMasters]:
    with RedisMasters(count=3) as masters:
        yield masters


def url_of(masters: RedisMasters, *others: str, real: int = 2, **options: object) -> str:
    """So many masters, and others."""
    hosts = [f"127.0.0.1:{node.port}" for node in masters.nodes[:real]]
    return fresh("redlock://" + ",".join([*others, *hosts]), **{**OPTIONS, **options})


def backend_of(locks: holdfast.Locks | aio.Locks) -> Backend:
    backend = locks._engine().backend
    assert isinstance(backend, Backend)
    return backend


def on(port: str, url: str, work: Callable[[Any], Any]) -> Any:
    """The same few steps on either port: `work` gets a client, and calls it by `await`."""

    class Sync:
        def __init__(self, locks: holdfast.Locks) -> None:
            self.locks = locks

        async def cycle(self) -> None:
            with self.locks.lock("x", ttl=60, timeout=5):
                pass

        async def names(self) -> list[str]:
            return [info.name for info in self.locks.inspect()]

        async def wait(self, seconds: float) -> None:
            time.sleep(seconds)

    class Async(Sync):
        async def cycle(self) -> None:
            async with self.locks.lock("x", ttl=60, timeout=5):  # type: ignore[attr-defined]
                pass

        async def names(self) -> list[str]:
            return [info.name for info in await self.locks.inspect()]  # type: ignore[misc]

        async def wait(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

    async def main() -> Any:
        async with aio.connect(url) as locks:
            return await work(Async(locks))  # type: ignore[arg-type]

    if port == "aio":
        return asyncio.run(main())
    with holdfast.connect(url) as locks:
        return asyncio.run(work(Sync(locks)))


@PORTS
@pytest.mark.req("R4", "R34")
def test_a_node_that_is_no_redis(
    masters: RedisMasters, port: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was an error of the parser, which ended every acquire, though the others are a quorum."""

    async def work(client: Any) -> None:
        for _ in range(3):
            await client.cycle()
        assert await client.names() == []

    with stranger(asking_back) as address:
        on(port, url_of(masters, address), work)
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]


@PORTS
@pytest.mark.req("R4", "law 5")
def test_a_node_that_never_stops_talking(masters: RedisMasters, port: str) -> None:
    """As long as there was something to read, nobody looked at the time: not before a quorum that
    needs this node has answered, and not while the client was closed."""

    async def work(client: Any) -> None:
        masters.nodes[0].pause()
        try:
            with pytest.raises(Unavailable, match="1 of 3 nodes"):
                await client.cycle()
        finally:
            masters.nodes[0].resume()
        await client.cycle()

    with stranger(endlessly) as address:
        began = now()
        on(port, url_of(masters, address), work)
        assert now() - began < 2 * SOON


@PORTS
@pytest.mark.req("R4", "B7")
def test_an_operator_reads_although_a_node_is_silent(masters: RedisMasters, port: str) -> None:
    """The first node was waited for as long as there was time, and none was left for the others."""
    url = url_of(masters, real=3)

    async def work(client: Any) -> None:
        masters.nodes[0].pause()
        try:
            assert await client.names() == ["held"]
        finally:
            masters.nodes[0].resume()

    with holdfast.connect(url) as other, other.lock("held", ttl=60):
        on(port, url, work)


@PORTS
@pytest.mark.req("law 3", "R34")
def test_a_farewell_that_is_refused_is_not_repeated_in_a_loop(
    masters: RedisMasters, port: str
) -> None:
    """Fifty times a second by a thread; and not at all by a task, which took it for done."""
    node = masters.nodes[0]

    async def work(client: Any) -> int:
        await client.cycle()
        before = int(node.info("stats")["total_error_replies"])
        debt = Debt("somebody", now() + 30, pack("NOSUCHCOMMAND"), b"")
        backend_of(client.locks)._members[0].owe(debt)
        begun = now()
        refused = 0
        while refused < 2 or now() < begun + 1.5:
            assert now() < begun + SOON, "it is not said again"
            await client.wait(0.3)
            refused = int(node.info("stats")["total_error_replies"]) - before
        assert refused <= 8 * (now() - begun)
        return refused

    assert on(port, url_of(masters, real=3), work) >= 2


@pytest.mark.req("R34")
def test_a_connection_that_nobody_looked_after_is_not_given_up(
    masters: RedisMasters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made while its crew lay idle, and taken for silent: a client that asks rarely went
    without that node's vote each second time."""
    monkeypatch.setattr(crews, "CONNECT", 0.05)
    with holdfast.connect(url_of(masters, real=3, node_timeout=0.05)) as locks:
        backend = backend_of(locks)
        crew = crews.Crew(backend._members, backend._council.settings, 0.05)
        wire = crew._begin(0, Letter(), Everybody(3))
        assert wire
        time.sleep(0.2)
        crew._look_around(now())
        assert wire.state != DEAD
        crew.close()


@pytest.mark.req("R20", "R34")
def test_many_renewals_in_one_letter_have_more_time(
    masters: RedisMasters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node had as much for a thousand as for one."""
    limits: list[float] = []

    async def ask(letter: object, ballot: object, deadline: float, *rest: object) -> None:
        limits.append(deadline)

    with holdfast.connect(url_of(masters, real=3, node_timeout=0.05)) as locks:
        backend = backend_of(locks)
        with monkeypatch.context() as patched:
            patched.setattr(backend._council, "ask", ask)
            patched.setattr(backend._port, "now", lambda: 100.0)
            for count in (1, 1000):
                claims = [Claim("x", f"o{n}", ttl=60.0) for n in range(count)]
                renewing = backend.renew([Grant(claim, 160.0, 1) for claim in claims], 109.0)
                with pytest.raises(StopIteration) as done:
                    renewing.send(None)
                assert all(isinstance(answer, Unknown) for answer in done.value.value)
    assert limits == pytest.approx([100.0505, 100.55])


def holds(node: RedisServer, keys: list[str], count: int) -> bool:
    return node.call("EXISTS", *keys) == count


@pytest.mark.req("R20", "law 6", "R34")
def test_a_node_is_told_again_of_many_leases_in_one_letter(
    masters: RedisMasters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a letter for each of them."""
    node = masters.nodes[2]
    with holdfast.connect(url_of(masters, real=3, node_timeout=5)) as locks:
        backend = backend_of(locks)
        leases = [locks.lock(f"x{n}", ttl=60).acquire() for n in range(20)]
        keys = [backend._writer.keys.lock(f"x{n}") for n in range(20)]
        ask, asked = backend._council.ask, 0

        def renew() -> None:
            renewing = backend.renew([lease._hold.grant for lease in leases if lease], now() + 9)
            with pytest.raises(StopIteration):
                renewing.send(None)

        async def counted(*args: Any) -> None:
            nonlocal asked
            asked += 1
            await ask(*args)

        renew()
        for one in masters.nodes:
            until(partial(holds, one, keys, 20), "all of them on every node")
        node.call("FLUSHALL")
        with monkeypatch.context() as patched:
            patched.setattr(backend._council, "ask", counted)
            renew()
        assert asked == 2
        until(partial(holds, node, keys, 20), "all of them again")
        for lease in leases:
            assert lease
            assert lease.release() is True
        until(partial(holds, node, keys, 0), "none of them")


@pytest.mark.req("R20", "R34")
def test_a_renewal_does_not_wait_for_a_connection_of_its_own() -> None:
    """By a task: to make one took longer than a node may take to answer."""
    with ExitStack() as stack:
        masters = stack.enter_context(RedisMasters(count=3))
        with holdfast.connect(fresh(masters.url, **OPTIONS)) as others, others.lock("x") as held:
            held.renew()  # so that the nodes know the script
        proxies = [
            stack.enter_context(FaultProxy(("127.0.0.1", node.port), framing="resp"))
            for node in masters.nodes
        ]
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)

        async def main() -> None:
            async with aio.connect(fresh(f"redlock://{hosts}", **OPTIONS | WAIT)) as locks:
                lease = await locks.lock("x", ttl=60).acquire()
                assert lease
                for proxy in proxies:
                    proxy.delay(3.5, "to_client")  # twice is too long
                await lease.renew()
                for proxy in proxies:
                    proxy.heal()
                await lease.release()

        asyncio.run(main())


def test_a_payer_that_was_interrupted_begins_again(masters: RedisMasters) -> None:
    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    with holdfast.connect(url_of(masters, real=3)) as locks:
        backend = backend_of(locks)
        debt = Debt("somebody", now() + 30, pack("PING"), b"")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(backend._port, "task", interrupted)
            with pytest.raises(KeyboardInterrupt):
                backend._members[0].owe(debt)
        assert not backend._payer._busy
        backend._members[0].owe(debt)
        until(lambda: not backend._members[0].debts, "it is paid")


@pytest.mark.req("R4", "R7", "wrong credentials")
def test_one_misconfigured_node_is_told_of_and_does_not_hide_that_another_is_away(
    masters: RedisMasters, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody was told as long as the others were a quorum; and when they were not any more, that
    could be waited for, it was an error for good."""
    node = masters.nodes[0]
    node.call("ACL", "SETUSER", "somebody", "on", ">right", "~*", "&*", "+@all")
    first, second, third = (f"127.0.0.1:{node.port}" for node in masters.nodes)
    url = fresh(f"redlock://somebody:wrong@{first},@{second},@{third}", **OPTIONS)
    try:
        with holdfast.connect(url, request_timeout=1.0) as locks:
            told: list[str] = []
            soon = now() + 20
            while not told and now() < soon:  # two others may be done before it has refused
                with locks.lock("x", timeout=5):
                    pass
                told = [line.getMessage() for line in caplog.records if "has no vote" in line.msg]
            for _ in range(3):
                with locks.lock("x", timeout=5):
                    pass
            told = [line.getMessage() for line in caplog.records if "has no vote" in line.msg]
            assert len(told) == 1
            assert first in told[0]
            assert "user name or password" in told[0]
            assert "wrong" not in caplog.text
            masters.nodes[1].pause()
            with pytest.raises(Unavailable) as refused:
                locks.lock("x").acquire()
            assert "user name or password" in str(refused.value)
    finally:
        masters.nodes[1].resume()
        node.call("ACL", "DELUSER", "somebody")
    with (
        holdfast.connect(fresh(f"redlock://u:p@{first},u:p@{second},u:p@{third}")) as locks,
        pytest.raises(Misconfigured),
    ):
        locks.lock("x").acquire()


@pytest.mark.req("R7", "R34")
def test_busy_is_not_unavailable_however_short_the_wait(
    masters: RedisMasters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that answer in ten milliseconds were given up by who had two."""
    monkeypatch.setattr(backends, "COURTESY", 5.0)  # more than any machine needs
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(FaultProxy(("127.0.0.1", node.port), framing="resp"))
            for node in masters.nodes
        ]
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        locks = stack.enter_context(holdfast.connect(fresh(f"redlock://{hosts}", **SLOW)))
        stack.enter_context(locks.lock("x", ttl=60, timeout=10))
        for proxy in proxies:
            proxy.delay(0.01, "to_client")
        for _ in range(5):
            assert locks.lock("x").acquire(timeout=0.002) is None


@PORTS
@pytest.mark.req("R4", "B1", "B7")
def test_what_somebody_else_wrote_where_votes_and_tokens_are_kept(
    masters: RedisMasters, port: str
) -> None:
    """A text where a token is kept ended every acquire of that name, and hid all locks from an
    operator; so did a vote that is no text, and one that is of another kind."""
    url = url_of(masters, real=3)
    prefix = url.partition("prefix=")[2].partition("&")[0]
    for node in masters.nodes:
        node.call("SET", f"{prefix}:{{x}}:f", "somebody's")
        node.call("EVAL", "return redis.call('SET', KEYS[1], '\\255\\254')", 1, f"{prefix}:{{y}}")
        node.call("RPUSH", f"{prefix}:{{z}}", "somebody's")
    masters.nodes[0].call("SET", f"{prefix}:{{held}}:f", "somebody's")

    async def work(client: Any) -> None:
        await client.cycle()
        assert await client.names() == ["held", "y"]

    with holdfast.connect(url) as other, other.lock("held", ttl=60):
        on(port, url, work)
    tokens = [
        str(node.call("GET", f"{prefix}:{{x}}:f")).partition(" ")[0] for node in masters.nodes
    ]
    assert sum(token.isdigit() for token in tokens) >= 2
