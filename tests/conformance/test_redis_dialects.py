"""The conformance suite on locks that others understand: `pytest tests/conformance -k dialect`.

What these stores have no notion of (other modes, a line that can be seen) is skipped by their
capabilities; what the suite can only see in a line is tested here, by its effect. Clients are the
user of docs/backends/redis-dialects-acl.txt.
"""

from __future__ import annotations

import asyncio
import re
from importlib import resources

import pytest

from holdfast import Closed, Unavailable, aio
from holdfast.testing.conformance import ConformanceSuite
from holdfast.testing.conformance.exclusion import Exclusion
from holdfast.testing.conformance.faults import impatient
from holdfast.testing.conformance.fencing import Fencing
from holdfast.testing.conformance.harness import LONG, Api, Theme, refused, take
from holdfast.testing.conformance.inspection import Inspection
from holdfast.testing.conformance.names import Names
from holdfast.testing.conformance.protocol import Protocol
from holdfast.testing.conformance.suite import Suite
from holdfast.testing.conformance.waiting import PROMPT, Waiting
from tests.conformance.redis import (
    DIALECTS_ACL,
    PlainStrategy,
    RedissonStrategy,
    RedisStrategy,
)
from tests.conformance.rotation import Rotating
from tests.conformance.test_redis import OUTSIDE, commands
from tests.waiting import settled

HEARTBEAT = 6.0
"""So long that a machine that stands still for a second or two is quicker than half of it."""
SELDOM = f"window={2 * HEARTBEAT}&heartbeat={HEARTBEAT}&poll={HEARTBEAT}"


async def wait_for(
    api: Api, lock: aio.Lock, timeout: float = LONG
) -> asyncio.Task[aio.Lease | None]:
    """Begin to acquire, and return when that has been refused once and waits."""
    before = api.strategy.requests()
    task = api.spawn(lock.acquire(timeout=timeout))

    async def asked() -> bool:
        return api.strategy.requests() > before

    await api.until(asked, "an attempt")
    await asyncio.sleep(0.1)  # subscribed and asked again
    assert not task.done()
    return task


class Closing(Theme):
    @pytest.mark.req("law 4")
    async def test_who_begins_to_wait_when_it_is_closed_does_not(self, api: Api) -> None:
        """A thread may be between its attempt and its wait when another one closes the client."""
        holder, raw = api.raw(), api.raw()
        await holder.grant(holder.claim("x"))
        claim = raw.claim("x")
        busy = await raw.queue(claim)
        await raw.close()
        waiting = api.spawn(raw.wait(claim, busy, within=10 * LONG))
        assert await asyncio.wait_for(waiting, PROMPT) is None


class Unseen(Closing):
    """Waiting where no line can be seen."""

    @pytest.mark.req("R7", "R9", "R31")
    async def test_a_release_is_announced(self, api: Api) -> None:
        """With leases and heartbeats that are far longer than this may take."""
        lease = await take(api.here.lock("x", ttl=10 * LONG))
        waiter = await wait_for(api, api.there.lock("x", ttl=10 * LONG))
        begun = api.now()
        await lease.release()
        handed_over = await waiter
        assert handed_over is not None
        assert api.now() - begun < HEARTBEAT / 2
        assert await refused(api.here.lock("x"))
        assert await handed_over.release() is True
        await api.free("x")

    @pytest.mark.req("R9", "B3")
    async def test_a_waiter_that_gives_up_passes_its_call_on(self, api: Api) -> None:
        """Cancelled, closed or timed out at any moment around a release: somebody is served."""
        for n in range(12):
            lease = await take(api.here.lock("x", ttl=10 * LONG))
            gives_up = api.spawn(api.there.lock("x").acquire(timeout=0.15))
            await asyncio.sleep(0.02)
            stays = api.spawn(api.there.lock("x").acquire(timeout=LONG))
            await asyncio.sleep(0.11 + n * 0.003)
            begun = api.now()
            await lease.release()
            try:
                first = await gives_up
            except Unavailable:  # its last attempt met its time limit
                first = None
            if first is not None:
                await first.release()
            last = await stays
            assert last is not None
            assert api.now() - begun < HEARTBEAT / 2
            await last.release()

    @pytest.mark.req("R9")
    async def test_one_waiter_of_each_client_asks(self, api: Api) -> None:
        crowd = 12
        await (await take(api.here.lock("x"))).release()  # a new server learns the scripts now
        lease = await take(api.here.lock("x", ttl=10 * LONG))
        clients = (api.here, api.there)
        turns = [
            api.spawn(clients[n % 2].lock("x", ttl=10 * LONG).acquire(timeout=LONG))
            for n in range(crowd)
        ]
        before = await asyncio.to_thread(settled, api.strategy.requests, 1.5)  # all wait
        await lease.release()
        done, waiting = await asyncio.wait(turns, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.1)
        assert len(done) == 1
        cost = api.strategy.requests() - before
        assert cost <= 4, f"{cost} requests: the release, an attempt each and perhaps a look"
        while done:
            held = await done.pop()
            assert held is not None
            await held.release()
            if waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    @pytest.mark.req("R21", "R2")
    async def test_all_waiters_are_told_that_the_store_is_away(self, api: Api) -> None:
        """Not one after the other, though only the first of them looks."""
        client = await impatient(api)
        lease = await take(api.there.lock("x", ttl=10 * LONG))
        turns = [api.spawn(client.lock("x").acquire(timeout=4 * LONG)) for _ in range(8)]
        await asyncio.sleep(0.2)
        begun = api.now()
        api.strategy.sever_connections()
        for turn in turns:
            with pytest.raises(Unavailable):
                await asyncio.wait_for(turn, 4 * LONG)
        assert api.now() - begun < HEARTBEAT + 4 * api.patience
        api.strategy.heal()
        await lease.release()
        await api.free("x")

    @pytest.mark.req("R8", "R9")
    async def test_a_waiter_survives_a_cut_during_which_it_is_freed(self, api: Api) -> None:
        """The announcement is lost: it looks by itself when it can."""
        patient = api.connect(request_timeout=LONG)
        raw = api.raw()
        await raw.grant(raw.claim("x", ttl=2 * api.short))
        waiter = api.spawn(patient.lock("x").acquire(timeout=4 * LONG))
        await asyncio.sleep(0.1)
        api.strategy.sever_connections()
        await api.pass_time(2.2 * api.short)
        api.strategy.heal()
        handed_over = await waiter
        assert handed_over is not None
        await handed_over.release()

    @pytest.mark.req("reply lost, command applied", "R3")
    async def test_the_reply_to_a_release_is_lost_with_somebody_waiting(self, api: Api) -> None:
        client = await impatient(api)
        lease = await take(client.lock("x"))
        waiter = await wait_for(api, api.there.lock("x"), timeout=4 * LONG)
        api.strategy.drop_next_reply()
        await lease.release()
        handed_over = await waiter
        assert handed_over is not None
        await api.pass_time(api.patience)
        assert await refused(client.lock("x"))
        assert await handed_over.release() is True

    @pytest.mark.req("R12")
    async def test_a_holder_is_shown_by_its_name(self, api: Api) -> None:
        client = api.connect(label="nightly")
        assert not await api.here.lock("x").locked()
        lease = await take(client.lock("x", metadata={"job": "import"}))
        assert await api.here.lock("x").locked()
        (info,) = await api.there.inspect("x")
        (holder,) = info.holders
        assert holder.info["label"] == "nightly"
        assert holder.info["job"] == "import"
        assert holder.fence == lease.fence
        assert holder.remaining is not None
        assert 0 < holder.remaining <= 30
        assert [found.name for found in await api.there.inspect()] == ["x"]
        await lease.release()
        assert await api.there.inspect("x") == []

    @pytest.mark.req("eviction", "R9")
    async def test_evict_ends_the_holder_and_wakes_a_waiter(self, api: Api) -> None:
        assert await api.there.evict("x") == 0
        lease = await take(api.here.lock("x", ttl=10 * LONG))
        waiter = await wait_for(api, api.there.lock("x"))
        begun = api.now()
        assert await api.connect().evict("x") == 1
        handed_over = await waiter
        assert handed_over is not None
        assert api.now() - begun < HEARTBEAT / 2
        assert await lease.release() is False
        assert await handed_over.release() is True


@pytest.mark.req("R30", "R37")
def test_the_acl_allows_what_is_used_and_nothing_else() -> None:
    folder = resources.files("holdfast.backends.redis").joinpath("scripts")
    ours = [
        path
        for path in folder.iterdir()
        if re.match("literal|plain|redisson|cell|foreign", path.name)
    ]
    used = commands("".join(path.read_text() for path in ours))
    assert {word[1:] for word in DIALECTS_ACL if word.startswith("+")} == used | OUTSIDE


@pytest.mark.servers
class TestPlainDialect(Rotating, ConformanceSuite):
    strategy = PlainStrategy


@pytest.mark.servers
class TestRedissonDialect(Rotating, Exclusion, Waiting, Fencing, Names, Inspection, Protocol):
    """What depends on how a lock is written; the rest is the same code as above."""

    strategy = RedissonStrategy


class PatientPlain(PlainStrategy):
    options = SELDOM


class PatientRedisson(RedissonStrategy):
    options = SELDOM


@pytest.mark.servers
class TestPlainWaiting(Unseen, Suite):
    strategy = PatientPlain

    @pytest.mark.req("R9")
    async def test_waiting_costs_a_look_in_a_heartbeat(self, api: Api) -> None:
        lease = await take(api.here.lock("x", ttl=10 * LONG))
        turns = [api.spawn(api.there.lock("x").acquire(timeout=9 * LONG)) for _ in range(6)]
        before = await asyncio.to_thread(settled, api.strategy.requests)
        await asyncio.sleep(1.2 * HEARTBEAT)
        assert api.strategy.requests() - before <= 2
        await api.there.close()
        await lease.release()
        for turn in turns:
            with pytest.raises(Closed):
                await asyncio.wait_for(turn, LONG)


@pytest.mark.servers
class TestRedissonWaiting(Unseen, Suite):
    strategy = PatientRedisson


@pytest.mark.servers
class TestNativeClosing(Closing, Suite):
    strategy = RedisStrategy
