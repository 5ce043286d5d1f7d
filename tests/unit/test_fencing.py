"""Gates without a server: what a token is, and gates of threads and tasks."""

from __future__ import annotations

import asyncio
import pickle
import threading

import pytest

import holdfast
from holdfast import HoldfastError, Misconfigured, StaleFence, Unsupported, aio, fencing
from holdfast.fencing import aio as afencing
from holdfast.fencing.tokens import token_of

pytestmark = pytest.mark.req("B1")

PATIENCE = 60.0


# -- tokens ----------------------------------------------------------------------------------------


def test_a_token_is_an_exclusive_leases_or_a_number() -> None:
    with holdfast.connect("memory://fencing") as locks:
        with locks.lock("x") as lease:
            assert token_of(lease) == lease.fence
        with locks.rwlock("x").write() as writer:
            assert token_of(writer) == writer.fence
        with locks.rwlock("x").read() as reader, pytest.raises(Misconfigured, match="is shared"):
            token_of(reader)
        with locks.semaphore("y", 2) as permit, pytest.raises(Misconfigured, match="a permit"):
            token_of(permit)  # type: ignore[arg-type]
    assert token_of(2**63 - 1) == 2**63 - 1
    for wrong in (0, -1, 2**63, True, None, "7", 7.0, object()):
        with pytest.raises(Misconfigured):
            token_of(wrong)  # type: ignore[arg-type]


def test_a_lost_lease_still_has_its_token() -> None:
    """A gate does not ask whether it holds: that question is the race itself."""
    with holdfast.connect("memory://fencing") as locks:
        lease = locks.lock("x").acquire()
        assert lease is not None
        locks.evict("x")
        assert lease.release() is False
        assert token_of(lease) == lease.fence


def test_a_lease_without_a_token_says_which_backend_has_one() -> None:
    class Lease:
        name = "x"
        mode = holdfast.Mode.EXCLUSIVE

        @property
        def fence(self) -> int:
            raise Unsupported("this backend gives no fencing token")

    with pytest.raises(Unsupported):
        token_of(Lease())


def test_a_refusal_says_what_to_do_and_travels() -> None:
    gate = fencing.Gate("account 7", highest=9)
    with pytest.raises(StaleFence, match=r"account 7.*8.*older than 9.*acquire") as refused:
        gate.check(8)
    error = refused.value
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(error, HoldfastError)
    for one in (error, again):
        assert (str(one), one.resource, one.token, one.highest) == (
            str(error), "account 7", 8, 9,
        )  # fmt: skip


# -- in this process -------------------------------------------------------------------------------


@pytest.mark.req("client paused longer than its lease")
def test_a_thread_that_wakes_up_late_is_refused() -> None:
    gate = fencing.Gate("the list")
    written: list[str] = []
    held, go_on = threading.Event(), threading.Event()
    refused: list[StaleFence] = []
    with holdfast.connect("memory://fencing") as locks:

        def pausing() -> None:
            lease = locks.lock("list", ttl=0.2, renew=False).acquire()
            assert lease is not None
            held.set()
            assert go_on.wait(PATIENCE)
            try:
                with gate.passing(lease):
                    written.append("late")
            except StaleFence as error:
                refused.append(error)

        thread = threading.Thread(target=pausing)
        thread.start()
        assert held.wait(PATIENCE)
        with locks.lock("list", timeout=PATIENCE) as lease, gate.passing(lease) as token:
            assert token == lease.fence == gate.highest
            written.append("new")
        go_on.set()
        thread.join(PATIENCE)
    assert written == ["new"]
    assert len(refused) == 1


def test_nobody_passes_while_somebody_writes() -> None:
    """Else the older one, compared first, could write last."""
    gate = fencing.Gate()
    written: list[int] = []
    inside, newer = threading.Event(), threading.Event()

    def older() -> None:
        with gate.passing(1):
            inside.set()
            # In vain, if the gate is right; if not, it is set by the newer one, which is inside.
            newer.wait(0.2)
            written.append(1)

    def later() -> None:
        assert inside.wait(PATIENCE)
        with gate.passing(2):
            newer.set()
            written.append(2)

    threads = [threading.Thread(target=work) for work in (older, later)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert written == [1, 2]


def test_a_body_that_fails_leaves_the_gate_open_for_others() -> None:
    gate = fencing.Gate()
    with pytest.raises(KeyError), gate.passing(5):
        raise KeyError
    assert gate.check(5) == 5
    assert "5" in repr(gate)


@pytest.mark.req("client paused longer than its lease")
def test_a_task_that_wakes_up_late_is_refused() -> None:
    async def work() -> None:
        gate = afencing.Gate("the list")
        written: list[str] = []
        async with aio.connect("memory://fencing") as locks:
            late = await locks.lock("list", ttl=0.1, renew=False).acquire()
            assert late is not None
            async with locks.lock("list", timeout=PATIENCE) as lease:
                async with gate.passing(lease):
                    await asyncio.sleep(0)
                    written.append("new")
                with pytest.raises(StaleFence):
                    async with gate.passing(late):
                        written.append("late")
                with pytest.raises(StaleFence):
                    gate.check(late)
                assert gate.check(lease) == gate.highest == lease.fence
            assert await late.release() is False
        assert written == ["new"]
        assert "list" in repr(gate)

    asyncio.run(work())


def test_no_task_passes_while_another_writes() -> None:
    async def work() -> None:
        gate = afencing.Gate()
        written: list[int] = []
        inside = asyncio.Event()

        async def older() -> None:
            async with gate.passing(1):
                inside.set()
                for _ in range(20):
                    await asyncio.sleep(0)
                written.append(1)

        async def later() -> None:
            await inside.wait()
            async with gate.passing(2):
                written.append(2)

        await asyncio.gather(older(), later())
        assert written == [1, 2]

    asyncio.run(work())


def test_no_task_passes_by_check_while_another_writes() -> None:
    async def work() -> None:
        gate = afencing.Gate()
        async with gate.passing(5):
            gate.check(5)  # its own
            with pytest.raises(Misconfigured, match="passing"):
                gate.check(6)
            with pytest.raises(StaleFence):
                gate.check(4)
        assert gate.check(6) == 6

    asyncio.run(work())
