"""A store that is away: what is said ends with what to look at, whatever was asked for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import holdfast
from holdfast import Unavailable, aio
from holdfast.core.port import NoThread
from holdfast.testing.conformance.threaded import Threaded

numbers = itertools.count()
ASKED = ("attempt", "inspect", "evict", "cell_read", "cell_write", "cell_wait", "sweep")
CALLS: dict[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {
    "acquire": lambda locks: locks.lock("x").acquire(),
    "acquire at once": lambda locks: locks.lock("x").acquire(blocking=False),
    "locked": lambda locks: locks.lock("x").locked(),
    "inspect": lambda locks: locks.inspect(),
    "evict": lambda locks: locks.evict("x"),
    "count": lambda locks: locks.latch("x", 1).count(),
    "leader": lambda locks: locks.election("x").leader(),
}


@pytest.fixture(params=["threads", "tasks"])
def when(request: pytest.FixtureRequest) -> Callable[[str, Exception], Exception]:
    """What is raised when the store says this to everything."""

    async def main(call: str, said: Exception) -> Exception:
        async def refuse(*arguments: Any, **options: Any) -> Any:
            raise said

        url = f"memory://away{next(numbers)}?request_timeout=0.2"
        client: Any = aio.connect(url) if request.param == "tasks" else holdfast.connect(url)
        for name in ASKED:
            setattr(client._current.backend, name, refuse)
        async with client if request.param == "tasks" else Threaded(client) as locks:
            with pytest.raises(Unavailable) as caught:
                await CALLS[call](locks)
        return caught.value

    return lambda call, said: asyncio.run(main(call, said))


@pytest.mark.req("B4")
@pytest.mark.parametrize("call", CALLS)
def test_it_ends_with_what_to_look_at(
    when: Callable[[str, Exception], Exception], call: str
) -> None:
    told = str(when(call, Unavailable("nobody is there")))
    assert "nobody is there" in told
    assert told.endswith(". Is the store up, and the URL right?")
    assert told.count("Is the store up") == 1


@pytest.mark.req("B4")
@pytest.mark.parametrize("call", ["inspect", "evict", "leader"])
def test_a_process_without_threads_is_not_the_stores_fault(
    when: Callable[[str, Exception], Exception], call: str
) -> None:
    assert isinstance(when(call, NoThread("it", "no more")), NoThread)


@pytest.mark.req("B4")
def test_why_it_is_away_is_told_and_not_that_the_last_try_had_no_time() -> None:
    with holdfast.connect(f"memory://away{next(numbers)}?request_timeout=0.3") as locks:
        port = locks._current.port

        async def refuse(name: str, deadline: float) -> Any:
            raise Unavailable("refused" if deadline > port.now() else "no time was left")

        locks._current.backend.cell_read = refuse  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match=r"^refused\."):
            locks.latch("x", 1).count()
