"""zk:// while connections are cut, held and split at random: nobody overlaps, nothing is left."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import uuid

import pytest

import holdfast
from holdfast import LeaseLost, Unavailable, aio
from holdfast.ports import clock
from holdfast.testing import FaultProxy
from tests.faults.zookeeper import kazoo, nodes
from tests.servers import ZooKeeperServer
from tests.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]

WORKERS = 4
SECONDS = 12.0


class Resource:
    """Refuses a token that is lower than one it has seen, and counts who is inside."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.highest = 0
        self.writes = self.stale = self.overlaps = 0
        self._inside: dict[int, float] = {}

    def enter(self, fence: int, until: float) -> None:
        """A holder that trusts its lease until then, at most."""
        with self._mutex:
            now = clock.now()
            self.overlaps += sum(now < end for end in self._inside.values())
            self._inside[fence] = until
            if fence < self.highest:
                self.stale += 1
            self.highest = max(self.highest, fence)
            self.writes += 1

    def leave(self, fence: int) -> None:
        with self._mutex:
            self._inside.pop(fence, None)


def trouble(proxy: FaultProxy, over: threading.Event, seed: int) -> None:
    chance = random.Random(seed)
    while not over.wait(chance.uniform(0.02, 0.3)):
        match chance.randrange(5):
            case 0:
                proxy.reset()
            case 1:
                proxy.reset_on_reply(chance.randrange(1, 6), after=chance.choice((0, 9)))
            case 2:
                proxy.reset_on_request(chance.randrange(1, 6), after=chance.choice((0, 9)))
            case 3:
                with proxy.hold(chance.choice(("to_server", "to_client", "both"))):
                    over.wait(chance.uniform(0.01, 0.6))
            case _:
                with proxy.sever():
                    over.wait(chance.uniform(0.01, 0.3))


@pytest.mark.req("R1", "R50", "B1", "RST mid-command", "reply lost, command applied", "law 3")
def test_random_cuts() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    base = f"/random-{uuid.uuid4().hex}"
    resource, over, counts = Resource(), threading.Event(), [0, 0]
    with (
        ZooKeeperServer(tick=100) as server,
        FaultProxy(("127.0.0.1", server.port), framing="zookeeper") as proxy,
        kazoo(server.port) as client,
    ):
        url = f"zk://127.0.0.1:{proxy.port}{base}"

        def blocking(locks: holdfast.Locks) -> None:
            while not over.is_set():
                try:
                    with locks.lock("x", ttl=2, timeout=5) as lease:
                        resource.enter(lease.fence, clock.now() + lease.remaining())
                        time.sleep(0.002)
                        resource.leave(lease.fence)
                        counts[0] += 1
                except (Unavailable, LeaseLost, holdfast.AcquireTimeout):
                    counts[1] += 1

        async def suspending() -> None:
            async with aio.connect(url, request_timeout=3) as locks:

                async def work() -> None:
                    while not over.is_set():
                        try:
                            async with locks.lock("x", ttl=2, timeout=5) as lease:
                                resource.enter(lease.fence, clock.now() + lease.remaining())
                                await asyncio.sleep(0.002)
                                resource.leave(lease.fence)
                                counts[0] += 1
                        except (Unavailable, LeaseLost, holdfast.AcquireTimeout):
                            counts[1] += 1

                await asyncio.gather(*(work() for _ in range(WORKERS)))

        with holdfast.connect(url, request_timeout=3) as locks:
            workers = [threading.Thread(target=blocking, args=(locks,)) for _ in range(WORKERS)]
            workers.append(threading.Thread(target=lambda: asyncio.run(suspending())))
            for worker in workers:
                worker.start()
            breaker = threading.Thread(target=trouble, args=(proxy, over, seed))
            breaker.start()
            time.sleep(SECONDS)
            over.set()
            breaker.join()
            proxy.heal()
            for worker in workers:
                worker.join(60)
                assert not worker.is_alive()
        until(lambda: not nodes(client, f"{base}/x"), "nothing is left")
    print(f"{counts[0]} holds, {counts[1]} failed, {resource.stale} stale")
    assert counts[0] > 20
    assert resource.overlaps == 0
    assert resource.stale == 0
