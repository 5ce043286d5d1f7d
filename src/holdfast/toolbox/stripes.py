"""One hot resource in segments that are locked one by one, and a way to take whichever is free.

Contract: a name has `count` stripes, each a lock of its own. A key belongs to one of them, the same
in every process, on every host and in every version: the first eight bytes of its SHA-256, as a
big-endian number, modulo the count. The count is part of a stripe's name: a client that has another
one is then seen by operators, though nothing can make the two exclude one another.

Any of them: they are tried in random order; if none is free, somebody stands in every line at once,
and the first to be granted has it. Waiting in one line would miss all the others. For all who wait
here there is one claim in each line (`Lines`): were there one for each of them, whoever is first
would be first everywhere, be granted two, and give one back while the others wait.

Law 4: when nobody waits any more the lines are left, by a task of their own and not by the caller,
who has waited enough; a grant that was under way is given back. Hazard: each line is a task of the
port's, on the thread port a thread, because a wait blocks; `withdraw` ends the wait of another
(core/backend.py), and who was given up asks no more (`Acquisition.give_up`).
Partners: `core/acquire.py`, which stands in each line; `skins/*/stripes.py`.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core.acquire import Acquisition, Engine, GivenUp
from holdfast.core.deadline import deadline_of
from holdfast.core.handle import Handle
from holdfast.core.hold import Hold
from holdfast.core.options import Want
from holdfast.core.port import Task, why_not
from holdfast.errors import HoldfastError, LeaseLost, Misconfigured, Unavailable
from holdfast.types import Busy, Released, Unknown

__all__ = [
    "AnyAcquisition", "Lines", "StripeHandle", "Striped", "checked_count", "index_of", "stripe_name"
]  # fmt: skip

log = logging.getLogger("holdfast")

MOST = 1024

AGAIN = 1.0
"""How often who waits sees to it that somebody stands in every line: one may have failed alone."""

_attended: set[Place] = set()
"""Where somebody stands in line: an event loop remembers its tasks only weakly."""


def checked_count(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST:
        raise Misconfigured(f"stripes(name, count): from 1 to {MOST} stripes, not {count!r:.80}")
    return count


def stripe_name(name: str, number: int, count: int) -> str:
    return f"{name}[{number}/{count}]"


def index_of(key: Any, count: int) -> int:
    """Which stripe a key belongs to, for ever."""
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)
    if isinstance(key, str):
        try:
            key = key.encode()
        except UnicodeEncodeError:
            raise Misconfigured(f"the key {key!r:.80} cannot be written as UTF-8") from None
    if not isinstance(key, bytes):
        raise Misconfigured(f"a key is text, bytes or a whole number, not {type(key).__name__}")
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % count


@dataclass(slots=True, eq=False)
class Place:
    """One line, and who stands there."""

    number: int
    member: Acquisition
    task: Task | None = None


class Lines:
    """All who wait for any stripe through one `Stripes` object, and the claims that wait for them.
    What is decided here is decided under the mutex, and in an order that survives Ctrl-C."""

    def __init__(self, engine: Engine, wants: Sequence[Want]) -> None:
        """`wants` say nothing of a loss: only who is served is told of one."""
        self.engine = engine
        self.wants = wants
        self._waiting: deque[AnyAcquisition] = deque()
        self._places: dict[int, Place] = {}
        self._leaving: deque[tuple[Acquisition, bool]] = deque()  # and whether a tombstone is due
        self._begun: set[tuple[Acquisition, bool]] = set()  # of these, by anybody

    @property
    def crowded(self) -> bool:
        """Whether somebody waits here already."""
        return bool(self._waiting)

    def join(self, waiter: AnyAcquisition) -> None:
        with self.engine.port.mutex():
            self._waiting.append(waiter)
        self._stand_everywhere()

    def leave(self, waiter: AnyAcquisition) -> None:
        """It waits no longer; after that it cannot be served."""
        with self.engine.port.mutex():
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            self._dismiss()

    def look_after(self, waiter: AnyAcquisition) -> None:
        """Stand again where a line failed while others did not. One does it for all."""
        with self.engine.port.mutex():
            first = bool(self._waiting) and self._waiting[0] is waiter
        if first:
            self._stand_everywhere()

    def _stand_everywhere(self) -> None:
        port = self.engine.port
        for number, want in enumerate(self.wants):
            with port.mutex():
                place = self._places.get(number)
                if not self._waiting or (place and place.task and place.task.alive):
                    continue
                place = self._places[number] = Place(number, Acquisition(self.engine, want))
                _attended.add(place)
                stand = functools.partial(self._stand, place)
                place.task = port.task(stand, _nothing, "holdfast-stripe")
                trouble = why_not(place.task.start)
                if trouble is not None:  # the other lines will do, if there is one
                    _attended.discard(place)
                    self._failed(place, trouble)

    def _dismiss(self) -> None:
        """Under the mutex: if nobody waits, nobody need stand in line."""
        if self._waiting:
            return
        for number, place in list(self._places.items()):
            self._leaving.append((place.member, place.member.give_up()))
            self._places.pop(number, None)

    async def _stand(self, place: Place) -> None:
        """In one line, again and again, for as long as anybody waits here."""
        try:
            while (hold := await self._granted(place)) is not None:
                member = place.member
                waiter = self._next(place, hold)
                if waiter is None:
                    await self.engine.release(hold, member)
                await self.leave_lines()
                if place.member is member:
                    return
                self._stand_everywhere()  # a line that failed is stood in again
        finally:
            _attended.discard(place)

    async def _granted(self, place: Place) -> Hold | None:
        member = place.member
        try:
            outcome = await member.run(True, -1.0)
        except GivenUp:
            return None
        except Exception as error:  # noqa: BLE001 - told to who waits, if no other line does better
            member.abandon()
            self._failed(place, error)
            return None
        except BaseException:  # the task was cancelled, though perhaps not who waits
            member.abandon()
            self._failed(place, Unavailable("who stood in line for this was cancelled"))
            raise
        assert isinstance(outcome, Hold), "it waits for ever"
        return outcome

    def _next(self, place: Place, hold: Hold) -> AnyAcquisition | None:
        """Who has this grant; None: it came too late. And who stands in this line from now on."""
        with self.engine.port.mutex():
            # Who was given up is being withdrawn: what it was granted is nobody's.
            if place.member.given_up or not self._waiting:
                self._dismiss()
                return None
            waiter = self._waiting[0]
            waiter.served(place, hold)
            self._waiting.popleft()
            if self._waiting:
                place.member = Acquisition(self.engine, self.wants[place.number])
            elif self._places.get(place.number) is place:
                self._places.pop(place.number)
            self._dismiss()
        waiter.event.set()
        return waiter

    def _failed(self, place: Place, error: Exception) -> None:
        with self.engine.port.mutex():
            if self._places.get(place.number) is place:
                self._places.pop(place.number)
            if self._places:
                return
            waiting, self._waiting = list(self._waiting), deque()
        for waiter in waiting:
            waiter.trouble = error
            waiter.event.set()

    async def leave_lines(self) -> None:
        """Nothing of who was dismissed stays in the store, and who waits there goes home."""
        engine, keeper = self.engine, self.engine.keeper
        while leaving := list(self._leaving):
            # Taken off when it is done: somebody else may do it, too. But of a hundred who were
            # granted at once each begins with another; only at the end they help one another.
            pair = next((each for each in leaving if each not in self._begun), leaving[0])
            self._begun.add(pair)
            claim, tombstone = pair[0].claim, pair[1]
            result: Released | Unknown = Released()
            try:
                if keeper.begun(claim):  # else it will not be, by who was given up
                    limit = engine.port.now() + engine.request_timeout
                    result = await engine.backend.withdraw(claim, tombstone, limit)
            except HoldfastError as error:
                result = Unknown(str(error))
            except Exception:
                log.exception("leaving a line failed unexpectedly; it is tried again")
                result = Unknown("unexpected error")
            if isinstance(result, Released):
                keeper.settle(claim)
            else:
                keeper.abandon(claim)
            self._left(pair)

    def abandon_lines(self) -> None:
        """As `leave_lines`, by the keeper: never waits."""
        for pair in list(self._leaving):
            self.engine.keeper.abandon(pair[0].claim)
            self._left(pair)

    def _left(self, pair: tuple[Acquisition, bool]) -> None:
        try:
            self._leaving.remove(pair)
        except ValueError:  # somebody else did it
            pass
        self._begun.discard(pair)


class AnyAcquisition:
    """As `Acquisition`, for whichever of several names is to be had first."""

    __slots__ = (
        "engine", "event", "lines", "member", "on_lost", "stripe", "trouble", "want", "won",
    )  # fmt: skip

    def __init__(self, lines: Lines, on_lost: Callable[[LeaseLost], Any] | None) -> None:
        self.engine = lines.engine
        self.lines = lines
        self.want = lines.wants[0]
        self.on_lost = on_lost
        self.event = self.engine.port.event()  # it was served, or nobody stands in line any more
        self.member: Acquisition | None = None
        self.stripe = 0
        self.won: Hold | None = None
        self.trouble: Exception | None = None

    def abandon(self) -> None:
        self.lines.leave(self)
        self.lines.abandon_lines()
        if self.member is not None:
            self.member.abandon()

    def own(self) -> Hold | None:
        """Another stripe will do."""
        return None

    async def run(self, blocking: bool, timeout: float) -> Hold | Busy:
        port = self.engine.port
        if self.on_lost is not None:
            port.prepare_call()
        deadline = deadline_of(port, timeout) if blocking else math.inf
        outcome: Hold | Busy = Busy()
        if not (blocking and self.lines.crowded):  # else all have lines, and some are before us
            outcome = await self._try_each(deadline)
        if isinstance(outcome, Busy) and blocking and port.now() < deadline:
            outcome = await self._wait(outcome, deadline)
        if isinstance(outcome, Hold) and self.on_lost is not None:
            outcome.listen(self, self.on_lost, port)
        return outcome

    async def _try_each(self, deadline: float) -> Hold | Busy:
        port, wants = self.engine.port, self.lines.wants
        outcome: Hold | Busy = Busy()
        for number in sorted(range(len(wants)), key=lambda _: port.random()):
            self.member = Acquisition(self.engine, wants[number])
            outcome = await self.member.run(False, 0.0)
            if isinstance(outcome, Hold):
                self.stripe = number
                break
            if port.now() >= deadline:
                break
        return outcome

    async def _wait(self, busy: Busy, deadline: float) -> Hold | Busy:
        port, lines = self.engine.port, self.lines
        port.waits()
        lines.join(self)
        while not await self.event.wait(min(deadline, port.now() + AGAIN)):
            if port.now() >= deadline:
                break
            lines.look_after(self)
        lines.leave(self)
        if self.won is not None:
            return self.won
        await lines.leave_lines()
        if self.trouble is not None and port.now() < deadline:
            raise self.trouble
        return busy  # it was when we looked; there may have been no time to look again

    def served(self, place: Place, hold: Hold) -> None:
        """Called under the mutex, by who stood in line for it."""
        self.member, self.stripe = place.member, place.number
        self.won = hold


async def _nothing() -> None:
    """The keeper says farewell for all claims."""


class StripeHandle(Handle):
    """What a lease of any stripe is beyond a lease of one name."""

    __slots__ = ()
    _share: AnyAcquisition

    @property
    def stripe(self) -> int:
        """Which one: from 0 on."""
        return self._share.stripe


class Striped:
    """What `Stripes` is without waiting: the names, and where who wants any of them waits."""

    def __init__(self, name: str, count: int, want: Callable[[int], Want]) -> None:
        self._name = name
        self._count = count
        self._want = want
        self._wants: list[Want] = []
        self._waiting: Lines | None = None
        want(0)  # what is wrong with the name or the options is said now

    @property
    def name(self) -> str:
        """The name that the stripes are of."""
        return self._name

    @property
    def count(self) -> int:
        """How many there are."""
        return self._count

    def index(self, key: str | bytes | int) -> int:
        """Which stripe a key belongs to: the same in every process and version."""
        return index_of(key, self._count)

    def _every(self) -> list[Want]:
        if not self._wants:
            self._wants = [self._want(number) for number in range(self._count)]
        return self._wants

    def _in_order(self) -> list[Want]:
        """As a multi takes them."""
        return sorted(self._every(), key=lambda want: want.name)

    def _lines(self, engine: Engine) -> Lines:
        """Of this process, not of its parent."""
        lines = self._waiting
        if lines is None or lines.engine is not engine:
            made = Lines(engine, [replace(want, on_lost=None) for want in self._every()])
            with engine.port.mutex():  # threads that come at once must wait in the same
                lines = self._waiting
                if lines is None or lines.engine is not engine:
                    lines = self._waiting = made
        return lines

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} count={self._count}>"
