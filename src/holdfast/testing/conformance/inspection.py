"""What an operator sees and may do: inspect, locked, evict (and law 9: no secrets)."""

from __future__ import annotations

import pytest

from holdfast import Mode
from holdfast.testing.conformance.harness import LONG, Api, Theme, refused, take


class Inspection(Theme):
    @pytest.mark.req("R12")
    async def test_locked(self, api: Api) -> None:
        api.need_inspection()
        lock = api.here.lock("x")
        assert not await lock.locked()
        async with api.there.lock("x"):
            assert await lock.locked()
            assert not await api.here.lock("xx").locked()
        assert not await lock.locked()

    @pytest.mark.req("R12")
    async def test_holders_are_shown(self, api: Api) -> None:
        api.need_inspection()
        client = api.connect(label="nightly")
        assert await api.here.inspect() == []
        lease = await take(client.lock("x", metadata={"job": "import"}))
        info = await api.look("x")
        (holder,) = info.holders
        assert not info.waiters
        assert holder.mode is Mode.EXCLUSIVE
        assert holder.info["label"] == "nightly"
        assert holder.info["job"] == "import"
        assert holder.info["pid"]
        assert holder.info["host"]
        assert holder.since >= 0
        assert holder.remaining is None or 0 < holder.remaining <= 31
        if Mode.EXCLUSIVE in api.capabilities.fencing:
            assert holder.fence == lease.fence
            assert info.fence == lease.fence
        await lease.release()
        assert await api.here.inspect() == []

    @pytest.mark.req("R8")
    async def test_waiters_are_shown_in_order(self, api: Api) -> None:
        api.need_inspection()
        api.need_order()
        lease = await take(api.here.lock("x"))
        turns = [
            await api.queue_up(api.there.lock("x", metadata={"number": str(number)}))
            for number in range(4)
        ]
        info = await api.look("x")
        assert len(info.holders) == 1
        assert [waiter.info["number"] for waiter in info.waiters] == ["0", "1", "2", "3"]
        assert len({claim.id for claim in (*info.holders, *info.waiters)}) == 5
        await lease.release()
        for turn in turns:
            handed_over = await turn
            assert handed_over is not None
            await handed_over.release()

    @pytest.mark.req("R10", "B5")
    async def test_readers_and_permits_are_shown(self, api: Api) -> None:
        api.need_inspection()
        api.need(Mode.SHARED, Mode.PERMITS)
        readers = [await take(client.rwlock("r").read()) for client in (api.here, api.there)]
        permits = [await take(api.here.semaphore("s", 5, take=n)) for n in (1, 3)]
        shown = {info.name: info for info in await api.there.inspect()}
        assert [holder.mode for holder in shown["r"].holders] == [Mode.SHARED] * 2
        assert sorted(holder.permits for holder in shown["s"].holders) == [1, 3]
        for lease in (*readers, *permits):
            await lease.release()

    @pytest.mark.req("names")
    async def test_a_prefix_selects_and_names_are_sorted(self, api: Api) -> None:
        api.need_inspection()
        names = ["b", "ab", "a", "abc", "aC", "B"]
        leases = [await take(api.here.lock(name)) for name in names]
        assert [info.name for info in await api.there.inspect()] == sorted(names)
        assert [info.name for info in await api.there.inspect("a")] == ["a", "aC", "ab", "abc"]
        assert [info.name for info in await api.there.inspect("ab")] == ["ab", "abc"]
        assert await api.there.inspect("c") == []
        for lease in leases:
            await lease.release()

    @pytest.mark.req("R6")
    async def test_what_expired_is_not_shown(self, api: Api) -> None:
        api.need_inspection()
        lease = await take(api.here.lock("x", ttl=api.short, renew=False))

        async def nobody() -> bool:
            return await api.here.inspect() == []

        await api.until(nobody, "an expired holder is shown no more")
        assert not await api.there.lock("x").locked()
        assert await lease.release() is False

    @pytest.mark.req("law 9")
    async def test_owner_ids_are_not_shown(self, api: Api) -> None:
        """Whoever knows the owner id can release the lock."""
        api.need_inspection()
        raw = api.raw()
        holder, waiter = raw.claim("x"), raw.claim("x")
        grant = await raw.grant(holder)
        busy = await raw.queue(waiter)
        lease = await take(api.here.lock("y"))
        shown = repr(
            [await api.here.inspect(), await raw.inspect("", exact=False), holder, busy.holder]
        )
        assert "nowhere" in shown
        for owner in (holder.owner, waiter.owner):
            assert owner not in shown
        assert repr(lease)
        await lease.release()
        await raw.release(grant)

    @pytest.mark.req("eviction")
    async def test_evict_says_how_many_it_ended(self, api: Api) -> None:
        api.need_inspection()
        assert await api.here.evict("x") == 0
        lease = await take(api.here.lock("x"))
        other = await take(api.here.lock("xx"))
        assert await api.there.evict("x") == 1
        assert await api.there.evict("x") == 0
        assert other.held
        assert await refused(api.there.lock("xx"))
        successor = await take(api.there.lock("x"), timeout=0)
        assert await lease.release() is False
        assert successor.held
        assert await refused(api.here.lock("x"))
        assert await successor.release() is True
        assert await other.release() is True

    @pytest.mark.req("R6", "eviction")
    async def test_evict_does_not_count_who_had_expired(self, api: Api) -> None:
        api.need_inspection()
        lease = await take(api.here.lock("x"))
        api.strategy.expire_now("x")
        assert await api.there.evict("x") == 0
        assert await lease.release() is False

    @pytest.mark.req("R10", "eviction")
    async def test_evict_ends_all_holders(self, api: Api) -> None:
        api.need_inspection()
        api.need(Mode.SHARED)
        readers = [await take(client.rwlock("x").read()) for client in (api.here, api.there)]
        assert await api.there.evict("x") == 2
        writer = await take(api.here.rwlock("x").write(), timeout=0)
        assert [await reader.release() for reader in readers] == [False, False]
        assert await writer.release() is True

    @pytest.mark.req("R9", "eviction")
    async def test_evict_hands_over_to_the_line(self, api: Api) -> None:
        api.need_inspection()
        lease = await take(api.here.lock("x"))
        first = await api.queue_up(api.there.lock("x"))
        second = await api.queue_up(api.connect().lock("x"))
        assert await api.connect().evict("x") == 1
        done = await first
        assert done is not None
        assert done.held
        assert not second.done()
        assert await lease.release() is False
        await done.release()
        last = await second
        assert last is not None
        await last.release()

    @pytest.mark.req("R9", "eviction")
    async def test_an_evicted_fixed_lease_is_found_out_on_release(self, api: Api) -> None:
        """It has no renewal at which to notice; its release must still not free a successor."""
        api.need_inspection()
        lease = await take(api.here.lock("x", renew=False))
        await api.there.evict("x")
        successor = await take(api.there.lock("x"), timeout=LONG)
        assert await lease.release() is False
        assert lease.lost.is_set()
        assert await refused(api.here.lock("x"))
        assert await successor.release() is True
