"""redlock://: what a minority of broken nodes does, and what it must not. On both ports.

What all nodes suffer together is in the conformance suite. Here are five masters behind proxies, of
which two at most are broken: clients acquire, renew and release as if nothing was (R4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdfast import LeaseLost, Misconfigured, Unavailable, Unsupported, aio
from holdfast.testing import FaultProxy
from holdfast.testing.conformance.harness import LONG, Api, Theme, refused, take
from holdfast.testing.conformance.suite import Suite
from tests.conformance.redis import about_locks
from tests.conformance.redlock import RedlockStrategy

pytestmark = pytest.mark.servers

NODE_TIMEOUT = 0.6
"""Far more than a node needs, so that a busy machine is not taken for a broken node."""


class FiveStrategy(RedlockStrategy):
    name = "redlock5"
    nodes = 5
    options = f"quarantine=off&max_ttl=1000&node_timeout={NODE_TIMEOUT}&heartbeat=0.3&poll=0.05"


def nodes(api: Api) -> FiveStrategy:
    assert isinstance(api.strategy, FiveStrategy)
    return api.strategy


async def everywhere(api: Api) -> None:
    lock = nodes(api).keys.lock("x")

    async def voted() -> bool:
        return all(server.call("EXISTS", lock) for server in nodes(api).servers)

    await api.until(voted, "the lock on every node")


async def take_everywhere(api: Api) -> aio.Lease:
    """The lock `x`, when no vote for it is on its way any more."""
    lease = await take(api.here.lock("x", ttl=60))
    await lease.renew()  # who was still being connected to has no vote for it yet
    await everywhere(api)
    return lease


@contextmanager
def refusing(api: Api) -> Iterator[None]:
    """Two nodes are gone: connections are refused."""
    servers = nodes(api).servers[:2]
    for server in servers:
        server.kill()
    try:
        yield
    finally:
        for server in servers:
            server.restart()


@contextmanager
def stopped(api: Api) -> Iterator[None]:
    """Two nodes are black holes: SIGSTOP."""
    servers = nodes(api).servers[:2]
    for server in servers:
        server.pause()
    try:
        yield
    finally:
        for server in servers:
            server.resume()


@contextmanager
def cut(api: Api) -> Iterator[None]:
    """Two nodes cannot be reached, and their connections are reset."""
    for proxy in nodes(api).proxies[:2]:
        proxy.sever()
    try:
        yield
    finally:
        api.strategy.heal()


@contextmanager
def silent(api: Api) -> Iterator[None]:
    """What is sent to two nodes vanishes on the way."""
    for proxy in nodes(api).proxies[:2]:
        proxy.blackhole()
    try:
        yield
    finally:
        api.strategy.heal()


AWAY = {"refused": refusing, "stopped": stopped, "cut": cut, "silent": silent}

BROKEN: dict[str, Callable[[FaultProxy], object]] = {
    "no reply": lambda proxy: proxy.drop_reply(to=about_locks),
    "no reply, reset": lambda proxy: proxy.reset_on_reply(to=about_locks),
    "half a reply": lambda proxy: proxy.reset_on_reply(after=1, to=about_locks),
    "half a request": lambda proxy: proxy.reset_on_request(after=40, matching=about_locks),
    "no request": lambda proxy: proxy.drop_request(matching=about_locks),
    "in pieces": lambda proxy: proxy.split(3),
    "late": lambda proxy: proxy.delay_request(2 * NODE_TIMEOUT, matching=about_locks),
}


class RedlockFaults(Theme):
    # -- a minority is away -----------------------------------------------------------------------

    @pytest.mark.req("R4", "R34", "server hangs")
    @pytest.mark.parametrize("away", AWAY)
    @pytest.mark.parametrize("warm", [False, True])
    async def test_two_of_five_nodes_are_away(self, api: Api, away: str, warm: bool) -> None:
        client = api.connect()
        if warm:
            await (await take(client.lock("warm up"))).release()
        with AWAY[away](api):
            begun = api.now()
            lease = await take(client.lock("x", ttl=60))
            assert api.now() - begun < 12 * NODE_TIMEOUT  # connecting, and one node_timeout
            try:
                await lease.renew()
            except Unavailable:  # the machine is busy: a third one was late
                await lease.renew()
            assert await refused(api.there.lock("x"))
            assert await lease.release() is True
            lease = await take(api.there.lock("x", ttl=60))
            begun = api.now()
            for _ in range(20):
                await (await take(client.lock("y", ttl=60))).release()
            assert api.now() - begun < 20 * NODE_TIMEOUT / 2  # they are not waited for each time
        assert lease.held
        assert await refused(client.lock("x"))
        assert await lease.release() is True
        await api.free("x")

    @pytest.mark.req("R34", "law 3", "R2")
    @pytest.mark.parametrize("away", ["stopped", "silent"])
    async def test_what_was_said_to_a_node_that_hung_leaves_no_vote(
        self, api: Api, away: str
    ) -> None:
        """The attempt reaches it when it comes back, and so does the farewell, or a tombstone."""
        client = api.connect()
        await (await take(client.lock("warm up"))).release()
        with AWAY[away](api):
            for n in range(5):
                await (await take(client.lock(f"x{n}", ttl=600))).release()
            holder = await take(api.there.lock("busy", ttl=600))
            assert await refused(client.lock("busy", ttl=600))
            await holder.release()

        async def no_votes() -> bool:
            lease = await client.lock("warm up").acquire(timeout=LONG)  # debts are paid by who asks
            assert lease
            await lease.release()
            # A release is done when a quorum has heard it: this one may still be on its way.
            left = [line for line in api.strategy.leftovers() if "{warm up}" not in line]
            return not [line for line in left if ":t:" not in line]

        await api.until(no_votes, "no node keeps a vote for nobody")

    @pytest.mark.req("R4", "R7")
    async def test_three_of_five_are_too_many(self, api: Api) -> None:
        """And the error says who did not answer; it is not called busy."""
        client = api.connect(request_timeout=3.0)
        for proxy in nodes(api).proxies[:3]:
            proxy.sever()
        with pytest.raises(
            Unavailable, match="2 of 5 nodes voted for it, and 3 are needed"
        ) as told:
            await client.lock("x").acquire(timeout=LONG)
        for proxy in nodes(api).proxies[:3]:
            assert f"{proxy.host}:{proxy.port}" in str(told.value)
        with pytest.raises(Unavailable):
            await client.inspect()
        api.strategy.heal()
        await api.free("x")

    @pytest.mark.req("RST mid-command", "reply lost, command applied", "R32", "R34")
    @pytest.mark.parametrize("broken", [1, 2, 5])
    @pytest.mark.parametrize("fault", BROKEN)
    async def test_an_exchange_breaks(self, api: Api, fault: str, broken: int) -> None:
        if broken == 1:  # a quorum of the others answers, however slow this machine is
            api.url = api.url.replace(f"node_timeout={NODE_TIMEOUT}", "node_timeout=2")
        client = api.connect(request_timeout=10)
        proxies = nodes(api).proxies[:broken]
        await (await take(client.lock("warm up"))).release()
        for proxy in proxies:
            BROKEN[fault](proxy)
        lease = await take(client.lock("x", ttl=60))
        for proxy in proxies:
            BROKEN[fault](proxy)

        async def renewed() -> bool:
            try:
                await lease.renew()
            except Unavailable:  # each fault strikes once, and not all at the same time
                return False
            return True

        if broken == 1:
            assert await renewed()
        await api.until(renewed, "a renewal")
        assert lease.held
        for proxy in proxies:
            BROKEN[fault](proxy)
        assert await lease.release() is True
        await api.free("x")

    # -- votes ------------------------------------------------------------------------------------

    @pytest.mark.req("R34", "R1")
    async def test_a_minority_that_somebody_else_has_is_no_lock(self, api: Api) -> None:
        for server in nodes(api).servers[:2]:
            server.call("SET", nodes(api).keys.lock("x"), "stranger {}", "PX", 60_000)
        lease = await take(api.here.lock("x"))
        assert await refused(api.there.lock("x"))
        assert await lease.release() is True
        assert nodes(api).servers[0].call("GET", nodes(api).keys.lock("x")) == "stranger {}"

    @pytest.mark.req("R34", "R7")
    async def test_a_majority_that_somebody_else_has_is_busy(self, api: Api) -> None:
        """And the two votes that were had are given back."""
        for server in nodes(api).servers[:3]:
            server.call("SET", nodes(api).keys.lock("x"), "stranger {}", "PX", 60_000)
        assert await refused(api.here.lock("x"))

        async def given_back() -> bool:
            votes = [server.call("GET", nodes(api).keys.lock("x")) for server in nodes(api).servers]
            return votes == ["stranger {}"] * 3 + [None] * 2

        await api.until(given_back, "the votes of a minority are given back")

    @pytest.mark.req("R35")
    async def test_split_votes_resolve(self, api: Api) -> None:
        """Two strangers have two votes each, for a moment: nobody can win until one of them goes,
        and then who waits need not wait for a ttl."""
        lock = nodes(api).keys.lock("x")
        for n, server in enumerate(nodes(api).servers[:4]):
            server.call("SET", lock, f"stranger{n // 2} {{}}", "PX", 300)
        begun = api.now()
        lease = await take(api.here.lock("x"))
        assert api.now() - begun < 12  # far less than a ttl
        await lease.release()

    # -- keeping ----------------------------------------------------------------------------------

    @pytest.mark.req("R34", "R20", "B1")
    async def test_a_renewal_installs_the_lock_where_it_was_forgotten(self, api: Api) -> None:
        lease = await take_everywhere(api)
        for server in nodes(api).servers[:2]:
            server.call("FLUSHALL")
        await lease.renew()
        await everywhere(api)
        for server in nodes(api).servers[3:]:
            server.call("FLUSHALL")
        assert await refused(api.there.lock("x"))  # by the ones that were told again
        await lease.renew()
        assert await lease.release() is True
        await api.free("x")

    @pytest.mark.req("R34", "R21", "B2", "key deleted by hand, FLUSHALL")
    async def test_a_quorum_of_not_yours_is_an_immediate_loss(self, api: Api) -> None:
        lease = await take_everywhere(api)
        for server in nodes(api).servers[:3]:
            server.call("FLUSHALL")
        with pytest.raises(LeaseLost):
            await lease.renew()
        assert not lease.held
        assert await lease.release() is False

    @pytest.mark.req("R34", "R21", "B2", "one-way partition")
    async def test_below_a_quorum_the_loss_comes_at_the_local_deadline(self, api: Api) -> None:
        lease = await take(api.here.lock("x", ttl=4))
        begun = api.now()
        for proxy in nodes(api).proxies[:3]:
            proxy.sever()
        assert await lease.lost.wait(LONG) is True
        assert 0.5 < api.now() - begun < 8
        assert not lease.held
        api.strategy.heal()
        await api.free("x")

    # -- waiting ----------------------------------------------------------------------------------

    @pytest.mark.req("R9")
    async def test_a_release_is_heard_of(self, api: Api) -> None:
        """heartbeat=20: nobody looks by itself."""
        api.url = api.url.replace("heartbeat=0.3", "heartbeat=20")
        for _ in range(3):
            lease = await take(api.here.lock("x", ttl=100))
            waiter = api.spawn(api.there.lock("x", ttl=100).acquire(timeout=15))
            await asyncio.sleep(0.4)
            begun = api.now()
            await lease.release()
            handed_over = await waiter
            assert handed_over is not None
            assert api.now() - begun < 12
            await handed_over.release()

    @pytest.mark.req("R9", "R4")
    async def test_a_release_is_heard_of_though_the_ears_node_is_gone(self, api: Api) -> None:
        lease = await take(api.here.lock("x", ttl=100))
        waiter = api.spawn(api.there.lock("x", ttl=100).acquire(timeout=LONG))
        await asyncio.sleep(0.2)
        for proxy in nodes(api).proxies[:2]:
            proxy.sever()
        await asyncio.sleep(0.1)
        await lease.release()
        handed_over = await waiter
        assert handed_over is not None
        await handed_over.release()

    # -- what is refused --------------------------------------------------------------------------

    @pytest.mark.req("R10", "B5")
    async def test_other_modes_are_refused_with_the_reason(self, api: Api) -> None:
        with pytest.raises(Unsupported, match="quorum"):
            await api.here.rwlock("x").read().acquire()
        with pytest.raises(Unsupported, match="quorum"):
            await api.here.semaphore("x", 2).acquire()

    @pytest.mark.req("R36")
    async def test_a_lease_longer_than_max_ttl_is_refused(self, api: Api) -> None:
        with pytest.raises(Misconfigured, match="max_ttl=1000"):
            await api.here.lock("x", ttl=1001).acquire()

    @pytest.mark.req("R36", "law 9")
    async def test_a_wrong_password_is_told_at_once(self, api: Api) -> None:
        api.url = api.url.replace("p%25w", "wrong")
        begun = api.now()
        with pytest.raises(Misconfigured, match="password") as told:
            await api.connect(request_timeout=60).lock("x").acquire()
        assert api.now() - begun < 20
        assert "wrong" not in str(told.value)


class TestRedlockFaults(RedlockFaults, Suite):
    strategy = FiveStrategy
