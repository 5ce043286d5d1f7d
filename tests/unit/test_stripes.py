"""What waiting for any of several stripes leaves behind in its client: nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.waiting import settled, until

import holdfast
from holdfast import Unavailable, aio
from holdfast.backends.memory import MemoryBackend
from holdfast.core.acquire import Acquisition, GivenUp
from holdfast.core.hold import Hold
from holdfast.ports.thread import drive
from holdfast.toolbox.stripes import AnyAcquisition, Lines, Place
from holdfast.types import Claim, Released, Unknown


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "holdfast-stripe"]


@pytest.mark.req("R11", "law 4")
def test_grants_that_came_too_late_are_forgotten() -> None:
    """All stripes are freed at once: each line may be granted before it is left."""
    with holdfast.connect("memory://stripes-late") as locks:
        keeper = locks._engine().keeper
        stripes = locks.stripes("s", 6)
        got: list[holdfast.StripeLease | None] = []
        for _ in range(20):
            everything = stripes.all().acquire()
            assert everything
            waiter = threading.Thread(target=lambda: got.append(stripes.any().acquire(timeout=60)))
            waiter.start()
            until(lambda: sum(len(info.waiters) for info in locks.inspect("s")) == 6, "six lines")
            everything.release()
            waiter.join()
            lease = got.pop()
            assert lease
            assert lease.release() is True
            until(lambda: keeper.idle and not keeper._claims and not threads(), "nothing is left")
            assert locks.inspect() == []


@pytest.mark.req("R11", "law 4")
def test_a_wait_in_vain_leaves_no_threads() -> None:
    with holdfast.connect("memory://stripes-vain") as locks:
        stripes = locks.stripes("s", 4)
        with stripes.all():
            assert stripes.any().acquire(timeout=0.05) is None
            until(lambda: not threads(), "nobody stands in line")
            assert not any(info.waiters for info in locks.inspect())


@pytest.mark.req("R11", "B3")
def test_a_client_that_is_closed_ends_the_wait() -> None:
    with holdfast.connect("memory://stripes-closed") as other:
        locks = holdfast.connect("memory://stripes-closed")
        said: list[BaseException] = []

        def wait() -> None:
            try:
                locks.stripes("s", 3).any().acquire()
            except holdfast.HoldfastError as error:
                said.append(error)

        with other.stripes("s", 3).all():
            waiter = threading.Thread(target=wait)
            waiter.start()
            until(lambda: sum(len(info.waiters) for info in other.inspect()) == 3, "three lines")
            locks.close()
            waiter.join(30)
            assert isinstance(said[0], holdfast.Closed)
            until(lambda: not threads(), "nobody stands in line")
            assert not any(info.waiters for info in other.inspect())


@pytest.mark.req("R11", "R1", "law 3")
def test_what_is_being_withdrawn_is_given_to_nobody() -> None:
    """Its claim was granted, and given up before that was noticed; somebody new waits by then."""
    with holdfast.connect("memory://stripes-given-up") as locks:
        stripes = locks.stripes("s", 1)
        lines = stripes._lines(locks._engine())
        waiter = stripes.any()._acquisition(locks._engine())
        assert isinstance(waiter, AnyAcquisition)
        lines._waiting.append(waiter)
        place = Place(0, Acquisition(locks._engine(), lines.wants[0]))
        hold = drive(place.member.run(True, -1.0))
        assert isinstance(hold, Hold)
        place.member.give_up()
        assert lines._next(place, hold) is None
        assert waiter.won is None
        place = Place(0, Acquisition(locks._engine(), lines.wants[0]))
        assert lines._next(place, hold) is waiter
        assert waiter.won is hold


@pytest.mark.req("R11", "R8")
def test_who_waits_in_one_client_is_served_in_order() -> None:
    with holdfast.connect("memory://stripes-order") as locks:
        stripes = locks.stripes("s", 2)
        lines = stripes._lines(locks._engine())
        everything = stripes.all().acquire()
        assert everything
        served: list[int] = []

        def wait(number: int) -> None:
            with stripes.any():
                served.append(number)

        waiters = [threading.Thread(target=wait, args=(number,)) for number in range(5)]
        for number, waiter in enumerate(waiters):
            waiter.start()
            until(lambda: len(lines._waiting) == number + 1, "it waits")  # noqa: B023

        def in_line() -> int:
            return sum(len(info.waiters) for info in locks.inspect("s"))

        until(lambda: in_line() >= 2, "they stand in line")
        assert settled(in_line) == 2  # one in each
        first, second = everything._hold.together
        drive(locks._engine().backend.release(first.grant, False, first.until))
        for waiter in waiters:
            waiter.join(30)
        assert served == [0, 1, 2, 3, 4]
        assert second.grant.claim.name == "s[1/2]"
        everything.release()


@pytest.mark.req("R11", "law 3")
def test_who_was_given_up_asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by another thread, before its first request or when its claim was found to be buried."""
    with holdfast.connect("memory://stripes-buried") as locks:
        engine = locks._engine()
        member = Acquisition(engine, locks.lock("x")._want)
        assert member.give_up() is True  # for all the other thread knows, it is asking just now
        with pytest.raises(GivenUp):
            drive(member.run(True, -1.0))
        assert locks.inspect() == []
        member = Acquisition(engine, locks.lock("x")._want)
        drive(engine.backend.withdraw(member.claim, True, engine.port.now() + 9))
        attempt = engine.backend.attempt

        async def attempted(*request: Any) -> Any:
            member.give_up()
            return await attempt(*request)

        monkeypatch.setattr(engine.backend, "attempt", attempted)
        with pytest.raises(GivenUp):
            drive(member.run(True, -1.0))
        assert locks.inspect() == []
        assert not engine.keeper._claims or engine.keeper._owed


@pytest.mark.req("R11", "asyncio cancellation at any await")
def test_who_waits_is_told_when_those_who_stand_in_line_are_cancelled() -> None:
    """Somebody cancelled all other tasks: nobody stood in line any more, and who waited did so for
    ever, however free the stripes were."""

    async def main() -> None:
        async with aio.connect("memory://stripes-cancelled") as locks:
            stripes = locks.stripes("s", 2)
            held = [await stripes.any().acquire() for _ in range(2)]
            waiter = asyncio.create_task(stripes.any().acquire())
            while sum(len(info.waiters) for info in await locks.inspect("s")) < 2:
                await asyncio.sleep(0.005)
            standing = [t for t in asyncio.all_tasks() if t.get_name() == "holdfast-stripe"]
            assert len(standing) == 2
            standing[0].cancel()
            await asyncio.sleep(0.05)
            assert not waiter.done()  # the other line may do better
            standing[1].cancel()
            with pytest.raises(Unavailable, match="cancelled"):
                await asyncio.wait_for(waiter, 10)
            for lease in held:
                assert lease is not None
                await lease.release()
            async with stripes.any():
                pass

    asyncio.run(main())


@pytest.mark.req("R11", "B2")
@pytest.mark.parametrize("trouble", ["store", "thread"])
def test_a_line_that_failed_alone_is_stood_in_again(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody stood there until another stripe was granted: a free one was waited beside."""
    failed, attempt, start = threading.Event(), MemoryBackend.attempt, threading.Thread.start
    started = 0

    async def attempted(self: MemoryBackend, claim: Claim, queue: bool, deadline: float) -> Any:
        if trouble == "store" and queue and claim.name == "s[1/2]" and not failed.is_set():
            failed.set()
            raise holdfast.Unsupported("not now")
        return await attempt(self, claim, queue, deadline)

    def begun(thread: threading.Thread) -> None:
        nonlocal started
        started += thread.name == "holdfast-stripe"
        if trouble == "thread" and started == 2 and not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(MemoryBackend, "attempt", attempted)
    with holdfast.connect("memory://stripes-again") as locks:
        stripes = locks.stripes("s", 2)
        held = {lease.stripe: lease for _ in "ab" if (lease := stripes.any().acquire())}
        monkeypatch.setattr(threading.Thread, "start", begun)
        got: list[holdfast.StripeLease | None] = []
        waiter = threading.Thread(target=lambda: got.append(stripes.any().acquire(timeout=20)))
        waiter.start()
        assert failed.wait(10)
        assert held[1].release()
        waiter.join(30)
        assert got[0]
        assert got[0].stripe == 1
        assert got[0].release()
        assert held[0].release()


@pytest.mark.req("R9")
def test_those_who_are_granted_at_once_do_not_all_withdraw_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each withdrew all others, one after another: the square of the number of stripes."""
    withdrawn: list[str] = []
    withdraw = MemoryBackend.withdraw

    async def slow(self: MemoryBackend, claim: Claim, *rest: Any) -> Released | Unknown:
        withdrawn.append(claim.owner)
        for _ in range(100):  # meanwhile all the others are granted theirs
            await asyncio.sleep(0)
        return await withdraw(self, claim, *rest)

    async def main() -> None:
        async with aio.connect("memory://granted-at-once") as locks:
            stripes = locks.stripes("x", 30)
            held = [await stripes.any().acquire() for _ in range(stripes.count)]
            waiting = asyncio.create_task(stripes.any().acquire())
            while sum(len(info.waiters) for info in await locks.inspect("x")) < stripes.count:
                await asyncio.sleep(0)
            monkeypatch.setattr(MemoryBackend, "withdraw", slow)
            half = held[: stripes.count // 2]
            assert all([lease and await lease.release() for lease in half])
            assert await waiting
            while any(info.waiters for info in await locks.inspect("x")):
                await asyncio.sleep(0)
            assert len(withdrawn) < 2 * stripes.count

    asyncio.run(main())


@pytest.mark.req("R11")
def test_threads_that_come_at_once_wait_in_the_same_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that came at once had lines of their own, and stood in each of them twice."""
    made, other = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Lines:
        if made.is_set():
            other.set()
        made.set()
        other.wait(0.5)
        return Lines(*arguments)

    monkeypatch.setattr("holdfast.toolbox.stripes.Lines", slow)
    with holdfast.connect("memory://stripes-at-once") as locks:
        stripes, engine = locks.stripes("s", 2), locks._engine()
        got: list[Lines] = []
        first = threading.Thread(target=lambda: got.append(stripes._lines(engine)))
        first.start()
        assert made.wait(10)
        got.append(stripes._lines(engine))
        first.join(10)
        assert got[0] is got[1]
