"""redlock://: what a process is left with, and what it leaves: threads, sockets, exit, fork.

Over 400 lines: cases, each read by itself, on five servers which they share.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import aio
from holdfast.backends.redis.keys import Keys
from holdfast.backends.redlock import backend as backends
from holdfast.backends.redlock.backend import Backend
from holdfast.backends.url import parse
from holdfast.testing import FaultProxy
from tests.faults.redis import fresh
from tests.faults.test_processes import in_child
from tests.servers import RedisMasters
from tests.waiting import until

pytestmark = pytest.mark.servers

OPTIONS = {"quarantine": "off", "max_ttl": 1000, "node_timeout": 2}
QUICK = {**OPTIONS, "node_timeout": 0.2}
"""Where nodes do not answer."""


@pytest.fixture(scope="module")
def masters() -> Iterator[RedisMasters]:
    with RedisMasters(count=5) as masters:
        yield masters


@pytest.fixture
def broken(masters: RedisMasters) -> Iterator[str]:
    """One node refuses connections, and one is stopped."""
    masters.nodes[0].kill()
    masters.nodes[1].pause()
    yield fresh(masters.url, **QUICK)
    masters.nodes[0].restart()
    masters.nodes[1].resume()


def usage() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


@pytest.mark.req("R4", "R34")
def test_nothing_leaks_in_a_thousand_cycles(broken: str) -> None:
    with holdfast.connect(broken) as locks:
        lock = locks.lock("x")
        for cycle in range(1100):
            if cycle == 100:
                before = usage()
            lease = lock.acquire(timeout=10)
            assert lease
            lease.release()
        after = usage()
        assert after[0] <= before[0] + 2, (before, after)  # those two may be tried just now
        assert after[1] <= before[1]


@pytest.mark.req("R4", "R34")
def test_nothing_leaks_in_a_thousand_cycles_of_a_task(broken: str) -> None:
    async def main() -> tuple[tuple[int, int], tuple[int, int]]:
        async with aio.connect(broken) as locks:
            lock = locks.lock("x")
            for cycle in range(1100):
                if cycle == 100:
                    before = usage()
                async with lock:
                    pass
            return before, usage()

    before, after = asyncio.run(main())
    assert after[0] <= before[0] + 2, (before, after)
    assert after[1] <= before[1]


@pytest.mark.req("R4", "interpreter exits holding a lock")
@pytest.mark.parametrize("ending", ["lease.release()", "locks.close()", "pass"])
def test_the_process_exits_at_once(broken: str, ending: str) -> None:
    """Though two nodes do not answer, and although it may hold the lock: that is given back."""
    code = textwrap.dedent(f"""
        import holdfast
        locks = holdfast.connect({broken!r}, request_timeout=60)
        lease = locks.lock("x", ttl=600).acquire(timeout=20)
        assert lease
        {ending}
    """)
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=90)
    assert time.monotonic() - begun < 25
    with holdfast.connect(broken) as locks:
        lease = locks.lock("x").acquire(timeout=20)
        assert lease
        lease.release()


@pytest.mark.req("B3", "law 8", "fork after acquire")
def test_a_forked_child_has_connections_of_its_own(masters: RedisMasters) -> None:
    with holdfast.connect(fresh(masters.url, **OPTIONS)) as locks:
        lease = locks.lock("x", ttl=60).acquire()
        assert lease

        def child() -> None:
            assert not lease.held
            assert lease.release() is False
            assert locks.lock("x").acquire(blocking=False) is None
            for _ in range(20):
                with locks.lock("y"):
                    pass
            locks.close()

        for _ in range(3):
            in_child(child)
            lease.renew()
        assert lease.held
        with locks.lock("y"):
            pass
        assert lease.release() is True


@pytest.mark.req("R35")
def test_three_clients_on_three_nodes_share_it(masters: RedisMasters) -> None:
    """Who asks again and again, all at the same moment: split votes resolve, everybody is served,
    and nobody else is inside meanwhile."""
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in masters.nodes[:3])
    url = fresh(f"redlock://{hosts}", **OPTIONS)
    inside = 0
    turns = [0, 0, 0]
    gate = threading.Barrier(3)

    def client(number: int) -> None:
        nonlocal inside
        with holdfast.connect(url, request_timeout=30) as locks:
            lock = locks.lock("x", ttl=30)
            for _ in range(40):
                gate.wait(60)
                with lock:
                    inside += 1
                    assert inside == 1
                    inside -= 1
                    turns[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(3)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert turns == [40, 40, 40]
    assert time.monotonic() - begun < 40


@pytest.mark.req("R35", "R7")
def test_a_try_among_tries_wins(masters: RedisMasters) -> None:
    """Three tries at the same moment, and nobody holds it: mostly one of them has it."""
    url = fresh(masters.url, **OPTIONS)
    won = 0
    gate = threading.Barrier(3)
    clients = [holdfast.connect(url) for _ in range(3)]

    def turn(locks: holdfast.Locks) -> None:
        nonlocal won
        for _ in range(30):
            gate.wait(60)
            lease = locks.lock("x", ttl=30).acquire(blocking=False)
            gate.wait(60)
            if lease:
                won += 1
                lease.release()

    threads = [threading.Thread(target=turn, args=(locks,)) for locks in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for locks in clients:
        locks.close()
    assert 20 <= won <= 30


@pytest.mark.req("R36", "R34")
def test_an_even_number_of_nodes_is_warned_about(
    masters: RedisMasters, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in masters.nodes[:4])
    with holdfast.connect(fresh(f"redlock://{hosts}", **OPTIONS)) as locks:
        assert "even number of nodes" in caplog.text
        with locks.lock("x"):
            pass


@pytest.mark.req("R34")
@pytest.mark.parametrize(
    ("hosts", "why"),
    [("a,b", "at least 3"), ("a,a,b", "named twice"), ("a,b,c/x", "a number")],
)
def test_urls_that_cannot_work(hosts: str, why: str) -> None:
    with pytest.raises(holdfast.Misconfigured, match=why):
        holdfast.connect(f"redlock://{hosts}")


def test_the_votes_of_a_killed_client_end(masters: RedisMasters) -> None:
    url = fresh(masters.url, **OPTIONS)
    code = textwrap.dedent(f"""
        import holdfast, os, signal
        locks = holdfast.connect({url!r})
        lease = locks.lock("x", ttl=1.0).acquire(timeout=10)
        assert lease
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    subprocess.run([sys.executable, "-c", code], check=False, timeout=30)
    with holdfast.connect(url) as locks:
        lease = locks.lock("x").acquire(timeout=20)
        assert lease
        lease.release()
        until(lambda: locks.inspect() == [], "nothing is held")


@pytest.mark.req("R34", "law 3", "NOSCRIPT")
def test_a_refused_try_leaves_no_vote_on_nodes_that_know_no_script(masters: RedisMasters) -> None:
    """Found so: nobody waits for the answer to its farewell, which said that the script was not
    known, and then the client was closed."""
    url = fresh(masters.url, **OPTIONS)
    lock = Keys(parse(url).query["prefix"]).lock("x")
    for node in masters.nodes:
        node.call("SCRIPT", "FLUSH")
    for node in masters.nodes[:3]:
        node.call("SET", lock, "stranger {}", "PX", 60_000)
    with holdfast.connect(url) as locks:
        assert locks.lock("x", ttl=600).acquire(blocking=False) is None
    until(lambda: not any(node.call("EXISTS", lock) for node in masters.nodes[3:]), "no vote")


def without_scripts(masters: RedisMasters, proxy: FaultProxy) -> str:
    """Three nodes that know no script; the last is behind the proxy."""
    for node in masters.nodes:
        node.call("SCRIPT", "FLUSH")
    ports = [masters.nodes[0].port, masters.nodes[1].port, proxy.port]
    return fresh("redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports), **OPTIONS)


@pytest.mark.req("R34", "law 3", "NOSCRIPT", "R2")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_a_client_that_closes_pays_what_it_learns_to_owe_only_then(
    masters: RedisMasters, port: str
) -> None:
    """Found so: the slowest node did not know the script of the release, said so when nobody waited
    for it any more, and then the client was closed. Its vote stayed for the ttl."""
    slow = masters.nodes[2]
    with FaultProxy(("127.0.0.1", slow.port), framing="resp") as proxy:
        url = without_scripts(masters, proxy)
        keys = Keys(parse(url).query["prefix"])
        lock, first = keys.lock("x"), keys.lock("first")

        def votes() -> bool:
            return bool(slow.call("EXISTS", lock))

        def prepare() -> None:
            """The first release on a connection was spelled out. The node forgets it, and learns
            from somebody else what else there is to know."""
            until(lambda: not slow.call("EXISTS", first), "it has heard of it")
            slow.call("SCRIPT", "FLUSH")
            other = others.lock("known", ttl=60).acquire()
            assert other
            other.renew()

        def sync() -> None:
            with holdfast.connect(url) as locks:
                with locks.lock("first"):
                    pass
                prepare()
                with proxy.delay(0.1, "to_client"), locks.lock("x", ttl=600):
                    until(votes, "a vote")
                    time.sleep(0.3)

        async def asynchronous() -> None:
            async with aio.connect(url) as locks:
                async with locks.lock("first"):
                    pass
                await asyncio.to_thread(prepare)
                with proxy.delay(0.1, "to_client"):
                    async with locks.lock("x", ttl=600):
                        await asyncio.to_thread(until, votes, "a vote")
                        await asyncio.sleep(0.3)

        with holdfast.connect(url) as others:
            if port == "sync":
                sync()
            else:
                asyncio.run(asynchronous())
            assert not votes()


@pytest.mark.req("R34", "law 3", "NOSCRIPT", "R2")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_a_client_that_goes_on_and_asks_nothing_leaves_no_vote_on_a_slow_node(
    masters: RedisMasters, port: str
) -> None:
    """The same, and the client stays: a thread reads nothing until it asks again."""
    slow = masters.nodes[2]
    with FaultProxy(("127.0.0.1", slow.port), framing="resp") as proxy:
        url = without_scripts(masters, proxy)
        lock = Keys(parse(url).query["prefix"]).lock("x")

        def votes() -> bool:
            return bool(slow.call("EXISTS", lock))

        def sync() -> None:
            with holdfast.connect(url) as locks:
                lease = locks.lock("x", ttl=600).acquire()
                assert lease
                lease.renew()
                until(votes, "a vote")
                with proxy.delay(0.1, "to_client"):
                    assert lease.release()
                until(lambda: not votes(), "no vote")

        async def asynchronous() -> None:
            async with aio.connect(url) as locks:
                lease = await locks.lock("x", ttl=600).acquire()
                assert lease
                await lease.renew()
                await asyncio.to_thread(until, votes, "a vote")
                with proxy.delay(0.1, "to_client"):
                    assert await lease.release()
                    await asyncio.to_thread(until, lambda: not votes(), "no vote")

        if port == "sync":
            sync()
        else:
            asyncio.run(asynchronous())


@pytest.mark.req("R34", "law 3", "R2")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_a_client_that_asks_nothing_any_more_pays_what_it_owes(
    masters: RedisMasters, port: str
) -> None:
    """A node was stopped when the lock was taken and released: what it then does is undone."""
    url = fresh(masters.url, **QUICK)
    lock = Keys(parse(url).query["prefix"]).lock("x")
    node = masters.nodes[0]

    def votes() -> bool:
        return bool(node.call("EXISTS", lock))

    def sync() -> None:
        with holdfast.connect(url) as locks:
            with locks.lock("warm up"):
                pass
            node.pause()
            with locks.lock("x", ttl=600):
                time.sleep(0.5)  # longer than a node may be silent
            node.resume()
            until(lambda: not votes(), "the vote is gone")

    async def asynchronous() -> None:
        async with aio.connect(url) as locks:
            async with locks.lock("warm up"):
                pass
            node.pause()
            async with locks.lock("x", ttl=600):
                await asyncio.sleep(0.5)
            node.resume()
            await asyncio.to_thread(until, lambda: not votes(), "the vote is gone")

    try:
        if port == "sync":
            sync()
        else:
            asyncio.run(asynchronous())
    finally:
        node.resume()


@pytest.mark.req("R34", "R7")
def test_nothing_is_remembered_of_what_is_over(
    masters: RedisMasters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "COURTESY", 5.0)  # more than any machine needs
    url = fresh(masters.url, **OPTIONS)
    with holdfast.connect(url) as locks, holdfast.connect(url) as other:
        with locks.lock("x"):
            for _ in range(20):
                assert other.lock("x").acquire(blocking=False) is None
                assert other.lock("x").acquire(timeout=0.01) is None
        with other.lock("x"):
            pass
        backend = other._engine().backend
        assert isinstance(backend, Backend)
        until(lambda: not backend._sheets, "no claim is remembered")


@pytest.mark.req("R34")
def test_a_name_with_several_addresses(
    masters: RedisMasters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them refuses."""
    real = socket.getaddrinfo

    def two(host: Any, *rest: Any) -> Any:
        found = real("127.0.0.1", *rest)
        where = (*found[0][:4], ("127.0.0.9", found[0][4][1]))
        return [where, *found]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    with holdfast.connect(fresh(masters.url, **OPTIONS)) as locks, locks.lock("x", timeout=10):
        pass
