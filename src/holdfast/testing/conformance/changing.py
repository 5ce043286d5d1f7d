"""From writing to reading, and from hand to hand: what may become of a lease (R10, B3)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from holdfast import (
    LeaseLost,
    Misconfigured,
    Mode,
    NotHeld,
    Unavailable,
    Unsupported,
    WouldDeadlock,
)
from holdfast.testing.conformance.faults import impatient
from holdfast.testing.conformance.harness import LONG, Api, Theme, refused, take
from holdfast.types import Lost, Released, Renewed


class Changing(Theme):
    @pytest.mark.req("R10", "R2")
    async def test_a_reader_cannot_become_a_writer(self, api: Api) -> None:
        """It would wait for itself, and two of them for one another: an error instead."""
        api.need(Mode.SHARED)
        for reentrant in (False, True):
            rwlock = api.here.rwlock("x", reentrant=reentrant)
            other = await take(rwlock.read())
            reader = await take(rwlock.read())
            await other.release()
            with pytest.raises(WouldDeadlock, match="'x'"):
                await rwlock.write().acquire(timeout=LONG)
            with pytest.raises(WouldDeadlock):
                await api.here.lock("x").acquire()
            assert await rwlock.write().acquire(blocking=False) is None  # waits for nobody
            assert not await refused(api.here.lock("y"))
            await reader.release()
            assert await (await take(rwlock.write())).release() is True

    @pytest.mark.req("R10", "B3")
    async def test_a_reader_that_another_releases_may_be_waited_for(self, api: Api) -> None:
        api.need(Mode.SHARED)
        reader = await take(api.here.rwlock("x").read())
        reader.detach()
        begun = asyncio.Event()

        async def elsewhere() -> None:
            await begun.wait()
            await api.in_line("x", 1)
            await reader.release()

        release = api.spawn(elsewhere())
        begun.set()
        writer = await take(api.here.rwlock("x").write(), timeout=4 * LONG)
        await release
        await writer.release()

    @pytest.mark.req("R10")
    async def test_a_writer_becomes_a_reader_or_is_told_that_it_cannot(self, api: Api) -> None:
        api.need(Mode.SHARED)
        lease = await take(api.here.rwlock("x").write())
        try:
            await lease.downgrade()
        except Unsupported:
            assert lease.mode is Mode.EXCLUSIVE
            assert await refused(api.there.rwlock("x").read())
        else:
            assert lease.mode is Mode.SHARED
            reader = await take(api.there.rwlock("x").read())
            assert await refused(api.there.rwlock("x").write())
            assert await lease.renew() > 0
            if Mode.SHARED in api.capabilities.fencing:
                assert reader.fence == lease.fence
            await lease.downgrade()  # again: nothing
            await reader.release()
            assert await refused(api.there.rwlock("x").write())
        assert await lease.release() is True
        await api.free("x")

    async def _downgraded(self, api: Api) -> None:
        api.need(Mode.SHARED)
        async with api.here.lock("probe") as lease:
            try:
                await lease.downgrade()
            except Unsupported as cannot:
                pytest.skip(str(cannot))

    @pytest.mark.req("R10", "R1", "R8")
    async def test_no_writer_comes_between(self, api: Api) -> None:
        """Who waits to write goes on waiting; who waits to read, before any writer, is let in."""
        await self._downgraded(api)
        lease = await take(api.here.rwlock("x").write())
        reader = await api.queue_up(api.there.rwlock("x").read())
        writer = await api.queue_up(api.connect().rwlock("x").write(), timeout=4 * LONG)
        behind = await api.queue_up(api.connect().rwlock("x").read(), timeout=4 * LONG)
        await lease.downgrade()
        read = await asyncio.wait_for(reader, LONG)
        assert read is not None
        assert lease.held
        assert not writer.done()
        await read.release()
        await asyncio.sleep(0.02)
        assert not writer.done()
        assert await lease.release() is True
        written = await asyncio.wait_for(writer, LONG)
        assert written is not None
        assert not behind.done()
        await written.release()
        last = await behind
        assert last is not None
        await last.release()

    @pytest.mark.req("R10", "R1", "R8")
    async def test_a_writer_that_is_first_in_line_goes_on_waiting(self, api: Api) -> None:
        await self._downgraded(api)
        lease = await take(api.here.rwlock("x").write())
        writer = await api.queue_up(api.there.rwlock("x").write(), timeout=4 * LONG)
        await lease.downgrade()
        await asyncio.sleep(0.02)
        assert not writer.done()
        lease.check()
        assert await refused(api.connect().rwlock("x").read())  # it would overtake the writer
        assert await lease.release() is True
        written = await asyncio.wait_for(writer, LONG)
        assert written is not None
        await written.release()

    @pytest.mark.req("R10", "reply lost, command applied")
    async def test_the_reply_to_a_downgrade_is_lost(self, api: Api) -> None:
        """Readers may be inside: so it is a reader, whatever is known, and may ask again."""
        await self._downgraded(api)
        client = await impatient(api)
        lease = await take(client.rwlock("x").write())
        api.strategy.drop_next_reply()
        with contextlib.suppress(Unavailable):
            await lease.downgrade()
        assert lease.mode is Mode.SHARED
        api.strategy.heal()
        await lease.downgrade()
        lease.check()
        reader = await take(api.there.rwlock("x").read())
        assert await lease.renew() > 0
        assert await lease.release() is True
        await reader.release()
        await api.free("x")

    @pytest.mark.req("R10", "law 6")
    async def test_a_renewal_that_crosses_a_downgrade(self, api: Api) -> None:
        """It was sent as a writer's, and arrives when there is a reader."""
        await self._downgraded(api)
        raw = api.raw()
        grant = await raw.grant(raw.claim("x"))
        assert await raw.downgrade(grant) is None
        assert await raw.downgrade(grant) is None  # asking twice is asking once
        (answer,) = await raw.renew(grant)
        assert isinstance(answer, Renewed)
        assert isinstance(await raw.release(grant), Released)
        assert isinstance(await raw.downgrade(grant), Lost)
        await api.free("x")

    @pytest.mark.req("R10", "R6")
    async def test_what_was_downgraded_is_kept_and_lost_like_any_other(self, api: Api) -> None:
        await self._downgraded(api)
        lease = await take(api.here.rwlock("x", ttl=api.brief, renew=api.often).write())
        await lease.downgrade()
        await api.pass_time(api.brief)
        assert lease.remaining() > 0
        assert await refused(api.there.lock("x"))
        assert await api.there.evict("x") == 1
        assert await lease.lost.wait(LONG)
        with pytest.raises(LeaseLost):
            await lease.downgrade()
        await api.free("x")

    @pytest.mark.req("R10", "R5")
    async def test_a_writer_inside_a_writer_is_not_downgraded(self, api: Api) -> None:
        await self._downgraded(api)
        lock = api.here.rwlock("x", reentrant=True).write()
        outer, inner = await take(lock), await take(lock)
        with pytest.raises(Misconfigured, match="more than once"):
            await inner.downgrade()
        await inner.release()
        await outer.downgrade()
        assert outer.mode is Mode.SHARED
        with pytest.raises(WouldDeadlock):
            await lock.acquire(timeout=LONG)
        await outer.release()
        with pytest.raises(NotHeld):
            await outer.downgrade()

    @pytest.mark.req("B3")
    async def test_a_lease_is_passed_on(self, api: Api) -> None:
        """Ownership is the object's: whoever has it may renew and release it."""
        lock = api.here.lock("x")
        lease = await take(lock)

        async def worker() -> bool:
            with pytest.raises(NotHeld):
                await lock.release()  # this one took nothing
            assert await lease.renew() > 0
            lease.check()
            return await lease.release()

        assert await api.apart(worker()) is True
        with pytest.raises(NotHeld):
            lease.check()
        with pytest.raises(NotHeld):
            await lock.release()
        await api.free("x")

    @pytest.mark.req("B2", "R12")
    @pytest.mark.parametrize("how", ["released", "evicted"])
    @pytest.mark.parametrize("kind", ["lock", "multi"])
    async def test_a_lease_that_is_over_is_not_entered(self, api: Api, how: str, kind: str) -> None:
        """The body ran without the lock, and nothing was raised."""
        api.need_inspection()
        here = api.here
        lease = await (take(here.lock("x")) if kind == "lock" else take(here.multi("x")))
        entered = False
        if how == "released":
            await lease.release()
        else:
            await api.there.evict("x")
            with pytest.raises(LeaseLost):
                await lease.renew()
        with pytest.raises(NotHeld if how == "released" else LeaseLost):
            async with lease:
                entered = True
        assert not entered
        await api.free("x")

    @pytest.mark.req("B3", "R12")
    async def test_a_lease_is_entered_by_another(self, api: Api) -> None:
        lease = await take(api.here.lock("x"))

        async def worker() -> None:
            async with lease:
                assert await refused(api.there.lock("x"))

        await api.apart(worker())
        await api.free("x")
