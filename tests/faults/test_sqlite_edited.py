"""Rows of the sqlite backend's file that somebody has edited by hand: every column, anything in it.

Whoever asks for that name is told by one error of holdfast's, which names the row; nobody else is
disturbed, and what anybody owes is paid.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import HoldfastError, Misconfigured
from holdfast.core.keeper import Keeper
from tests.cli.harness import holdfast as run
from tests.faults.redis import waiting
from tests.faults.sqlite import LONG, sql
from tests.waiting import until

ANYTHING = {
    "a text": "somebody's",
    "no text": b"somebody's",
    "nothing": None,
    "an empty text": "",
    "not UTF-8": "CAST(x'fffe' AS TEXT)",
    "a zero byte": "CAST(x'610061' AS TEXT)",
    "zero": 0,
    "negative": -5,
    "enormous": 2**63 - 1,
    "as negative": -(2**63),
    "a fraction": 1.5,
    "beyond all times": 1e300,
    "infinite": float("inf"),
    "minus infinite": float("-inf"),
    "deeply nested": "[" * 100_000,
    "many digits": "9" * 5_000,
    "no object": "[1, 2]",
}
CLAIM = ("owner", "process", "mode", "permits", "since", "expires", "info")
HOLDERS = (*CLAIM, "fence")
WAITERS = (*CLAIM, "place", "most", "ttl", "look_at", "depends")
CELLS = ("value", "version", "expires", "fence")
STATE = ("epoch", "base", "reserved")


def bound(value: object) -> tuple[str, tuple[object, ...]]:
    if isinstance(value, str) and value.startswith("CAST("):
        return value, ()
    return "?", (value,)


def edit(path: Path, table: str, column: str, value: object, name: str | None = None) -> bool:
    """False: not even by hand."""
    where = "" if name is None else f" WHERE name = X'{name.encode().hex()}'"
    text, values = bound(value)
    try:
        sql(path, f"UPDATE {table} SET {column} = {text}{where}", *values)
    except sqlite3.IntegrityError:
        return False
    return True


def told(path: Path, table: str, name: str, ask: Callable[[], object]) -> bool:
    """Whether it was refused; anything but our own error fails here."""
    try:
        ask()
    except Misconfigured as error:
        text = str(error)
        if "was not written by this version of holdfast" in text:  # sound, and no latch
            return True
        assert str(path) in text
        assert table in text
        assert repr(name) in text or table == "state"
        return True
    except HoldfastError:
        pass  # lost, not held
    return False


def pays(keeper: Keeper) -> bool:
    return not keeper._owed


@contextlib.contextmanager
def two(url: str) -> Iterator[tuple[holdfast.Locks, holdfast.Locks]]:
    """Two clients that are not disturbed by what happens to others' names, and owe nothing."""
    with (
        holdfast.connect(url) as locks,
        holdfast.connect(url) as others,
        locks.lock("other", ttl=LONG) as other,
    ):
        yield locks, others
        for client in (locks, others):
            until(functools.partial(pays, client._engine().keeper), "nothing is owed")
        other.renew()


@pytest.mark.req("law 4", "B7")
@pytest.mark.parametrize("column", HOLDERS)
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_holder_that_somebody_has_edited(path: Path, url: str, column: str, mode: str) -> None:
    def one(locks: holdfast.Locks, others: holdfast.Locks, name: str, what: str) -> None:
        both = locks.rwlock(name, ttl=LONG)
        lease = (both.write() if mode == "exclusive" else both.read()).acquire()
        assert lease
        if not edit(path, "holders", column, ANYTHING[what], name):
            lease.release()
            return
        asking: list[Callable[[], object]] = [
            lambda: others.lock(name).acquire(blocking=False),
            lambda: others.rwlock(name).read().acquire(timeout=0.05),
            lambda: others.semaphore(name, 3).acquire(timeout=0.05),
            lambda: others.multi(name, f"{name}y").acquire(timeout=0.05),
            lambda: others.lock(name).locked(),
        ]
        refused = {told(path, "holders", name, ask) for ask in asking}
        assert len(refused) == 1, what  # all of them, or it can be read
        told(path, "holders", name, lease.renew)
        if mode == "exclusive":
            told(path, "holders", name, lease.downgrade)
        assert "other" in {info.name for info in others.inspect()}, what
        told(path, "holders", name, lease.release)
        others.evict(name)
        again = others.lock(name).acquire(blocking=False)
        assert again, what
        again.release()

    with two(url) as (locks, others):
        for number, what in enumerate(ANYTHING):
            one(locks, others, f"x{number}", what)


@pytest.mark.req("law 4", "B7")
@pytest.mark.parametrize("column", WAITERS)
def test_a_waiter_that_somebody_has_edited(path: Path, url: str, column: str) -> None:
    def one(locks: holdfast.Locks, others: holdfast.Locks, name: str, what: str) -> None:
        lease = locks.lock(name, ttl=LONG).acquire()
        assert lease
        key = f"SELECT 1 FROM waiters WHERE name = X'{name.encode().hex()}'"
        answer: list[object] = []
        with waiting(others.lock(name, ttl=0.5)) as waiter:
            until(lambda: bool(sql(path, key)), "in line")
            edited = edit(path, "waiters", column, ANYTHING[what], name)
            told(path, "waiters", name, lambda: locks.lock(name).acquire(timeout=0.05))
            told(path, "waiters", name, lambda: locks.lock(name).locked())
            assert "other" in {info.name for info in locks.inspect()}, what
            lease.release()
            with contextlib.suppress(HoldfastError):
                locks.evict(name)  # removes what is no waiter: it stands in line again
            told(path, "waiters", name, lambda: answer.append(waiter.result()))
            for got in answer:
                assert isinstance(got, holdfast.Lease), what
                got.release()
        assert answer or edited
        again = locks.lock(name).acquire(timeout=5)
        assert again, what
        again.release()

    with two(url) as (locks, others):
        for number, what in enumerate(ANYTHING):
            one(locks, others, f"x{number}", what)


@pytest.mark.req("B7")
def test_nobody_overtakes_a_waiter_that_somebody_has_edited(path: Path, url: str) -> None:
    """Who released left the line as it was, and whoever came next found the lock free: past the row
    that cannot be read, and past who stands in line behind it."""
    count = "SELECT count(*) FROM waiters"
    with two(url) as (locks, others):
        lease = locks.lock("x", ttl=LONG).acquire()
        assert lease
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(waiting(others.lock("x", ttl=9)))  # looks after 3 s
            until(lambda: sql(path, count) == [(1,)], "in line")
            second = stack.enter_context(waiting(others.lock("x", ttl=LONG)))  # only if called
            until(lambda: sql(path, count) == [(2,)], "behind it")
            sql(path, "UPDATE waiters SET mode = 'somebody''s' WHERE place = 1")
            assert lease.release()
            with pytest.raises(Misconfigured, match="waiters"):
                locks.lock("x").acquire(timeout=0.05)
            with pytest.raises(Misconfigured, match="waiters"):
                first.result()
            again = second.result()
            assert again
            again.release()


@pytest.mark.req("law 4", "B7")
@pytest.mark.parametrize("column", CELLS)
def test_a_cell_that_somebody_has_edited(path: Path, url: str, column: str) -> None:
    with holdfast.connect(url) as locks, locks.lock("other", ttl=LONG) as other:
        engine = locks._engine()
        for number in range(len(ANYTHING)):
            locks.latch(f"x{number}", 3).count_down()
        names = [str(name) for (name,) in sql(path, "SELECT CAST(name AS TEXT) FROM cells")]
        for number, value in enumerate(ANYTHING.values()):
            (name,) = [name for name in names if name.endswith(f"x{number}")]
            edit(path, "cells", column, value, name)
            latch = locks.latch(f"x{number}", 3)
            told(path, "cells", name, latch.count_down)
            told(path, "cells", name, functools.partial(latch.wait, timeout=0.01))
        engine.backend.store.sweep()  # type: ignore[attr-defined]
        assert [info.name for info in locks.inspect()] == ["other"]
        assert other.held


@pytest.mark.req("law 4", "B7")
@pytest.mark.parametrize("column", STATE)
def test_a_state_that_somebody_has_edited(path: Path, url: str, column: str) -> None:
    with holdfast.connect(url) as locks, locks.lock("x"):
        pass
    before = sql(path, "SELECT epoch, base, reserved FROM state")[0]
    for value in ANYTHING.values():
        with holdfast.connect(url, request_timeout=0.3) as locks:
            locks.inspect()
            edit(path, "state", column, value)
            told(path, "state", "", functools.partial(locks.lock("x").acquire, False))
            told(path, "state", "", locks.inspect)
        with holdfast.connect(url) as locks:
            told(path, "state", "", locks.inspect)
        sql(path, "UPDATE state SET epoch = ?, base = ?, reserved = ?", *before)
    with holdfast.connect(url) as locks, locks.lock("x"):
        pass


def test_watchers_and_names_that_somebody_has_edited(path: Path, url: str) -> None:
    with holdfast.connect(url) as locks:
        lease = locks.lock("x").acquire()
        for value in ANYTHING.values():
            text, values = bound(value)
            with contextlib.suppress(sqlite3.IntegrityError):
                sql(path, f"INSERT INTO watchers SELECT name, {text} FROM holders", *values)
            for table in ("holders", "cells", "watchers"):
                edit_name(path, table, value)
        locks.latch("x", 2).count_down()
        locks._engine().backend.store.sweep()  # type: ignore[attr-defined]
        locks.inspect()
        sql(path, "DELETE FROM holders")
        sql(
            path,
            "INSERT INTO holders SELECT X'ff', 'a', 0, 'exclusive', 1, 0.0, 1e10, NULL, '{}'",
        )
        sql(
            path,
            "INSERT INTO holders SELECT X'61ff', 'a', 0, 'exclusive', 1, 0.0, 1e10, NULL, '{}'",
        )
        assert [info.name for info in locks.inspect()] == ["a\ufffd"]
        assert lease


def edit_name(path: Path, table: str, value: object) -> None:
    columns = {
        "holders": "?, 'a', 0, 'exclusive', 1, 0.0, 1.0, NULL, '{}'",
        "cells": "?, x'00', 1, NULL, NULL",
        "watchers": "?, 0",
    }[table]
    with contextlib.suppress(sqlite3.IntegrityError):
        sql(path, f"INSERT INTO {table} SELECT {columns}", value)


def test_an_operator_sees_the_others_and_is_told_of_this_one(path: Path, url: str) -> None:
    with holdfast.connect(url) as locks, locks.lock("other"):
        lease = locks.lock("x").acquire()
        edit(path, "holders", "expires", "somebody's", "x")
        assert [info.name for info in locks.inspect()] == ["other"]
        with pytest.raises(Misconfigured, match=r"'x' in the table holders .*\(expires\)"):
            locks.lock("x").locked()
        shown = run("ls", "--json", "--url", url)
        assert [lock["name"] for lock in json.loads(shown.stdout)["locks"]] == ["other"]
        shown = run("show", "x", "--url", url)
        assert shown.returncode
        assert "'x' in the table holders" in shown.stderr
        assert run("release", "x", "--force", "--yes", "--url", url).returncode == 0
        assert run("show", "x", "--url", url).stdout.startswith("x\nfree")
        assert lease
