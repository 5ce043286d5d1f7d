"""Holders and waiters in processes of their own: killed, paused, interrupted, forked (R2, B3).

A lock that lives in one process skips what needs two, by its `capabilities`; what a forked child
may do holds for every backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from holdfast import LeaseLost, Unsupported
from holdfast.testing.conformance.harness import LONG, Api, Theme, refused, take

CHILD = Path(__file__).with_name("child.py")


class Child:
    """One client in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ask(self, do: str, **details: Any) -> dict[str, Any]:
        await self.tell(do, **details)
        return await self.answer()

    async def tell(self, do: str, **details: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **details}).encode() + b"\n")
        await self.process.stdin.drain()

    async def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 8 * LONG)
        assert line, "the child died"
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def acquire(self, name: str, timeout: float = LONG, **options: Any) -> int | None:
        """The fencing token of the lease the child now has."""
        answer = await self.ask("acquire", name=name, timeout=timeout, **options)
        assert answer.get("got"), answer
        token: int | None = answer["fence"]
        return token

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 4 * LONG)


@contextlib.asynccontextmanager
async def child_of(api: Api) -> AsyncGenerator[Child, None]:
    api.need_processes()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(CHILD), api.url, api.port, *api.strategy.child_imports,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    child = Child(process)
    try:
        assert await child.answer() == {"ready": True}
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def in_a_fork(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """What `work` returns in a forked child of this process, on a loop and in threads of its
    own. The parent's loop goes on meanwhile, and with it the parent's renewals."""
    readable, writable = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads here: which is the point
        pid = os.fork()
    if not pid:
        _child_main(work, writable)
    os.close(writable)
    answer = json.loads(await asyncio.to_thread(_answer_of, pid, readable))
    assert "error" not in answer, answer["error"]
    return answer["result"]


def _answer_of(pid: int, readable: int) -> bytes:
    kill = threading.Timer(4 * LONG, os.kill, (pid, signal.SIGKILL))
    kill.start()
    try:
        with open(readable, "rb") as pipe:
            return pipe.read() or b'{"error": "the forked child hung, or died without a word"}'
    finally:
        os.waitpid(pid, 0)
        kill.cancel()
        kill.join()


def _child_main(work: Callable[[], Coroutine[Any, Any, Any]], writable: int) -> None:
    def main() -> None:
        try:
            answer = {"result": asyncio.run(work())}
        except BaseException as error:  # noqa: BLE001 - it is raised again in the parent
            answer = {"error": repr(error)}
        os.write(writable, json.dumps(answer).encode())

    # A thread of its own: this one still believes to be inside the parent's event loop.
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    os._exit(0)


class Processes(Theme):
    @pytest.mark.req("R1", "R2", "holder killed -9")
    async def test_a_killed_holder_blocks_nobody_for_longer_than_its_lease(self, api: Api) -> None:
        async with child_of(api) as child:
            token = await child.acquire("x", ttl=api.brief)
            assert await refused(api.here.lock("x"))
            waiter = await api.queue_up(api.here.lock("x"))
            child.signal(signal.SIGKILL)
            lease = await waiter
            assert lease is not None
            if token is not None and lease.fence is not None:
                assert lease.fence > token
            await lease.release()

    @pytest.mark.req("R2", "waiter killed")
    async def test_a_killed_waiter_is_passed_over(self, api: Api) -> None:
        async with child_of(api) as child:
            lease = await take(api.here.lock("x"))
            await child.tell("acquire", name="x", ttl=api.brief, timeout=LONG)
            await api.in_line("x", 1)
            waiter = await api.queue_up(api.there.lock("x", ttl=api.brief), timeout=3 * LONG)
            child.signal(signal.SIGKILL)
            await child.ended()
            await lease.release()
            handed_over = await waiter
            assert handed_over is not None
            await handed_over.release()

    @pytest.mark.req("R3", "R21", "B1", "client paused longer than its lease")
    async def test_a_paused_holder_knows_at_its_first_look(self, api: Api) -> None:
        async with child_of(api) as child:
            token = await child.acquire("x", ttl=api.brief)
            child.signal(signal.SIGSTOP)
            successor = await take(api.here.lock("x"))
            await child.tell("look")  # the first thing it does when it wakes
            child.signal(signal.SIGCONT)
            answer = await child.answer()
            assert answer["held"] is False, answer
            assert await child.ask("release") == {"released": False}
            assert (await child.ask("look"))["lost"] is True
            if token is not None:
                assert successor.fence > token
            assert successor.held
            assert await refused(api.there.lock("x"))
            assert await successor.release() is True

    @pytest.mark.req("R1", "R2", "waiter paused, then granted")
    async def test_a_paused_waiter_knows_whether_its_grant_is_still_good(self, api: Api) -> None:
        async with child_of(api) as child:
            lease = await take(api.here.lock("x"))
            await child.tell("acquire", name="x", ttl=api.brief, timeout=2 * LONG)
            await api.in_line("x", 1)
            child.signal(signal.SIGSTOP)
            await lease.release()
            successor = await take(api.there.lock("x"))  # when the sleeper's grant has run out
            child.signal(signal.SIGCONT)
            await api.pass_time(api.brief / 2)
            assert await refused(api.here.lock("x"))
            assert await successor.release() is True
            answer = await child.answer()
            assert answer.get("got") is True, answer
            assert await child.ask("release") == {"released": True}

    @pytest.mark.req("interpreter exits holding a lock", "R2")
    async def test_an_interpreter_that_exits_holding_a_lock(self, api: Api) -> None:
        async with child_of(api) as child:
            await child.acquire("x")
            # Given back on the way out: this is shorter than what is left of the ttl at any time.
            waiter = await api.queue_up(api.here.lock("x"), timeout=2 * LONG)
            await child.tell("exit")
            assert await child.ended() == 0
            lease = await waiter
            assert lease is not None
            await lease.release()

    @pytest.mark.req("KeyboardInterrupt", "B3", "law 4")
    async def test_an_interrupt_while_waiting_leaves_the_line(self, api: Api) -> None:
        async with child_of(api) as child:
            lease = await take(api.here.lock("x"))
            await child.tell("acquire", name="x", timeout=LONG)
            await api.in_line("x", 1)
            child.signal(signal.SIGINT)
            assert await child.ended() != 0
            await api.in_line("x", 0)
            await lease.release()
            await api.free("x")

    @pytest.mark.req("R1", "R9", "B3")
    async def test_processes_hand_over_to_one_another(self, api: Api) -> None:
        async with child_of(api) as one, child_of(api) as two:
            await one.acquire("x")
            await two.tell("acquire", name="x", timeout=LONG)
            await api.in_line("x", 1)
            assert await one.ask("release") == {"released": True}
            assert (await two.answer())["got"] is True
            assert await refused(api.here.lock("x"))
            assert await two.ask("release") == {"released": True}

    @pytest.mark.req("fork after acquire", "law 8", "B3")
    async def test_a_forked_child_holds_nothing(self, api: Api) -> None:
        lease = await take(api.here.lock("x", renew=api.often))

        async def child() -> list[Any]:
            try:
                lease.check()
                checked = "held"
            except LeaseLost:
                checked = "lost"
            return [lease.held, lease.remaining(), bool(lease.lost), checked, await lease.release()]

        assert await in_a_fork(child) == [False, 0.0, True, "lost", False]
        await api.renewed(lease)  # the parent's renewals go on
        assert lease.held
        assert await refused(api.there.lock("x"))
        assert await lease.release() is True

    @pytest.mark.req("fork after acquire", "law 8", "B3")
    async def test_a_forked_child_acquires_on_its_own_or_says_why_not(self, api: Api) -> None:
        lease = await take(api.here.lock("x"))
        here = api.here

        async def child() -> str:
            try:
                if not await refused(here.lock("x")):
                    return "the parent's lock was granted again"
                async with here.lock("y") as own:
                    return "held" if own.held else "not held"
            except Unsupported:
                return "unsupported"
            finally:
                await here.close()

        expected = "held" if api.capabilities.cross_process else "unsupported"
        assert await in_a_fork(child) == expected
        assert lease.held
        await lease.renew()
        assert await lease.release() is True
        await api.free("y")
