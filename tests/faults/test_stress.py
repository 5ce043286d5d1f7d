"""A short stress run with real processes, and the proof that its checks can fail.

The long one, 100 000 holds: `python -m tests.stress`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.types import Mode
from tests.stress.check import KINDS, Span, Violation, judge, liveness
from tests.stress.history import History, Hold, Wait, gather
from tests.stress.leftovers import leftovers
from tests.stress.record import NAMES, Kind, Log, Record, count_begun, read
from tests.stress.resource import Resource, Write, writes
from tests.stress.zookeeper import without_ended

ROOT = Path(__file__).resolve().parent.parent.parent
HOLDS = 1000
SECONDS = 90
"""For all of it; a busy machine makes fewer holds in that time, and that is no failure."""


@pytest.mark.req(
    "R1", "R2", "R3", "B1", "law 5", "law 7", "law 8", "client wall clock +-1 h",
    "fork after acquire", "holder killed -9", "waiter killed", "waiter paused, then granted",
    "client paused longer than its lease",
)  # fmt: skip
def test_holds_under_kills_pauses_forks_and_clock_steps() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.stress", "--json", "--calm", "0.2",
         "--holds", str(HOLDS), "--seconds", str(SECONDS)],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert ended.stdout, ended.stderr
    result = json.loads(ended.stdout)
    seed = f"python -m tests.stress --seed {result['seed']} --calm 0.2 --holds {HOLDS}"
    assert result["violations"] == [], seed
    assert ended.returncode in (0, 2), ended.stderr
    assert result["holds"] >= HOLDS / 10
    assert min(result[fault] for fault in ("kills", "pauses", "forks", "clock steps")) > 0, result


# -- that the checks can fail ---------------------------------------------------------------------


def hold(
    acquired: float, end: float, fence: int | None = None, mode: Mode = Mode.EXCLUSIVE,
    permits: int = 1, limit: int = 1, asked: float | None = None, refused: float | None = None,
) -> Hold:  # fmt: skip
    asked = acquired - 0.1 if asked is None else asked
    fence = int(acquired * 10) if fence is None and mode is not Mode.PERMITS else fence
    return Hold(
        "w", "n", mode, permits, limit, asked, acquired, end, fence, refused=refused
    )  # fmt: skip


def shared(acquired: float, end: float, fence: int = 5) -> Hold:
    return hold(acquired, end, fence, Mode.SHARED)


def permit(acquired: float, end: float, permits: int = 1) -> Hold:
    return hold(acquired, end, None, Mode.PERMITS, permits, 2)


def missing(acquired: float, end: float) -> Hold:
    made = hold(acquired, end)
    made.fence = None
    return made


def kinds(found: list[Violation]) -> list[str]:
    return [violation.kind for violation in found]


FINE: list[list[Hold]] = [
    [hold(0, 1), hold(1, 2), hold(2, 3)],
    [hold(0, 1), shared(1, 3), shared(2, 4), hold(4, 5)],
    [permit(0, 3), permit(1, 2), permit(2, 4), permit(4, 5, permits=2)],
    [
        hold(0, 1, fence=1),
        hold(5, 4.5, fence=2, asked=1),
        hold(4, 6, fence=3),
    ],  # one was over at once
    [hold(0, 1, refused=1.5), hold(1, 2)],
    [hold(0, 1, fence=5, asked=-1), hold(1, 2, fence=6, asked=-2)],  # overtaken in the line
]

BROKEN: list[tuple[str, list[Hold]]] = [
    ("both held", [hold(0, 2), hold(1, 3)]),
    ("both held", [hold(0, 9), hold(1, 1.5), hold(9, 10)]),
    ("both held", [shared(0, 2), hold(1, 3)]),
    ("both held", [hold(0, 2, fence=1), shared(1, 3)]),
    ("both held", [hold(0, 2), permit(1, 3)]),
    ("both held", [hold(0, math.nextafter(1, 2)), hold(1, 2)]),
    ("too many permits", [permit(0, 3), permit(1, 3), permit(2, 3)]),
    ("too many permits", [permit(0, 3), permit(1, 3, permits=2)]),
    ("token missing", [missing(0, 1)]),
    ("token twice", [hold(0, 1, fence=7), hold(1, 2, fence=7)]),
    ("token went back", [hold(0, 1, fence=7), hold(1, 2, fence=6)]),
    ("token went back", [hold(0, 1, fence=7), shared(2, 3, fence=6)]),
    ("token went back", [hold(0, 1, fence=7), hold(3, 2.9, fence=6, asked=2)]),
    ("token went back", [hold(0, 1, fence=7), hold(1, 2, fence=8), hold(3, 4, fence=7 - 1)]),
    ("holder's write refused", [hold(0, 1, refused=0.5)]),
]


@pytest.mark.parametrize("history", FINE)
def test_what_may_be_is_no_violation(history: list[Hold]) -> None:
    assert judge(history, [Write("n", 1, 0, 0), Write("n", 1, 1, 0), Write("m", 0, 2, 0)]) == []


@pytest.mark.parametrize(("kind", "history"), BROKEN)
def test_the_checker_sees_broken_histories(kind: str, history: list[Hold]) -> None:
    assert kind in kinds(judge(history, []))


def test_the_checker_sees_a_stale_write() -> None:
    accepted = [Write("n", 5, 0, 0), Write("m", 1, 0, 0), Write("n", 4, 1, 0)]
    assert kinds(judge([], accepted)) == ["stale write accepted"]


STUCK: list[tuple[list[Hold], list[Wait], list[Span], float]] = [
    ([hold(0, 1), hold(9, 10)], [Wait("w", "n", True, 0.5, 9)], [], 8.0),
    ([], [Wait("w", "n", True, 0, 7)], [], 7.0),
    ([hold(0, 1), hold(9, 10)], [Wait("w", "n", True, 0.5, 9)], [(2, 3)], 6.0),
]

SERVED: list[tuple[list[Hold], list[Wait], list[Span], float]] = [
    ([hold(0, 1), hold(1.5, 10)], [Wait("w", "n", True, 0.5, 10)], [], 0.5),
    ([hold(0, 1), hold(9, 10)], [Wait("w", "n", True, 0.5, 9)], [(0.5, 6), (6, 8)], 1.0),
    ([hold(0, 1), hold(9, 10)], [Wait("w", "n", False, 0.5, 9)], [], 0.0),  # it did not wait
]


@pytest.mark.parametrize(("history", "waits", "stops", "longest"), STUCK)
def test_the_checker_sees_that_nobody_is_served(
    history: list[Hold], waits: list[Wait], stops: list[Span], longest: float
) -> None:
    found = liveness(history, waits, stops, 5.0)
    assert kinds(found.violations) == ["nobody served"]
    assert found.worst == longest


@pytest.mark.parametrize(("history", "waits", "stops", "longest"), SERVED)
def test_the_checker_sees_that_somebody_is_served(
    history: list[Hold], waits: list[Wait], stops: list[Span], longest: float
) -> None:
    found = liveness(history, waits, stops, 5.0)
    assert found.violations == []
    assert found.worst == longest


def test_what_follows_from_a_session_that_somebody_ended_is_no_violation() -> None:
    said = "worker-7 said: lock-a: lost 0.810025 s before its deadline, at 13.500000"
    found = [
        Violation("unexpected", said),
        Violation("unexpected", f"{said}\nlock-b: held 0.2 s after its deadline"),
        Violation("token twice", "both"),
        Violation("both held", "a#1 core=[12.1, 13.6] lost | b#2 core=[13.5, 13.7]", 13.5),
        Violation("both held", "a#1 core=[12.1, 13.6] | b#2 core=[13.5, 13.7]", 13.5),
    ]
    assert list(without_ended(found, [13.6], 3.0)) == found
    assert list(without_ended(found, [10.4], 3.0)) == found
    assert [violation.text for violation in without_ended(found, [9.0, 13.25], 3.0)] == [
        "lock-b: held 0.2 s after its deadline",
        "both",
        "a#1 core=[12.1, 13.6] | b#2 core=[13.5, 13.7]",
    ]


def test_every_kind_of_violation_was_shown() -> None:
    assert set(KINDS) == {kind for kind, _ in BROKEN} | {"stale write accepted", "nobody served"}


# -- from files to histories ----------------------------------------------------------------------


def written(folder: Path, *records: Record) -> list[Record]:
    path = folder / "w.log"
    log = Log(path)
    for record in records:
        log.write(record)
    log.close()
    with path.open("ab") as file:
        file.write(b"B torn")
    assert count_begun(path, 0)[0] == sum(record.kind == Kind.BEGUN for record in records)
    found = list(read(path))
    assert found == list(records)
    return found


ASKED = Record(Kind.ASKED, 1.0, 1, 2, flag=True)
BEGUN = Record(Kind.BEGUN, 2.0, 1, 2, Mode.PERMITS, 2, 3, fence=9, deadline=5.0)
EXTENDED = Record(Kind.EXTENDED, 3.0, 1, deadline=7.0)


@pytest.mark.parametrize(
    ("records", "killed", "end"),
    [
        ([Record(Kind.ENDED, 4.0, 1, deadline=5.0)], None, 4.0),  # released
        ([Record(Kind.ENDED, 6.0, 1, flag=True, deadline=5.0)], None, 5.0),  # too late
        ([EXTENDED, Record(Kind.ENDED, 6.0, 1, deadline=7.0)], None, 6.0),
        ([EXTENDED], 6.0, 6.0),
        ([], 4.0, 4.0),
        ([], 6.0, 5.0),  # killed, and its lease was over before
        ([], 1.5, 1.5),  # it ran on for a moment after it was decided: no core
        ([Record(Kind.EXIT, 3.0), Record(Kind.ENDED, 4.0, 1, deadline=5.0)], None, 3.0),
        ([EXTENDED], None, 3.0),  # it vanished
    ],
)
def test_where_a_core_ends(
    tmp_path: Path, records: list[Record], killed: float | None, end: float
) -> None:
    history = History()
    gather(history, "w", written(tmp_path, ASKED, BEGUN, *records), killed)
    (found,), (wait,) = history.holds, history.waits
    assert (found.acquired, found.end, found.fence, found.permits) == (2.0, end, 9, 2)
    assert (wait.asked, wait.end, wait.blocking) == (1.0, min(2.0, killed or 2.0), True)


def test_the_first_refusal_counts(tmp_path: Path) -> None:
    """Later ones may be of writes that came when it was done."""
    refused = [Record(Kind.REFUSED, moment, 1) for moment in (3.0, 6.0)]
    begun = BEGUN._replace(mode=Mode.EXCLUSIVE)
    history = History()
    gather(history, "w", written(tmp_path, ASKED, begun, *refused), 7.0)
    assert kinds(judge(history.holds, [])) == ["holder's write refused"]


def test_a_waiter_that_was_killed_waits_no_longer(tmp_path: Path) -> None:
    history = History()
    gather(history, "w", written(tmp_path, ASKED), 4.0)
    assert [wait.end for wait in history.waits] == [4.0]
    assert history.holds == []


def test_the_resource_refuses_smaller_tokens(tmp_path: Path) -> None:
    one, other = Resource(tmp_path, 1), Resource(tmp_path, 2)
    assert [one.write(0, 5), other.write(0, 4), other.write(0, 5), other.write(1, 4)] == [
        True, False, True, True,
    ]  # fmt: skip
    assert one.write(0, 6)
    assert not other.write(0, 5)
    one.drop()
    other.drop()
    assert [(w.name, w.token, w.process) for w in writes(tmp_path)] == [
        (NAMES[0].text, 5, 1), (NAMES[0].text, 5, 2), (NAMES[0].text, 6, 1), (NAMES[1].text, 4, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("plant", ["nothing", "a holder", "a waiter", "a pipe", "a fault"])
def test_the_checker_sees_leftovers(tmp_path: Path, plant: str) -> None:
    path = tmp_path / "locks.db"
    url = f"sqlite://{path}"
    with holdfast.connect(url) as locks:
        locks.lock("s:x").acquire(timeout=0)
    assert leftovers(url, "s:", True, 0.2) == []
    with contextlib.ExitStack() as stack:
        if plant in ("a holder", "a waiter"):
            locks = stack.enter_context(holdfast.connect(url))
            held = locks.lock("s:lock-a", ttl=60).acquire()
            assert held is not None
            if plant == "a waiter":
                waiting = threading.Thread(target=locks.lock("s:lock-a", ttl=60).acquire)
                waiting.start()
                stack.callback(waiting.join)
                stack.callback(held.release)
                while not locks.inspect()[0].waiters:
                    pass
        elif plant == "a pipe":
            path.with_name(path.name + ".holdfast").joinpath("x.pipe").touch()
        elif plant == "a fault":
            _spoil(path)
        found = "\n".join(leftovers(url, "s:", True, 0.2))
    for kind, sign in (
        ("a holder", "lock-a cannot be had"),
        ("a holder", "inspect() shows"),
        ("a holder", "a row in holders"),
        ("a waiter", "a row in waiters"),
        ("a pipe", "pipes"),
        ("a fault", "integrity_check"),
    ):
        if kind == plant:
            assert sign in found
    assert bool(found) is (plant != "nothing")


def _spoil(path: Path) -> None:
    """An index that does not fit its table."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE spoilt (one)")
    db.execute("CREATE INDEX by_one ON spoilt (one)")
    db.execute("INSERT INTO spoilt VALUES (1)")
    db.execute("PRAGMA writable_schema = ON")
    sql = "UPDATE sqlite_schema SET sql = 'CREATE UNIQUE INDEX by_one ON spoilt (one, one)'"
    db.execute(f"{sql} WHERE name = 'by_one'")
    db.close()
