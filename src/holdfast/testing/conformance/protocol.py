"""The laws of `core/backend.py`, asked of the backend itself: no client, no keeper, no retries."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from holdfast import Mode
from holdfast.testing.conformance.harness import LONG, Api, Theme, refused, take
from holdfast.testing.conformance.waiting import PROMPT
from holdfast.types import AlreadyLost, Busy, Grant, Lost, Released, Renewed


class Protocol(Theme):
    @pytest.mark.req("law 2", "law 3", "R32")
    async def test_asking_twice_is_asking_once(self, api: Api) -> None:
        """An attempt whose reply was lost is made again under the same owner."""
        raw = api.raw()
        claim = raw.claim("x")
        first = await raw.grant(claim)
        again = await raw.grant(claim)
        assert again.fence == first.fence
        if api.capabilities.inspection:
            assert len((await api.look("x")).holders) == 1
        assert isinstance(await raw.release(again), Released)
        await api.free("x")

    @pytest.mark.req("law 3", "R8")
    async def test_asking_twice_keeps_the_place_in_line(self, api: Api) -> None:
        api.need_inspection()
        raw = api.raw()
        grant = await raw.grant(raw.claim("x"))
        first, second = raw.claim("x"), raw.claim("x")
        await raw.queue(first)
        await raw.queue(second)
        assert isinstance(await raw.attempt(first, queue=True), Busy)
        assert len(await api.waiters("x")) == 2
        await raw.release(grant)
        granted = await raw.attempt(first)
        assert isinstance(granted, Grant)
        assert isinstance(await raw.attempt(second), Busy)
        await raw.release(granted)
        assert isinstance(await raw.attempt(second), Grant)

    @pytest.mark.req("R7")
    async def test_an_attempt_without_queueing_leaves_no_trace(self, api: Api) -> None:
        raw = api.raw()
        grant = await raw.grant(raw.claim("x"))
        busy = await raw.attempt(raw.claim("x"), queue=False)
        assert isinstance(busy, Busy)
        if api.capabilities.inspection:
            assert not await api.waiters("x")
        await raw.release(grant)
        assert not await refused(api.there.lock("x"))

    @pytest.mark.req("law 4")
    async def test_a_withdrawal_ends_the_wait_of_another(self, api: Api) -> None:
        """Who gives up a claim for somebody else need not also reach the thread that waits."""
        raw = api.raw()
        grant = await raw.grant(raw.claim("x"))
        claim = raw.claim("x")
        busy = await raw.queue(claim)
        waiting = api.spawn(raw.wait(claim, busy, within=10 * LONG))
        await asyncio.sleep(0.05)  # it may or may not wait by now: both must end
        assert isinstance(await raw.withdraw(claim, tombstone=False), Released)
        assert await asyncio.wait_for(waiting, LONG) is None
        await raw.release(grant)

    @pytest.mark.req("R8")
    async def test_wait_brings_the_grant(self, api: Api) -> None:
        raw = api.raw()
        grant = await raw.grant(raw.claim("x"))
        claim = raw.claim("x")
        busy = await raw.queue(claim)
        waiting = api.spawn(raw.wait(claim, busy, within=LONG))
        await raw.release(grant)
        answer = await waiting or await raw.attempt(claim)  # None: another look is worth it
        assert isinstance(answer, Grant)
        assert answer.claim is claim
        assert isinstance(await raw.release(answer), Released)

    @pytest.mark.req("R7", "law 4")
    async def test_wait_ends_at_its_deadline(self, api: Api) -> None:
        raw = api.raw()
        await raw.grant(raw.claim("x"))
        claim = raw.claim("x")
        busy = await raw.queue(claim)
        begun = api.now()
        assert await raw.wait(claim, busy, within=0.1) is None
        assert api.now() - begun < LONG

    @pytest.mark.req("law 3", "attempt in flight while its claim is withdrawn")
    @pytest.mark.parametrize("queue", [False, True])
    async def test_a_late_attempt_of_a_withdrawn_claim_takes_nothing(
        self, api: Api, queue: bool
    ) -> None:
        """Whether it had reached the store before or not."""
        raw = api.raw()
        never, holder = raw.claim("x"), raw.claim("x")
        assert isinstance(await raw.withdraw(never), Released)
        assert not isinstance(await raw.attempt(never, queue), Grant)
        await raw.grant(holder)
        assert isinstance(await raw.withdraw(holder), Released)
        assert not isinstance(await raw.attempt(holder, queue), Grant)
        await api.free("x")

    @pytest.mark.req("law 3", "attempt in flight while its claim is withdrawn")
    async def test_a_late_attempt_of_a_withdrawn_waiter_joins_no_line(self, api: Api) -> None:
        raw = api.raw()
        holder, waiter = raw.claim("x"), raw.claim("x")
        grant = await raw.grant(holder)
        await raw.queue(waiter)
        assert isinstance(await raw.withdraw(waiter), Released)
        assert not isinstance(await raw.attempt(waiter, queue=True), Grant)
        if api.capabilities.inspection:
            assert not await api.waiters("x")
        await raw.release(grant)
        await api.free("x")

    @pytest.mark.req("law 3", "attempt in flight while its claim is released")
    async def test_a_late_attempt_of_a_released_claim_takes_nothing(self, api: Api) -> None:
        raw = api.raw()
        claim = raw.claim("x")
        grant = await raw.grant(claim)
        assert isinstance(await raw.release(grant, tombstone=True), Released)
        assert not isinstance(await raw.attempt(claim), Grant)
        await api.free("x")

    @pytest.mark.req("law 3", "heartbeat in flight while its claim is withdrawn")
    async def test_a_late_heartbeat_creates_nothing(self, api: Api) -> None:
        """`wait` refreshes a place in line; it never makes one."""
        raw = api.raw()
        grant = await raw.grant(raw.claim("x"))
        claim = raw.claim("x", ttl=api.short)
        busy = await raw.queue(claim)
        await raw.withdraw(claim)
        assert await raw.wait(claim, busy, within=1.2 * api.short) is None
        if api.capabilities.inspection:
            assert not await api.waiters("x")
        await raw.release(grant)
        await api.free("x")

    @pytest.mark.req("law 3")
    async def test_withdraw_gives_a_grant_back_with_hand_over(self, api: Api) -> None:
        """The grant may have come just when its claim was given up."""
        raw = api.raw()
        claim = raw.claim("x")
        await raw.grant(claim)
        waiter = await api.queue_up(api.here.lock("x"))
        assert isinstance(await raw.withdraw(claim), Released)
        handed_over = await waiter
        assert handed_over is not None
        assert isinstance(await raw.withdraw(claim), Released)  # again: does nothing
        assert await refused(api.there.lock("x"))
        assert await handed_over.release() is True

    @pytest.mark.req("R3", "law 5")
    async def test_nobody_can_end_anothers_claim(self, api: Api) -> None:
        raw = api.raw()
        lease = await take(api.here.lock("x"))
        stranger = raw.claim("x")
        forged = Grant(stranger, raw.port.now() + 30, fence=None)
        other = raw.claim("y")
        real = await raw.grant(other)
        forged.token = real.token
        assert isinstance(await raw.release(forged), AlreadyLost)
        (answer,) = await raw.renew(forged)
        assert isinstance(answer, Lost)
        await raw.withdraw(stranger)
        await lease.renew()
        assert await refused(api.there.lock("x"))
        assert await lease.release() is True

    @pytest.mark.req("R20", "law 6")
    async def test_a_batch_of_renewals_has_one_answer_each(self, api: Api) -> None:
        raw = api.raw()
        kept = await raw.grant(raw.claim("a"))
        given_up = await raw.grant(raw.claim("b"))
        also_kept = await raw.grant(raw.claim("c"))
        await raw.release(given_up)
        successor = await raw.grant(raw.claim("b"))
        answers = await raw.renew(kept, given_up, also_kept, successor)
        kinds = [type(answer) for answer in answers]
        assert kinds == [Renewed, Lost, Renewed, Renewed]
        for grant, answer in zip((kept, also_kept, successor), (0, 2, 3), strict=True):
            renewed = answers[answer]
            assert isinstance(renewed, Renewed)
            assert renewed.until > grant.until

    @pytest.mark.req("R3", "R6")
    async def test_what_expired_is_neither_renewed_nor_released(self, api: Api) -> None:
        raw = api.raw()
        grant = await raw.grant(raw.claim("x", ttl=api.short))
        await api.pass_time(1.5 * api.short)
        (answer,) = await raw.renew(grant)
        assert isinstance(answer, Lost)
        assert isinstance(await raw.release(grant), AlreadyLost)
        await api.free("x")

    @pytest.mark.req("law 6")
    async def test_a_renewal_never_shortens(self, api: Api) -> None:
        """Two renewals may arrive in either order, and ask for different times."""
        raw = api.raw()
        claim = raw.claim("x")
        grant = await raw.grant(claim)
        (answer,) = await raw.renew(replace(grant, claim=replace(claim, ttl=api.short)))
        assert isinstance(answer, Renewed)
        await api.pass_time(1.5 * api.short)
        assert await refused(api.there.lock("x"))
        assert isinstance(await raw.release(grant), Released)

    @pytest.mark.req("law 1")
    async def test_validity_counts_from_before_the_request(self, api: Api) -> None:
        """The way to the store and back is not part of the lease."""
        raw = api.raw()
        await raw.release(await raw.grant(raw.claim("warm up")))
        slow = 2 * api.short
        api.strategy.delay_requests(slow)
        begun = raw.port.now()
        grant = await raw.grant(raw.claim("x"))
        answered = raw.port.now()  # and not from when we began: it may have been sent much later
        assert answered - begun >= slow
        assert grant.until < answered + 30 - 0.7 * slow
        (answer,) = await raw.renew(grant)
        assert isinstance(answer, Renewed)
        assert answer.until < raw.port.now() + 30 - 0.7 * slow

    @pytest.mark.req("R3", "R10", "B5")
    async def test_every_mode_is_released_and_renewed_by_its_owner(self, api: Api) -> None:
        raw = api.raw()
        for mode in sorted(api.capabilities.modes, key=lambda mode: mode.value):
            limit = 3 if mode is Mode.PERMITS else 1
            claims = [raw.claim(mode.value, mode, limit=limit) for _ in range(2)]
            grant = await raw.grant(claims[0])
            (answer,) = await raw.renew(grant)
            assert isinstance(answer, Renewed)
            other = await raw.attempt(claims[1], queue=False)
            assert isinstance(other, Busy if mode is Mode.EXCLUSIVE else Grant)
            assert isinstance(await raw.release(grant), Released)
            assert isinstance(await raw.release(grant), AlreadyLost)
            if isinstance(other, Grant):
                assert isinstance(await raw.release(other), Released)

    @pytest.mark.req("law 4")
    async def test_closing_wakes_who_waits(self, api: Api) -> None:
        """As the core does it: withdraw what is in line, then close."""
        holder, raw = api.raw(), api.raw()
        await holder.grant(holder.claim("x"))
        claim = raw.claim("x")
        busy = await raw.queue(claim)
        waiting = api.spawn(raw.wait(claim, busy, within=10 * LONG))
        await api.in_line("x", 1)
        await raw.close()
        assert await asyncio.wait_for(waiting, PROMPT) is None
