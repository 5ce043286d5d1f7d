"""redis://: what can happen to a server, its memory and the bytes on the way. On both ports.

What every store must survive is in the conformance suite; here is what only Redis does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from holdfast import LeaseLost, Unavailable
from holdfast.testing import FaultProxy
from holdfast.testing.conformance.harness import LONG, Api, Theme, refused, take
from holdfast.testing.conformance.losses import Ear
from holdfast.testing.conformance.suite import Suite
from holdfast.testing.relay import Link
from tests.conformance.redis import RedisStrategy, about_locks

pytestmark = pytest.mark.servers

Fault = Callable[[FaultProxy], object]

BROKEN: dict[str, Fault] = {
    "no reply": lambda proxy: proxy.drop_reply(to=about_locks),
    "no reply, reset": lambda proxy: proxy.reset_on_reply(to=about_locks),
    "half a reply": lambda proxy: proxy.reset_on_reply(after=1, to=about_locks),
    "half a request": lambda proxy: proxy.reset_on_request(after=40, matching=about_locks),
    "no request": lambda proxy: proxy.drop_request(matching=about_locks),
    "in pieces": lambda proxy: proxy.split(3),
}


def redis(api: Api) -> RedisStrategy:
    assert isinstance(api.strategy, RedisStrategy)
    return api.strategy


def ear_of(strategy: RedisStrategy) -> Link:
    """The one connection through the proxy that listens to calls."""
    listed = str(strategy.server.call("CLIENT", "LIST", "TYPE", "pubsub")).split("addr=127.0.0.1:")
    ports = [int(text.split(" ")[0]) for text in listed[1::2]]
    links = [link for link in strategy.proxy.connections if link.server.getsockname()[1] in ports]
    assert len(links) == 1
    return links[0]


class RedisFaults(Theme):
    # -- bytes ------------------------------------------------------------------------------------

    @pytest.mark.req("RST mid-command", "reply lost, command applied", "R32")
    @pytest.mark.parametrize("fault", BROKEN)
    async def test_an_exchange_breaks(self, api: Api, fault: str) -> None:
        """Attempt, renewal and release, each: resolved or released, nothing left, nobody stuck."""
        client = api.connect(request_timeout=5 if fault == "in pieces" else 2)
        proxy = redis(api).proxy
        await (await take(client.lock("warm up"))).release()

        BROKEN[fault](proxy)
        with contextlib.suppress(Unavailable):
            lease = await client.lock("x").acquire(timeout=LONG)
            assert lease is not None, "its own lock was in its way"
            await lease.release()
        await api.free("x")

        lease = await take(client.lock("x"))
        BROKEN[fault](proxy)
        with contextlib.suppress(Unavailable):
            await lease.renew()
        assert lease.held
        await lease.renew()
        BROKEN[fault](proxy)
        assert await lease.release() is True
        await api.free("x")

    @pytest.mark.req("reply lost, command applied", "R32")
    async def test_a_lost_reply_is_asked_for_again_well_before_patience_ends(
        self, api: Api
    ) -> None:
        """With the options everybody has: not `Unavailable` after 5 s, but the lock."""
        client = api.connect()
        await (await take(client.lock("warm up"))).release()
        redis(api).drop_next_reply()
        lease = await take(client.lock("x"))
        assert lease.held
        await lease.release()

    @pytest.mark.req("server hangs", "R7")
    @pytest.mark.parametrize("warm", [False, True])
    async def test_a_server_that_accepts_and_never_answers(self, api: Api, warm: bool) -> None:
        """redis-py's Lock with blocking_timeout=1 came back after 59 s."""
        client = api.connect()
        if warm:
            await (await take(client.lock("warm up"))).release()
        redis(api).hang()
        begun = api.now()
        with pytest.raises(Unavailable):
            await client.lock("x").acquire(timeout=1)
        assert 0.9 < api.now() - begun < 8

    # -- calls ------------------------------------------------------------------------------------

    @pytest.mark.req("R9", "waiter withdrawn")
    async def test_a_lost_call_costs_a_heartbeat(self, api: Api) -> None:
        """heartbeat=0.3 here: the waiter looks by itself, and finds that it was granted."""
        lease = await take(api.there.lock("x", ttl=60))
        waiter = await api.queue_up(api.here.lock("x", ttl=60))
        await self._listens(api)
        redis(api).proxy.one_way("to_client", only=ear_of(redis(api)))
        begun = api.now()
        await lease.release()
        granted = await waiter
        assert granted is not None
        assert granted.held
        assert api.now() - begun < 20  # nor does it take the lease's time
        redis(api).heal()
        await granted.release()

    @pytest.mark.req("R9", "one-way partition")
    async def test_an_ear_that_went_deaf_is_replaced(self, api: Api) -> None:
        lease = await take(api.there.lock("x", ttl=60))
        waiter = await api.queue_up(api.here.lock("x", ttl=60), timeout=30)
        await self._listens(api)
        deaf = ear_of(redis(api))
        redis(api).proxy.blackhole(only=deaf)

        async def replaced() -> bool:
            # The server does not know yet that the old one is gone.
            return str(redis(api).server.call("CLIENT", "LIST", "TYPE", "pubsub")).count("id=") > 1

        await api.until(replaced, "another ear")
        await lease.release()
        granted = await waiter
        assert granted is not None
        await granted.release()

    @pytest.mark.req("R9", "RST mid-command")
    async def test_the_subscription_breaks(self, api: Api) -> None:
        lease = await take(api.there.lock("x", ttl=60))
        waiter = await api.queue_up(api.here.lock("x", ttl=60))
        await self._listens(api)
        redis(api).server.call("CLIENT", "KILL", "TYPE", "pubsub")
        await lease.release()
        granted = await waiter
        assert granted is not None
        await granted.release()

    @staticmethod
    async def _listens(api: Api) -> None:
        async def one() -> bool:
            return bool(redis(api).server.call("CLIENT", "LIST", "TYPE", "pubsub"))

        await api.until(one, "somebody who listens")

    # -- the server's memory ----------------------------------------------------------------------

    @pytest.mark.req("NOSCRIPT", "R30")
    async def test_script_flush_is_invisible(self, api: Api) -> None:
        server = redis(api).server
        for _ in range(3):
            server.call("SCRIPT", "FLUSH")
            lease = await take(api.here.lock("x"))
            server.call("SCRIPT", "FLUSH")
            await lease.renew()
            waiter = await api.queue_up(api.there.lock("x"))
            server.call("SCRIPT", "FLUSH")
            assert await lease.release() is True
            granted = await waiter
            assert granted is not None
            server.call("SCRIPT", "FLUSH")
            assert await api.here.inspect()
            assert await granted.release() is True

    @pytest.mark.req("NOSCRIPT", "R20")
    async def test_script_flush_does_not_disturb_renewals(self, api: Api) -> None:
        leases = [await take(api.here.lock(f"{n}", ttl=60, renew=0.3)) for n in range(20)]
        for _ in range(4):
            redis(api).server.call("SCRIPT", "FLUSH")
            for lease in leases:
                await api.renewed(lease)
        assert all(lease.held for lease in leases)
        for lease in leases:
            assert await lease.release() is True

    @pytest.mark.req("key deleted by hand, FLUSHALL", "B2")
    async def test_flushall_is_noticed_and_waiters_are_served(self, api: Api) -> None:
        ear = Ear()
        lease = await take(api.here.lock("x", ttl=60, renew=api.often, on_lost=ear))
        waiter = await api.queue_up(api.there.lock("x"))
        redis(api).server.call("FLUSHALL")
        assert (await ear.hears()).name == "x"
        assert not lease.held
        assert await lease.release() is False
        granted = await waiter
        assert granted is not None
        assert granted.held
        assert lease.fence is not None
        assert granted.fence is not None
        assert granted.fence > lease.fence
        await granted.release()

    @pytest.mark.req("eviction", "B2")
    async def test_eviction_is_noticed(self, api: Api) -> None:
        ear = Ear()
        server = redis(api).server
        lease = await take(api.here.lock("x", ttl=60, renew=api.often, on_lost=ear))
        key = redis(api).keys.lock("x")
        server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
        try:
            used = int(server.info("memory")["used_memory"])
            server.call("CONFIG", "SET", "maxmemory", used + 200_000)
            for n in range(3000):
                server.call("SET", f"holdfast:other:{n}", "x" * 1000)
                if not server.call("EXISTS", key):
                    break
            assert not server.call("EXISTS", key), "nothing was evicted"
        finally:
            server.call("CONFIG", "SET", "maxmemory", 0)
            server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        assert (await ear.hears()).name == "x"
        with pytest.raises(LeaseLost):
            lease.check()

    @pytest.mark.req("B1", "law 7", "server restarted without persistence")
    async def test_tokens_increase_over_everything_the_server_can_forget(self, api: Api) -> None:
        strategy = redis(api)
        client = api.connect(request_timeout=LONG)

        async def token() -> int:
            lease = await take(client.lock("x"))
            await lease.release()
            assert lease.fence is not None
            return lease.fence

        tokens = [await token(), await token()]
        strategy.server.call("DEL", strategy.keys.lock("x"))
        tokens.append(await token())
        strategy.server.call("PEXPIRE", strategy.keys.lock("x"), 1)
        await api.pass_time(0.01)
        tokens.append(await token())
        strategy.server.call("FLUSHALL")
        tokens.append(await token())
        strategy.restart_server()  # without persistence
        tokens += [await token(), await token()]
        assert tokens == sorted(set(tokens))

    @pytest.mark.req("R30")
    async def test_everything_expires_by_itself(self, api: Api) -> None:
        """No key without an end, whatever happens to be there."""
        strategy = redis(api)
        lease = await take(api.here.lock("x", ttl=60))
        waiters = [await api.queue_up(api.there.lock("x", ttl=60)) for _ in range(2)]
        readers = [await take(api.here.rwlock("y", ttl=60).read()) for _ in range(2)]
        permit = await take(api.here.semaphore("z", 2, ttl=60))
        # A withdrawn claim leaves a tombstone.
        with contextlib.suppress(Unavailable):
            strategy.drop_next_reply()
            impatient = api.connect(request_timeout=0.2)
            await impatient.lock("w").acquire(timeout=0.2)
        keys = strategy._keys()
        assert len(keys) >= 6
        ends = {key: strategy.server.call("PTTL", key) for key in keys}
        assert all(isinstance(left, int) and left > 0 for left in ends.values()), ends
        for held in (permit, *readers, lease):
            await held.release()
        for waiter in waiters:
            granted = await waiter
            assert granted is not None
            await granted.release()

    # -- many -------------------------------------------------------------------------------------

    @pytest.mark.req("connection pool exhausted", "R20")
    async def test_waiting_takes_no_connections_from_renewals(self, api: Api) -> None:
        """There is no pool to exhaust: 60 who wait have one connection together."""
        lease = await take(api.here.lock("x", ttl=60, renew=0.3))
        waiting = [api.spawn(api.here.lock("x", ttl=60).acquire(timeout=LONG)) for _ in range(60)]
        await api.in_line("x", 60)
        clients = str(redis(api).server.call("CLIENT", "LIST")).count("\n")
        assert clients < 60, clients  # a thread's own request has one; waiting has none
        redis(api).server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await api.renewed(lease)
        assert lease.held
        assert await refused(api.there.lock("x"))
        await asyncio.gather(*waiting)
        assert await lease.release() is True


class TestRedisFaults(RedisFaults, Suite):
    strategy = RedisStrategy
