"""From records to holds: what each process did, and when it ended.

Contract: a hold's core is [acquire returned, min(release called, loss seen, local deadline, end of
its process)], as faults.md has it. A process that was killed ends when somebody decided to kill it,
before the signal was sent: from then on it may be dead, and somebody else may hold. One that
vanished otherwise ends with its last record.
Partners: `record.py`, which has the records; `check.py`, which judges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.types import Mode
from tests.stress.record import NAMES, Kind, Record

__all__ = ["History", "Hold", "Wait", "gather"]


@dataclass(slots=True)
class Wait:
    """An acquire, from the call until it returned or ended in another way."""

    who: str
    name: str
    blocking: bool
    asked: float
    end: float = math.inf


@dataclass(slots=True)
class Hold:
    """What an acquire returned. In its core the holder believed, and was entitled to."""

    who: str
    name: str
    mode: Mode
    permits: int
    limit: int
    asked: float
    acquired: float
    end: float
    fence: int | None
    lost: bool = False
    refused: float | None = None  # when the resource had first refused a write with its token

    def __str__(self) -> str:
        ended = " lost" if self.lost else ""
        return (
            f"{self.who} {self.name} {self.mode.value} fence={self.fence} asked={self.asked:.6f} "
            f"core=[{self.acquired:.6f}, {self.end:.6f}]{ended}"
        )


@dataclass(slots=True)
class History:
    holds: list[Hold] = field(default_factory=list[Hold])
    waits: list[Wait] = field(default_factory=list[Wait])
    unanswered: int = 0
    gave_up: int = 0


def gather(into: History, process: str, records: Iterable[Record], killed: float | None) -> None:
    """One process's records. `killed`: when it was decided to, if it was."""
    waits: dict[int, Wait] = {}
    holds: dict[int, Hold] = {}
    deadlines: dict[int, float] = {}
    last = 0.0
    over = math.inf if killed is None else killed
    for record in records:
        last = max(last, record.time)
        number = record.number
        who = f"{process}#{number}"
        if record.kind == Kind.ASKED:
            waits[number] = Wait(who, NAMES[record.name].text, record.flag, record.time)
        elif record.kind == Kind.BEGUN:
            wait = waits[number]
            wait.end = record.time
            deadlines[number] = record.deadline
            holds[number] = Hold(
                who, wait.name, record.mode, record.permits, record.limit, wait.asked, record.time,
                math.inf, record.fence,
            )  # fmt: skip
        elif record.kind == Kind.GAVE_UP:
            waits[number].end = record.time
            into.gave_up += 1
            into.unanswered += record.flag
        elif record.kind == Kind.EXTENDED:
            deadlines[number] = max(deadlines[number], record.deadline)
        elif record.kind == Kind.ENDED:
            hold = holds[number]
            hold.end = record.time
            hold.lost = record.flag
            deadlines[number] = max(deadlines[number], record.deadline)
        elif record.kind == Kind.REFUSED:
            hold = holds[number]
            hold.refused = record.time if hold.refused is None else hold.refused
        elif record.kind == Kind.EXIT:
            over = min(over, record.time)
    if over == math.inf:
        over = last
    for number, hold in holds.items():
        hold.end = min(hold.end, deadlines[number], over)
    for wait in waits.values():
        wait.end = min(wait.end, over)
    into.holds += holds.values()
    into.waits += waits.values()
