"""What a multi lease is in its client: one thing, whatever happens to one part of it."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import pytest
from tests.waiting import until

import holdfast
from holdfast import Closed, LeaseLost, Misconfigured
from holdfast.core.acquire import Acquisition
from holdfast.ports.thread import drive
from holdfast.types import Busy, Claim


@pytest.mark.req("B5", "law 1")
def test_a_multi_is_held_only_if_each_part_is() -> None:
    with holdfast.connect("memory://multi-parts") as locks:
        lease = locks.multi("a", "b", "c").acquire()
        assert lease
        *_, last = lease._hold.together
        last.certain_until = 0.0
        assert lease.uncertain
        assert not lease.held
        last.certain_until = float("inf")
        lease.check()
        last.until = locks._engine().port.now()
        assert not lease.held
        assert lease.remaining() == 0
        with pytest.raises(LeaseLost, match="'c'"):
            lease.check()
        assert lease.lost.is_set()


@pytest.mark.req("B5", "fork after acquire", "law 8")
def test_a_forked_child_holds_no_multi() -> None:
    with holdfast.connect("memory://multi-fork") as locks:
        lease = locks.multi("a", "b").acquire()
        assert lease
        child = os.fork()
        if child == 0:
            inherited = lease.held or lease.remaining() or lease.release()
            os._exit(1 if inherited else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lease.held
        assert lease.release() is True


@pytest.mark.req("B5", "law 3", "attempt in flight while its claim is withdrawn")
@pytest.mark.parametrize("then", ["busy", "refused"])
def test_what_was_asked_for_together_without_an_answer_is_owed(then: str) -> None:
    """The first was then asked for alone, was busy, and taken for settled: though the request for
    all of them might still arrive, and have it held by nobody."""
    with holdfast.connect("memory://multi-owed") as here, here.lock("a") as lease:
        assert lease.held
        engine = here._engine()
        acquisition = Acquisition(engine, here.lock("a")._want)
        acquisition.claim.unanswered = True  # as `toolbox/multi.py` says that it is
        backend: Any = engine.backend
        withdrawn: list[tuple[str, bool]] = []
        withdraw = backend.withdraw

        async def noted(claim: Claim, tombstone: bool, deadline: float) -> Any:
            withdrawn.append((claim.owner, tombstone))
            return await withdraw(claim, tombstone, deadline)

        async def refused(*_: Any) -> Any:
            raise Misconfigured("no")

        backend.withdraw = noted
        if then == "refused":
            attempt, backend.attempt = backend.attempt, refused
            with pytest.raises(Misconfigured):
                drive(acquisition.run(False, 0.0))
            backend.attempt = attempt
            acquisition.abandon()  # as the skins do
        else:
            assert isinstance(drive(acquisition.run(False, 0.0)), Busy)
        until(lambda: withdrawn == [(acquisition.claim.owner, True)], "it is withdrawn")


@pytest.mark.req("B5", "R12")
def test_a_multi_that_nobody_can_reach_is_given_back() -> None:
    with holdfast.connect("memory://multi-dropped") as locks:
        locks.multi("a", "b").acquire()
        gc.collect()
        with locks.multi("b", "a", timeout=10):
            pass
        multi = locks.multi("a", "b")
        multi.acquire()  # kept by the object that took it
        assert multi.locked()
        assert multi.release() is True


@pytest.mark.req("B5")
def test_a_closed_client_takes_nothing() -> None:
    locks = holdfast.connect("memory://multi-closed")
    lease = locks.multi("a", "b").acquire()
    assert lease
    stripes = locks.stripes("s", 2)
    locks.close()
    assert not lease.held
    assert lease.lost.is_set()
    with pytest.raises(Closed):
        locks.multi("a", "b").acquire()
    with pytest.raises(Closed):
        stripes.any().acquire()


@pytest.mark.req("B5")
def test_as_many_as_there_may_be() -> None:
    names = [f"n{number}" for number in range(1024)]
    with holdfast.connect("memory://multi-many") as locks:
        lease = locks.multi(*names).acquire()
        assert lease
        locks.evict("n1000")
        with pytest.raises(LeaseLost, match="'n1000'"):
            lease.renew()
        until = time.monotonic() + 30
        while locks.inspect():
            assert time.monotonic() < until
        assert lease.release() is False
        with pytest.raises(Misconfigured, match="1024 at most"):
            locks.multi(*names, "one more")
