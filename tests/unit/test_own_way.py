"""Who waits for itself, or blocks an event loop, is told so at once: on both ports, when it waits.

Without a timeout a lock that is taken twice by mistake is waited for for ever, in silence; and with
one the advice was to wait longer.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import AcquireTimeout, aio
from holdfast.testing.conformance.threaded import Threaded

numbers = itertools.count()
SHORT = 0.02

Test = Callable[[Any], Coroutine[Any, Any, None]]


@pytest.fixture(params=["threads", "tasks"])
def run(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    """Run it with a client of that kind, which has one face."""
    url = f"memory://own-way{next(numbers)}"

    async def main(test: Test) -> None:
        if request.param == "tasks":
            client: Any = aio.connect(url)
        else:
            client = Threaded(holdfast.connect(url))
        async with client:
            await test(client)

    return lambda test: asyncio.run(main(test))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """The warnings until now, which are forgotten then. A loss, which is told by another thread, is
    none of ours."""
    caplog.set_level(logging.WARNING, logger="holdfast")

    def warnings() -> list[str]:
        messages = [record.getMessage() for record in caplog.records if record.name == "holdfast"]
        caplog.clear()
        return [message for message in messages if not message.startswith("lease of 'a' lost")]

    yield warnings
    assert warnings() == []


Said = Callable[[], list[str]]
Run = Callable[[Test], None]


def one(said: Said, *, advice: str) -> None:
    (warning,) = said()
    assert "is waited for by the t" in warning
    assert advice in warning


@pytest.mark.req("B4")
@pytest.mark.parametrize(
    "reentrant", [(False, False), (True, False), (False, True)], ids=["plain", "outer", "inner"]
)
def test_who_takes_it_twice_hears_that_it_waits_for_itself(
    run: Run, said: Said, reentrant: tuple[bool, bool]
) -> None:
    async def test(locks: Any) -> None:
        outer, inner = (locks.lock("a", timeout=SHORT, reentrant=yes) for yes in reentrant)
        async with outer:
            with pytest.raises(AcquireTimeout, match=r"by this very .* reentrant=True") as caught:
                async with inner:
                    pass
            assert "Wait longer" not in str(caught.value)
            assert "for 0.02 s, while it waited for itself" in str(caught.value)
            one(said, advice="reentrant=True")
            for _ in range(3):  # once is enough, of one lease
                assert await inner.acquire(timeout=SHORT) is None
        async with inner:  # and again of the next
            assert await outer.acquire(timeout=SHORT) is None
        one(said, advice="detach()")

    run(test)


@pytest.mark.req("B4")
def test_it_is_said_at_once_and_not_when_the_time_is_over(run: Run, said: Said) -> None:
    async def test(locks: Any) -> None:
        lease = await locks.lock("a").acquire()  # of a lock object that nobody keeps
        assert lease

        async def frees() -> None:
            while not (messages := said()):
                await asyncio.sleep(0.001)
            heard.extend(messages)
            await lease.release()

        heard: list[str] = []
        task = asyncio.create_task(frees())
        async with locks.lock("a"):  # without a timeout
            pass
        await task
        assert len(heard) == 1

    run(test)


@pytest.mark.req("B4")
def test_who_did_not_wait_is_told_why_and_nothing_is_logged(run: Run, said: Said) -> None:
    async def test(locks: Any) -> None:
        async with locks.lock("a"):
            with pytest.raises(
                AcquireTimeout, match=r"'a' was held by this very thread or task\. "
            ):
                async with locks.lock("a", timeout=0):
                    pass
            assert await locks.lock("a").acquire(blocking=False) is None

    run(test)


@pytest.mark.req("B4")
def test_other_kinds_that_exclude_themselves(run: Run, said: Said) -> None:
    async def test(locks: Any) -> None:
        rwlock = locks.rwlock("rw", timeout=SHORT)
        async with rwlock.write():
            assert await rwlock.read().acquire() is None
            one(said, advice="Release that first")
        async with locks.semaphore("s", 3, take=2):
            assert await locks.semaphore("s", 3, take=2).acquire(timeout=SHORT) is None
        one(said, advice="Release that first")
        async with locks.multi("a", "b"):
            assert await locks.lock("b").acquire(timeout=SHORT) is None
            one(said, advice="reentrant")
        async with locks.lock("c"):
            with pytest.raises(AcquireTimeout, match="'c' was held by this very"):
                async with locks.multi("b", "c", timeout=SHORT):
                    pass
        one(said, advice="reentrant")

    run(test)


@pytest.mark.req("B4")
def test_who_waits_for_somebody_else_is_not_told_so(run: Run, said: Said) -> None:
    async def test(locks: Any) -> None:
        async def another() -> None:
            async with locks.semaphore("s", 2):  # with this one there would be room for two
                for busy in (
                    locks.lock("a", timeout=SHORT),
                    locks.semaphore("s", 2, timeout=SHORT),
                ):
                    with pytest.raises(AcquireTimeout, match="Wait longer"):
                        async with busy:
                            pass

        async with locks.lock("a"), locks.semaphore("s", 2), locks.stripes("x", 1).any():
            assert await locks.stripes("x", 1).any().acquire(timeout=SHORT) is None  # any will do
            await asyncio.create_task(another())

    run(test)


@pytest.mark.req("B4")
def test_a_lease_that_was_passed_on_is_waited_for_in_silence(run: Run, said: Said) -> None:
    async def test(locks: Any) -> None:
        for reentrant in (False, True):
            lease = await locks.lock("a", reentrant=reentrant).acquire()
            lease.detach()

            async def frees() -> None:
                while not any(info.waiters for info in await locks.inspect("a")):
                    await asyncio.sleep(0.001)
                await lease.release()  # noqa: B023 - awaited within the turn

            task = asyncio.create_task(frees())
            async with locks.lock("a", reentrant=reentrant):
                pass
            await task

    run(test)


@pytest.mark.req("B4")
def test_who_holds_very_many_is_not_looked_through(
    run: Run, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.reentry.LOOKED_THROUGH", 2)

    async def test(locks: Any) -> None:
        async with locks.lock("a"), locks.lock("b"):
            assert await locks.lock("a").acquire(timeout=SHORT) is None
            one(said, advice="reentrant")
            async with locks.lock("c"):
                assert await locks.lock("b").acquire(timeout=SHORT) is None

    run(test)


@pytest.mark.req("B4")
def test_a_lease_that_ends_by_itself_may_be_waited_for(run: Run, said: Said) -> None:
    async def test(locks: Any) -> None:
        lease = await locks.lock("a", ttl=2 * SHORT, renew=False).acquire()
        async with locks.lock("a"):
            assert not lease.held

    run(test)


# -- an event loop that stands still ---------------------------------------------------------------


@pytest.mark.req("B4")
def test_a_blocking_wait_inside_an_event_loop_is_said_once(said: Said) -> None:
    url = f"memory://own-way{next(numbers)}"
    with holdfast.connect(url) as locks, holdfast.connect(url) as other:

        async def main() -> None:
            with locks.lock("a"):  # is free: holds up nobody
                assert said() == []
            with other.lock("a"), other.stripes("s", 1).any():
                assert locks.lock("a").acquire(blocking=False) is None
                assert said() == []
                for _ in range(3):
                    assert locks.lock("a").acquire(timeout=SHORT) is None
                    assert locks.stripes("s", 1).any().acquire(timeout=SHORT) is None
                (warning,) = said()
                assert "Use holdfast.aio" in warning

        asyncio.run(main())


@pytest.mark.req("B4")
def test_a_blocking_wait_beside_an_event_loop_is_fine(said: Said) -> None:
    url = f"memory://own-way{next(numbers)}"
    with holdfast.connect(url) as locks, holdfast.connect(url) as other, other.lock("a"):
        waits = threading.Thread(target=lambda: locks.lock("a").acquire(timeout=SHORT))

        async def main() -> None:
            waits.start()
            await asyncio.to_thread(waits.join)

        asyncio.run(main())
        assert locks.lock("a").acquire(timeout=SHORT) is None  # asyncio is there, and nothing runs
