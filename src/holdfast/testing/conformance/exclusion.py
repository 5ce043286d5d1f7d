"""One holder at a time, and a lock that is used like any mutex (R1, R3, R12, B3)."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AcquireTimeout, Closed, NotHeld
from holdfast.testing.conformance.harness import LONG, Api, Theme, refused, take


class Exclusion(Theme):
    @pytest.mark.req("R1", "R12")
    async def test_two_clients_exclude_one_another(self, api: Api) -> None:
        lease = await take(api.here.lock("x"))
        assert lease
        assert lease.held
        assert await refused(api.there.lock("x"))
        assert await lease.release() is True
        assert not await refused(api.there.lock("x"))

    @pytest.mark.req("R1")
    async def test_one_client_excludes_itself(self, api: Api) -> None:
        """Locks are not reentrant unless asked: neither for another lock object nor for this."""
        lock = api.here.lock("x")
        async with lock:
            assert await refused(lock)
            assert await refused(api.here.lock("x"))
        assert not await refused(lock)

    @pytest.mark.req("R1", "B3")
    async def test_both_ports_exclude_one_another(self, api: Api) -> None:
        blocking = api.connect(port="sync")
        suspending = api.connect(port="aio")
        for one, other in ((blocking, suspending), (suspending, blocking)):
            lease = await take(one.lock("x"))
            assert await refused(other.lock("x"))
            waiter = await api.queue_up(other.lock("x"))
            await lease.release()
            handed_over = await waiter
            assert handed_over is not None
            assert await refused(one.lock("x"))
            await handed_over.release()

    @pytest.mark.req("R1", "R8", "B1", "B3")
    async def test_a_crowd_takes_turns(self, api: Api) -> None:
        """Eight takers, two clients; whoever is inside is alone, and tokens follow real time."""
        inside = 0
        turns = 0
        tokens: list[int] = []
        fencing = bool(api.capabilities.fencing)

        async def taker(number: int) -> None:
            nonlocal inside, turns
            lock = (api.here, api.there)[number % 2].lock("x", fair=number % 4 < 2)
            for _ in range(10):
                lease = await take(lock, timeout=3 * LONG)
                inside += 1
                alone = inside == 1
                if fencing:
                    tokens.append(lease.fence)
                await asyncio.sleep(0)
                assert alone
                assert inside == 1
                turns += 1
                inside -= 1
                assert await lease.release() is True

        await asyncio.gather(*(api.spawn(taker(n)) for n in range(8)))
        assert turns == 80
        assert tokens == sorted(set(tokens))

    @pytest.mark.req("R3", "R12")
    async def test_release_is_idempotent_and_only_ones_own(self, api: Api) -> None:
        lock = api.here.lock("x")
        first = await take(lock)
        assert await first.release() is True
        second = await take(api.there.lock("x"))
        assert await first.release() is True  # says again what it said, and does nothing
        assert await refused(lock)
        with pytest.raises(NotHeld):
            await lock.release()
        assert second.held
        assert await second.release() is True

    @pytest.mark.req("R3", "R12")
    async def test_lock_release_is_the_callers_own(self, api: Api) -> None:
        """`lock.release()`, as with threading.Lock; but another's lease is not the caller's."""
        lock = api.here.lock("x")
        assert await lock.acquire()

        async def somebody_else() -> None:
            with pytest.raises(NotHeld):
                await lock.release()

        await api.apart(somebody_else())
        assert await refused(api.there.lock("x"))
        assert await lock.release() is True
        with pytest.raises(NotHeld):
            await lock.release()
        assert not await refused(api.there.lock("x"))

    @pytest.mark.req("R12")
    async def test_a_lease_may_be_passed_on(self, api: Api) -> None:
        """Ownership belongs to the lease, not to the thread or task that took it."""
        lease = await take(api.here.lock("x"))

        async def somebody_else() -> bool:
            lease.check()
            await lease.renew()
            return await lease.release()

        assert await api.apart(somebody_else()) is True
        assert not lease.held
        assert not await refused(api.there.lock("x"))

    @pytest.mark.req("R12")
    async def test_with(self, api: Api) -> None:
        lock = api.here.lock("x")
        async with lock as lease:
            lease.check()
            assert lease.name == lock.name == "x"
            assert await refused(api.there.lock("x"))
        assert not lease.held
        assert not await refused(api.there.lock("x"))
        async with await take(lock) as lease:  # a lease is a context manager too
            assert await refused(api.there.lock("x"))
        assert not await refused(api.there.lock("x"))

    @pytest.mark.req("R12", "exception in the body")
    async def test_an_exception_in_the_body_passes_and_releases(self, api: Api) -> None:
        with pytest.raises(ZeroDivisionError):
            async with api.here.lock("x"):
                raise ZeroDivisionError
        await api.free("x")

    @pytest.mark.req("R7", "R12")
    async def test_with_raises_where_acquire_returns_none(self, api: Api) -> None:
        async with api.here.lock("x"):
            for timeout in (0, api.patience):  # a busy machine answers in that time
                lock = api.there.lock("x", timeout=timeout)
                assert await lock.acquire() is None
                with pytest.raises(AcquireTimeout, match="'x'"):
                    async with lock:
                        pytest.fail("two holders")
        await api.free("x")

    @pytest.mark.req("R12")
    async def test_released_inside_its_own_body(self, api: Api) -> None:
        async with api.here.lock("x") as lease:
            assert await lease.release() is True
            other = await take(api.there.lock("x"))
        assert other.held  # leaving the body released nothing else
        await other.release()

    @pytest.mark.req("R12")
    async def test_a_lease_that_is_over_says_so(self, api: Api) -> None:
        lease = await take(api.here.lock("x"))
        assert 0 < lease.remaining() <= 30
        lease.check()
        await lease.release()
        assert not lease.held
        assert not lease.uncertain
        assert lease.remaining() == 0
        assert not lease.lost.is_set()
        assert await lease.lost.wait(LONG) is False  # ended, and not by a loss
        with pytest.raises(NotHeld):
            lease.check()
        with pytest.raises(NotHeld):
            await lease.renew()

    @pytest.mark.req("R1")
    async def test_close_gives_everything_back(self, api: Api) -> None:
        client = api.connect()
        lease = await take(client.lock("x"))
        other = await take(client.lock("y", renew=False))
        await client.close()
        assert not lease.held
        assert not other.held
        assert lease.lost.is_set()
        assert await lease.release() is False
        await api.free("x")
        await api.free("y")

    @pytest.mark.req("R12")
    async def test_use_after_close(self, api: Api) -> None:
        client = api.connect()
        lock = client.lock("x")
        async with lock:
            pass
        await client.close()
        await client.close()  # again: does nothing
        with pytest.raises(Closed):
            await lock.acquire()
        with pytest.raises(Closed):
            await lock.acquire(blocking=False)
        with pytest.raises(Closed):
            await client.inspect()
        with pytest.raises(Closed):
            await client.evict("x")
