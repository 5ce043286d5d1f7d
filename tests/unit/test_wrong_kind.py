"""What belongs to the other kind of client, or to a client, is refused in words that lead there."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Locks, Misconfigured, aio


@pytest.fixture
def locks() -> Iterator[Locks]:
    with holdfast.connect("memory://wrong-kind") as client:
        yield client


class Callback:
    async def __call__(self, error: Any) -> None: ...

    async def method(self, error: Any) -> None: ...


@pytest.mark.parametrize(
    "callback", [Callback(), Callback().method, functools.partial(Callback.method, Callback())]
)
def test_a_coroutine_function_where_nobody_would_await_it(locks: Locks, callback: Any) -> None:
    """It was called, and its coroutine thrown away."""
    aiming = r"holdfast\.aio\.connect"
    with pytest.raises(Misconfigured, match=aiming):
        locks.lock("x", on_lost=callback)
    with pytest.raises(Misconfigured, match=aiming):
        locks.election("x", on_lost=callback)
    with locks.lock("x") as lease, pytest.raises(Misconfigured, match=aiming):
        lease.on_lost(callback)
    with pytest.raises(Misconfigured, match=aiming):
        locks.election("x").run_when_leader(callback)
    with pytest.raises(Misconfigured, match=aiming):
        locks.once("x", 1.0, callback)
    with pytest.raises(Misconfigured, match=aiming):
        locks.locked("x")(callback)
    assert locks.inspect() == []


def test_a_plain_function_where_it_would_be_awaited() -> None:
    async def main() -> None:
        async with aio.connect("memory://wrong-kind") as locks:
            with pytest.raises(Misconfigured, match=r"holdfast\.connect"):
                await locks.election("x").run_when_leader(lambda leadership: 5)  # type: ignore[arg-type, return-value]
            assert await locks.inspect() == []

    asyncio.run(main())


Call = Callable[[], Any]


@pytest.mark.parametrize("module", [holdfast, aio])
@pytest.mark.parametrize("name", ["lock", "rwlock", "semaphore", "multi", "once", "election"])
def test_a_clients_method_asked_of_the_module(module: Any, name: str) -> None:
    """Python alone suggested the class `Lock`."""
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    told = "".join(traceback.format_exception(caught.value))
    assert f"{module.__name__}.connect(url).{name}(" in told
    assert "Did you mean" not in told
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018 - to look is enough


CALLED: dict[str, Call] = {
    f"{module.__name__}.{name}{arguments}": functools.partial(getattr(module, name), *arguments)
    for module in (holdfast, aio)
    for name, arguments in [("Lock", ("a",)), ("RWLock", ("a",)), ("Semaphore", ("a", 3))]
}


@pytest.mark.parametrize("call", CALLED)
def test_a_class_called_by_hand(call: str) -> None:
    with pytest.raises(TypeError, match=r"holdfast\.connect\(url\)\.lock\(name\)"):
        CALLED[call]()


def test_a_client_made_by_hand() -> None:
    by_hand: Any = holdfast.Locks
    for arguments, options in ([], {}), (["memory://"], {}), ([], {"url": "memory://"}):
        with pytest.raises(TypeError, match=r"by holdfast\.connect\(url"):
            by_hand(*arguments, **options)
    by_hand = aio.Locks
    with pytest.raises(TypeError, match=r"by holdfast\.aio\.connect\(url") as caught:
        by_hand("redis://:secret@x")
    assert "secret" not in str(caught.value)


def of(locks: Any) -> list[Any]:
    """What is entered by `with` or `async with`."""
    return [locks, locks.lock("x"), locks.semaphore("x", 2), locks.multi("x", "y"),
            locks.stripes("x", 2).any(), locks.rwlock("x").read()]  # fmt: skip


def test_what_blocks_in_an_async_with(locks: Locks) -> None:
    async def main() -> None:
        for thing in [*of(locks), lease]:
            with pytest.raises(TypeError, match=r"blocks: write `with`, or use holdfast\.aio"):
                async with thing:
                    pass
            async with contextlib.AsyncExitStack() as stack:
                with pytest.raises(TypeError, match="write `with`"):
                    await stack.enter_async_context(thing)

    with locks.lock("z") as lease:
        asyncio.run(main())
    assert locks.inspect() == []


def test_what_is_awaited_in_a_plain_with() -> None:
    async def main() -> None:
        async with aio.connect("memory://wrong-kind") as locks, locks.lock("z") as lease:
            for thing in [*of(locks), lease]:
                with pytest.raises(TypeError, match="asyncio's: write `async with`"), thing:
                    pass
                with contextlib.ExitStack() as stack, pytest.raises(TypeError, match="`async"):
                    stack.enter_context(thing)
            assert [info.name for info in await locks.inspect()] == ["z"]

    asyncio.run(main())


@pytest.mark.parametrize("module", [holdfast, aio])
def test_what_is_no_lock_but_makes_some(module: Any) -> None:
    locks = module.connect("memory://wrong-kind")

    async def entered(thing: Any) -> None:
        async with thing:
            pass

    for thing, hint in (
        (locks.rwlock("x"), r"use read\(\) or write\(\)"),
        (locks.stripes("x", 2), r"use of\(key\), any\(\) or all\(\)"),
    ):
        with pytest.raises(TypeError, match=hint), thing:
            pass
        with pytest.raises(TypeError, match=hint):
            asyncio.run(entered(thing))
        for name in ("acquire", "release", "locked"):
            assert not hasattr(thing, name)
            with pytest.raises(AttributeError, match=hint):
                getattr(thing, name)
        with pytest.raises(AttributeError, match="no attribute 'raed'") as caught:
            thing.raed()
        assert caught.value.obj is thing  # so that Python can say what was meant
        assert type(copy.copy(thing)) is type(thing)
