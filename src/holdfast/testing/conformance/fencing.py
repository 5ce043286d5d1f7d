"""Fencing tokens: larger for every later exclusive holder, whatever happens between (B1)."""

from __future__ import annotations

import pytest

from holdfast import Mode, Unsupported
from holdfast.testing.conformance.harness import Api, Theme, take


class Fencing(Theme):
    @pytest.mark.req("B1")
    async def test_tokens_increase_over_holders_and_clients(self, api: Api) -> None:
        api.need_token()
        tokens: list[int] = []
        for client in (api.here, api.there, api.here, api.connect(port="aio")):
            for _ in range(3):
                async with client.lock("x") as lease:
                    tokens.append(lease.fence)
        assert tokens == sorted(set(tokens))
        assert all(type(token) is int and 0 < token < 2**63 for token in tokens)

    @pytest.mark.req("B1")
    async def test_tokens_increase_over_hand_overs(self, api: Api) -> None:
        api.need_token()
        lease = await take(api.here.lock("x"))
        tokens = [lease.fence]
        turns = [await api.queue_up(api.there.lock("x")) for _ in range(4)]
        await lease.release()
        for turn in turns:
            handed_over = await turn
            assert handed_over is not None
            assert handed_over.fence is not None
            tokens.append(handed_over.fence)
            await handed_over.release()
        assert tokens == sorted(set(tokens))

    @pytest.mark.req("B1", "R6")
    async def test_tokens_increase_over_an_expiry(self, api: Api) -> None:
        api.need_token()
        lease = await take(api.here.lock("x", ttl=api.short, renew=False))
        successor = await take(api.there.lock("x"))
        assert successor.fence > lease.fence  # also a lost lease still says its token
        await successor.release()

    @pytest.mark.req("B1", "eviction")
    async def test_tokens_increase_over_an_eviction(self, api: Api) -> None:
        api.need_token()
        api.need_inspection()
        lease = await take(api.here.lock("x"))
        await api.there.evict("x")
        successor = await take(api.there.lock("x"))
        assert successor.fence > lease.fence
        await successor.release()
        assert await lease.release() is False

    @pytest.mark.req("B1", "key deleted by hand, FLUSHALL")
    async def test_tokens_increase_over_a_deletion_by_hand(self, api: Api) -> None:
        api.need_token()
        lease = await take(api.here.lock("x"))
        api.strategy.steal("x")
        successor = await take(api.there.lock("x"))
        assert successor.fence > lease.fence
        await successor.release()
        assert await lease.release() is False

    @pytest.mark.req("B1", "server restarted without persistence")
    async def test_tokens_increase_over_a_restart_of_the_store(self, api: Api) -> None:
        api.need_token()
        lease = await take(api.here.lock("x"))
        await lease.release()
        api.strategy.restart_server()
        successor = await take(api.connect().lock("x"))
        assert successor.fence > lease.fence
        await successor.release()
        again = await take(api.here.lock("x"))
        assert again.fence > successor.fence
        await again.release()

    @pytest.mark.req("B1", "R20")
    async def test_a_renewal_keeps_the_token(self, api: Api) -> None:
        api.need_token()
        lease = await take(api.here.lock("x"))
        token = lease.fence
        await lease.renew()
        assert lease.fence == token
        if api.capabilities.inspection:
            assert (await api.look("x")).holders[0].fence == token
        await lease.release()

    @pytest.mark.req("B1", "R10")
    async def test_readers_carry_the_last_writers_token(self, api: Api) -> None:
        """Not less than any writer before had, and less than any writer after gets."""
        api.need(Mode.SHARED)
        api.need_token()
        api.need_token(Mode.SHARED)
        async with api.here.rwlock("x").write() as writer:
            pass
        one = await take(api.here.rwlock("x").read())
        two = await take(api.there.rwlock("x").read())
        await one.release()
        await two.release()
        async with api.there.lock("x") as next_writer:
            pass
        async with api.here.rwlock("x").read() as late:
            pass
        assert writer.fence <= one.fence < next_writer.fence <= late.fence
        assert writer.fence <= two.fence < next_writer.fence

    @pytest.mark.req("B1", "R10")
    async def test_tokens_of_writers_increase_over_readers_and_permits(self, api: Api) -> None:
        api.need_token()
        tokens: list[int] = []
        for _ in range(3):
            async with api.here.lock("x") as lease:
                tokens.append(lease.fence)
            if Mode.SHARED in api.capabilities.modes:
                async with api.there.rwlock("x").read():
                    pass
                async with api.there.rwlock("x").write() as lease:
                    tokens.append(lease.fence)
            if Mode.PERMITS in api.capabilities.modes:
                async with api.there.semaphore("x", 2):
                    pass
        assert tokens == sorted(set(tokens))

    @pytest.mark.req("B1", "B5")
    async def test_capabilities_say_which_leases_have_a_token(self, api: Api) -> None:
        assert api.capabilities.fencing <= api.capabilities.modes
        if Mode.PERMITS in api.capabilities.modes:
            async with api.here.semaphore("x", 2) as permit:
                assert (permit.fence is not None) == (Mode.PERMITS in api.capabilities.fencing)
        if Mode.EXCLUSIVE not in api.capabilities.fencing:
            async with api.here.lock("x") as lease:
                with pytest.raises(Unsupported):
                    _ = lease.fence
