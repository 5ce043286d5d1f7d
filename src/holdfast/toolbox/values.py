"""What the tools keep in cells: users' values, and states that compare-and-set changes.

Contract: a value is bytes, or anything that JSON can say, up to LIMIT. `change` applies a pure step
to a state until it was applied once: law 2, a write without an answer is looked for, so a step must
recognise its own doing in the state that it is shown. `until_changed` waits for a cell as long as
its caller likes, and endures a silent store for `request_timeout`, as an acquire does.
Partners: `once.py`, `election.py`, `latch.py`, `barrier.py`.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from holdfast.core.acquire import Engine
from holdfast.core.backoff import pause
from holdfast.core.options import seconds
from holdfast.core.stores import ALL_KINDS, CELLS
from holdfast.core.waiting import away
from holdfast.errors import Closed, Misconfigured, Unavailable, Unsupported
from holdfast.types import Capabilities, Cell, CellConflict, ClaimInfo, Mode, Unknown

__all__ = [
    "KEEP", "LIMIT", "OFTEN", "change", "checked_keep", "decode", "encode", "forget", "holders",
    "need", "read", "understood", "until_changed", "whole", "write",
]  # fmt: skip

R = TypeVar("R")

LIMIT = 65536
"""Bytes of a value: what every store takes, whatever its own limits are set to."""

KEEP = 7 * 86400.0
"""How long the state of a latch or a barrier is kept after its last change, in seconds."""

LOOK = 5.0
"""How long one wait for a cell lasts at most: a store that is silent is noticed then, and a change
of which nobody told, for its writer died first. Backends end it when the client is closed."""

OFTEN = 3
"""So many times in the time of a lease who depends on others looks whether they are there."""

TRIES = 3
"""So many requests without an answer fit in `request_timeout`."""

NO_TIME = 0.05
"""A request that had no more says only that it had none; why is what an earlier one said."""

Step = Callable[[Cell | None, bool], tuple[bytes | None, R]]
"""For what is there, and whether a write of this step went unanswered: what to write, None for
nothing; and what to tell the caller then."""


def need(capabilities: Capabilities, tool: str, *modes: Mode, fencing: bool = False) -> None:
    """Refuse before anything is asked of a store that cannot do it."""
    if not capabilities.cells:
        raise Unsupported(
            f"{tool} needs a store that keeps values, and this backend does not; {CELLS} do"
        )
    for mode in modes:
        if mode not in capabilities.modes:
            reason = f", because {capabilities.why_not}" if capabilities.why_not else ""
            raise Unsupported(
                f"{tool} needs {mode.value} claims, which this backend does not have{reason}; "
                f"{ALL_KINDS} have them"
            )
        if fencing and mode not in capabilities.fencing:
            raise Unsupported(f"{tool} needs fencing tokens, and this backend gives none")


def whole(what: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise Misconfigured(f"{what}={value!r:.80}: a whole number, 1 or more")
    if value > 2**53:
        raise Misconfigured(f"{what}={value}: that many nobody can count")
    return value


def checked_keep(keep: Any) -> float:
    return seconds("keep", keep, "the state must outlive its users, and end some day")


# -- values ----------------------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """A letter that says how to read it, and the value."""
    if isinstance(value, bytes | bytearray):
        data = b"b" + bytes(value)
    else:
        try:
            text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
            data = b"j" + text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise Misconfigured(
                f"a value is bytes or what JSON can say, and this {type(value).__name__} is "
                f"neither: {error}"
            ) from None
    if len(data) - 1 > LIMIT:
        raise Misconfigured(
            f"the value has {len(data) - 1} bytes; the limit is {LIMIT}, on every store. Keep the "
            "value elsewhere and its address here"
        )
    return data


def decode(name: str, data: bytes) -> Any:
    with understood(name):
        return data[1:] if data[:1] == b"b" else json.loads(data[1:])


@contextlib.contextmanager
def understood(name: str) -> Generator[None]:
    """For reading what is in a cell: somebody else may have written it."""
    try:
        yield
    except (ValueError, TypeError, LookupError, struct.error, RecursionError) as error:
        raise Misconfigured(
            f"what the store has for {name!r} was not written by this version of holdfast "
            f"({error}): use another name, or delete it there"
        ) from error


# -- cells -----------------------------------------------------------------------------------------


async def read(engine: Engine, name: str) -> Cell | None:
    """What is there. A silent store is asked again for `request_timeout`."""
    return await _endure(engine, lambda deadline: engine.backend.cell_read(name, deadline))


async def holders(engine: Engine, name: str) -> list[ClaimInfo]:
    """Who holds this name, as the line says; asked for as `read` does."""
    lines = await _endure(engine, lambda deadline: engine.backend.inspect(name, True, deadline))
    return [holder for line in lines for holder in line.holders]


async def _endure(engine: Engine, ask: Callable[[float], Awaitable[R]]) -> R:
    """Ask, within the limit that it is told, until it is not `Unavailable`."""
    port = engine.port
    deadline = port.now() + engine.request_timeout
    failures, said = 0, None
    while True:
        began = port.now()
        try:
            return await ask(_soon(engine, deadline))
        except Unavailable as error:
            failures += 1
            if said is None or began < deadline - NO_TIME:
                said = error
            left = deadline - port.now()
            if left <= 0:
                raise away(said) from error
            await port.sleep(pause(failures, port.random(), left))


async def change(
    engine: Engine, name: str, step: Step[R], ttl: float | None, guess: Cell | None = None
) -> tuple[R, Cell | None]:
    """Have the step applied to what is there, once, though answers may be lost. It begins with
    what was there when last seen: if nobody else has been there, that is one round trip."""
    port = engine.port
    deadline = port.now() + engine.request_timeout
    failures, cell, seen, unsure = 0, guess, False, False
    while True:
        data, result = step(cell, unsure)
        if data is None and seen:
            return result, cell
        if data is None:
            cell, seen = await read(engine, name), True
            continue
        version = 0 if cell is None else cell.version
        answer = await _put(engine, name, data, version, None, ttl, deadline)
        if isinstance(answer, Cell):
            return result, answer
        failures += 1
        unsure = unsure or isinstance(answer, Unknown)
        left = deadline - port.now()
        if left <= 0:
            raise Unavailable(
                f"whether {name!r} was changed is not known, or others were faster every time "
                f"({answer.reason}): look at it again"
            )
        if isinstance(answer, CellConflict) and failures < 3:
            cell, seen = answer.current, True
            continue
        # A crowd is spread, and a silent store is left alone for a moment.
        crowd = isinstance(answer, CellConflict)
        await port.sleep(pause(1 if crowd else failures, port.random(), left) * port.random())
        cell, seen = await read(engine, name), True


async def write(
    engine: Engine, name: str, data: bytes | None, fence: int | None, until: float | None
) -> bool:
    """Write under a fencing token, whatever is there; False: a newer one has written before, or
    there is no time left until `until` (None: for ever). Law 1: a second try has less of it."""

    async def attempt(limit: float) -> bool:
        ttl = None if until is None else until - engine.port.now()
        if ttl is not None and ttl <= 0:
            return False
        answer = await _put(engine, name, data, None, fence, ttl, limit)
        if isinstance(answer, Unknown):
            raise Unavailable(f"whether {name!r} was written is not known: {answer.reason}")
        return isinstance(answer, Cell)

    return await _endure(engine, attempt)


async def forget(engine: Engine, name: str, data: bytes) -> None:
    """Delete what is there as long as it is this, though it were written again meanwhile."""

    async def attempt(limit: float) -> None:
        cell = await engine.backend.cell_read(name, limit)
        if cell is None or cell.value != data:
            return
        answer = await _put(engine, name, None, cell.version, None, None, limit)
        if not isinstance(answer, Cell):
            raise Unavailable(f"whether {name!r} was forgotten is not known: {answer.reason}")

    await _endure(engine, attempt)


async def _put(
    engine: Engine, name: str, data: bytes | None, expect: int | None, fence: int | None,
    ttl: float | None, deadline: float,
) -> Cell | CellConflict | Unknown:  # fmt: skip
    """One try. That it was refused and that nobody knows are both reasons to try again."""
    limit = _soon(engine, deadline)
    try:
        return await engine.backend.cell_write(
            name, data, expect=expect, fence=fence, ttl=ttl, deadline=limit
        )
    except Unavailable as error:
        return Unknown(str(error))


def _soon(engine: Engine, deadline: float) -> float:
    """The limit of one request: an answer that was lost must leave time for asking again."""
    return min(deadline, engine.port.now() + engine.request_timeout / TRIES)


async def until_changed(
    engine: Engine, name: str, seen: Cell | None, deadline: float
) -> Cell | None:
    """The cell when it is another than was seen, or as it was when last seen at the deadline."""
    port = engine.port
    version = 0 if seen is None else seen.version
    failing_since, failures = math.inf, 0
    while True:
        _check_open(engine)
        try:
            limit = min(deadline, port.now() + LOOK)
            cell = await engine.backend.cell_wait(name, version, limit)
        except Unavailable as error:
            now = port.now()  # it failed now, however long it had been waited for
            if now >= deadline:
                return seen  # there was no time to see more
            failures += 1
            failing_since = min(failing_since, now)
            left = min(deadline, failing_since + engine.request_timeout) - now
            if left <= 0:
                raise away(error) from error
            await port.sleep(pause(failures, port.random(), left))
            continue
        _check_open(engine)  # what a store says that is being left means nothing
        failing_since, failures = math.inf, 0
        if (0 if cell is None else cell.version) != version or port.now() >= deadline:
            return cell


def _check_open(engine: Engine) -> None:
    if engine.closed or engine.keeper.exiting:
        raise Closed("the client was closed while this waited")
