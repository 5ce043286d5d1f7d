"""redis://...?replicas=N: a lock counts only when enough replicas have it (R33)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Unavailable, aio
from holdfast.backends.redis.wire import NoAnswer
from holdfast.ports.clock import now
from holdfast.testing import FaultProxy
from tests.conformance.redis import about_locks
from tests.faults.redis import fresh, in_line, waiting
from tests.faults.test_processes import renewed
from tests.servers import RedisServer
from tests.servers.home import HOST, Home
from tests.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.req("R33")]


class Replicated:
    """A master and two replicas that follow it."""

    def __init__(self) -> None:
        self.home = Home("replicated")
        self.master = RedisServer(self.home, "master")
        follow = {"replicaof": f"{HOST} {self.master.port}"}
        self.replicas = [RedisServer(self.home, f"replica-{n}", settings=follow) for n in (0, 1)]

    @property
    def all(self) -> list[RedisServer]:
        return [self.master, *self.replicas]


@pytest.fixture(scope="module")
def _servers() -> Iterator[Replicated]:
    servers = Replicated()
    try:
        for server in servers.all:
            server.launch()
        for server in servers.all:
            server.wait_ready()
        yield servers
    finally:
        for server in servers.all:
            server.terminate()
        servers.home.close()


@pytest.fixture
def servers(_servers: Replicated) -> Iterator[Replicated]:
    until(lambda: all(replica.linked() for replica in _servers.replicas), "replicas in step", 30)
    try:
        yield _servers
    finally:
        for replica in _servers.replicas:
            replica.resume()


def replicated(servers: Replicated, count: int, **options: object) -> str:
    return fresh(servers.master.url, **{"replicas": count, "replica_timeout": 0.3, **options})


def test_enough_replicas(servers: Replicated) -> None:
    url = replicated(servers, 2, replica_timeout=5, request_timeout=20)
    with holdfast.connect(url) as locks:
        for _ in range(3):
            lease = locks.lock("x").acquire(timeout=20)
            assert lease
            key = locks._current.backend._requests.keys.lock("x")  # type: ignore[attr-defined]
            assert all(replica.call("EXISTS", key) == 1 for replica in servers.replicas)
            lease.renew()
            assert lease.release() is True

    async def main() -> None:
        async with aio.connect(url) as locks:
            async with locks.lock("x") as lease:
                await lease.renew()
            leases = await asyncio.gather(*(locks.lock(f"{n}").acquire() for n in range(50)))
            for held in leases:
                assert held is not None
                assert await held.release() is True

    asyncio.run(main())


@pytest.mark.parametrize("port", ["sync", "aio"])
def test_too_few_replicas_give_the_lock_back(servers: Replicated, port: str) -> None:
    url = replicated(servers, 3, request_timeout=2)

    async def main() -> None:
        async with aio.connect(url) as locks:
            await locks.lock("x").acquire()

    with holdfast.connect(url) as locks:
        with pytest.raises(Unavailable, match="of 3 replicas"):
            if port == "aio":
                asyncio.run(main())
            else:
                locks.lock("x").acquire()
        assert locks.inspect() == []  # verified: not only asked


def test_a_replica_that_hangs(servers: Replicated) -> None:
    url = replicated(servers, 2, request_timeout=2)
    with holdfast.connect(url) as locks:
        servers.replicas[0].pause()
        # The last time it is asked, there may be too little left for either to say so.
        with pytest.raises(Unavailable, match=r"only [01] of 2 replicas"):
            locks.lock("x").acquire()
        assert locks.inspect() == []
    servers.replicas[0].resume()
    until(servers.replicas[0].linked, "the replica in step")
    with holdfast.connect(replicated(servers, 2, request_timeout=20)) as locks, locks.lock("x"):
        pass


def test_a_lock_that_was_called_out_is_confirmed_first(servers: Replicated) -> None:
    url = replicated(servers, 2, request_timeout=20)
    plain = url.replace("replicas=2", "replicas=0")
    with holdfast.connect(url) as locks, holdfast.connect(plain) as others:
        lease = others.lock("x").acquire()
        assert lease
        with waiting(locks.lock("x")) as waiter:
            in_line(others, 1)
            servers.replicas[0].pause()
            lease.release()
            # It is granted, and given back, again and again: nobody may believe it.
            until(lambda: others.lock("x").acquire(blocking=False) is not None, "given back")
            assert not waiter.done
            servers.replicas[0].resume()
            others.close()  # gives back what was taken above
            granted = waiter.result()
            assert granted
            key = locks._current.backend._requests.keys.lock("x")  # type: ignore[attr-defined]
            assert all(replica.call("EXISTS", key) == 1 for replica in servers.replicas)
            assert granted.release() is True


@pytest.mark.req("B2", "R21")
def test_a_renewal_that_too_few_replicas_confirm_does_not_count(servers: Replicated) -> None:
    url = replicated(servers, 2)
    with holdfast.connect(url) as locks:
        lease = locks.lock("x", ttl=3).acquire(timeout=20)
        assert lease
        begun = now()
        servers.replicas[0].pause()
        with pytest.raises(Unavailable):
            lease.renew()
        assert lease.lost.wait(20) is True
        assert now() - begun < 20
        servers.replicas[0].resume()
        until(servers.replicas[0].linked, "the replica in step")
        lease = locks.lock("x", ttl=60, renew=0.3).acquire(timeout=20)
        assert lease
        renewed(lease)  # now it is
        assert lease.release() is True


@pytest.mark.req("reply lost, command applied", "R32")
def test_an_attempt_whose_reply_was_lost_is_confirmed_too(servers: Replicated) -> None:
    """The second attempt finds the lock taken by itself; and WAIT must still mean that lock."""
    with FaultProxy((HOST, servers.master.port), framing="resp") as proxy:
        url = fresh(f"redis://{HOST}:{proxy.port}", replicas=2, replica_timeout=0.2)
        with holdfast.connect(f"{url}&request_timeout=4") as locks:
            with locks.lock("warm up"):
                pass
            servers.replicas[0].pause()
            proxy.reset_on_reply(to=about_locks)
            with pytest.raises(Unavailable):
                locks.lock("x").acquire(timeout=2.5)
            until(lambda: locks.inspect() == [], "nothing of it is left")


@pytest.mark.req("law 2", "law 3")
def test_what_could_not_be_given_back_is_owed(
    servers: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still be there: it was taken for a lock that surely is not."""
    with holdfast.connect(replicated(servers, 3, request_timeout=1)) as locks:
        backend: Any = locks._engine().backend
        call, silent = backend._courier.call, True

        async def cut(script: object, *rest: object) -> object:
            if silent and script is backend._leave:
                raise NoAnswer("the connection broke")
            return await call(script, *rest)

        monkeypatch.setattr(backend._courier, "call", cut)
        with pytest.raises(Unavailable):
            locks.lock("x", ttl=600).acquire(timeout=1)
        assert locks.inspect() != []
        silent = False
        until(lambda: locks.inspect() == [], "it is given back")
