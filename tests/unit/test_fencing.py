"""Gates without a server: what a token is, gates of threads and tasks, files, and SQL as text."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import pickle
import signal
import sqlite3
import stat
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import holdfast
from holdfast import HoldfastError, Misconfigured, StaleFence, Unsupported, aio, fencing
from holdfast.fencing import aio as afencing
from holdfast.fencing import file as files
from holdfast.fencing.redis import beside
from holdfast.fencing.sql import STYLES, Statement, driver_of, identifier
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


# -- files -----------------------------------------------------------------------------------------


def test_a_file_by_tokens(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    file = fencing.File(path)
    assert file.highest() == 0
    file.write(5, "five")
    path.chmod(0o640)
    file.write(5, b"five again")
    assert path.read_text() == "five again"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640  # kept, as by who writes in place
    with pytest.raises(StaleFence) as refused:
        file.write(4, "four")
    assert (refused.value.resource, refused.value.highest) == (str(path), 5)
    for token in (6, 9, 2**63 - 1):
        fencing.File(path).write(token, str(token))
        assert file.highest() == token
        with pytest.raises(StaleFence):
            file.write(token - 1, "late")
        assert path.read_text() == str(token)
    assert {entry.name for entry in tmp_path.iterdir()} == {"report.txt", "report.txt.fence"}


def test_a_file_is_replaced_by_a_finished_one(tmp_path: Path) -> None:
    path, made = tmp_path / "report.txt", tmp_path / "made"
    file = fencing.File(path)
    made.write_text("six")
    file.replace(6, made)
    assert path.read_text() == "six"
    assert not made.exists()
    made.write_text("five")
    with pytest.raises(StaleFence):
        file.replace(5, made)
    assert made.read_text() == "five"  # stays where it is
    with pytest.raises(FileNotFoundError):
        file.replace(7, tmp_path / "nothing")
    assert file.highest() == 6
    file.check(8)
    with pytest.raises(StaleFence):
        file.write(7, "seven")
    assert path.read_text() == "six"


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)
    fencing.File(link).write(5, "five")
    assert link.is_symlink()
    with pytest.raises(StaleFence):
        fencing.File(real).write(4, "four")


def test_a_full_disk_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.txt"
    file = fencing.File(path)
    file.write(5, "five")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            file.write(6, "six")
    assert path.read_text() == "five"
    assert {entry.name for entry in tmp_path.iterdir()} == {"report.txt", "report.txt.fence"}
    file.write(6, "six")
    assert path.read_text() == "six"


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is processes that die here, and not the machine; and flushing takes its time."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def dies_at(line: int, path: Path, token: int, text: str) -> bool:
    """A child writes, and is killed at the n-th line that it executes in file.py. True: it was
    done before."""
    pid = os.fork()
    if pid == 0:
        left = line

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename != files.__file__:
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        try:
            sys.settrace(trace)
            fencing.File(path).write(token, text)
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status == 0


@pytest.mark.req("holder killed -9")
@pytest.mark.usefixtures("no_fsync")
def test_a_writer_killed_at_every_line_lets_no_older_one_in(tmp_path: Path) -> None:
    """Whatever was done of the write: the content is one of the two; once it is the new one, the
    record says so, and an older token is refused. And nobody is in the way of the next."""
    line, done = 0, False
    while not done:
        for first in (True, False):
            path = tmp_path / f"{line}-{first}"
            file = fencing.File(path)
            if not first:
                file.write(4, "four")
            done = dies_at(line, path, 6, "six")
            content = path.read_text() if path.exists() else None
            assert content in (("four", "six") if not first else (None, "six"))
            if content == "six":
                with pytest.raises(StaleFence):
                    file.write(5, "five")
            assert file.highest() in (0 if first else 4, 6)
            file.write(6, "six")
            assert path.read_text() == "six"
            assert not path.with_name(path.name + ".fence-new").exists()
        line += 1
    assert line > 20


@pytest.mark.req("KeyboardInterrupt at any line")
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning"
)  # what a tracer interrupts, and signals do not
@pytest.mark.usefixtures("no_fsync")
def test_ctrl_c_at_every_line_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    file = fencing.File(path)
    file.write(1, "1")
    token, line, left, done = 1, 0, 0, False

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != files.__file__:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    while not done:
        token, left = token + 1, line
        try:
            sys.settrace(trace)
            file.write(token, str(token))
            done = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert path.read_text() in (str(token - 1), str(token))
        with (tmp_path / "report.txt.fence").open() as record:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody has it
        file.write(token, str(token))
        assert {entry.name for entry in tmp_path.iterdir()} == {"report.txt", "report.txt.fence"}
        line += 1
    assert line > 20


def test_a_torn_record_leaves_the_other_one(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    record = tmp_path / "report.txt.fence"
    file = fencing.File(path)
    file.write(5, "five")
    whole = record.read_bytes()
    assert len(whole) == files.SLOT
    for cut in range(len(whole)):  # the very first record, torn: nothing was renamed before it
        record.write_bytes(whole[:cut])
        assert file.highest() == 0
    record.write_bytes(whole)
    file.write(6, "six")
    both = record.read_bytes()
    for cut in range(files.SLOT):  # the second
        record.write_bytes(both[: files.SLOT + cut] + b"\0" * (files.SLOT - cut))
        assert file.highest() == 5
        file.check(5)
        file.check(6)
        assert record.read_bytes() == both
    file.write(7, "seven")  # over the first again
    third = record.read_bytes()
    assert third[files.SLOT :] == both[files.SLOT :]
    record.write_bytes(b"x" + third[1:])
    assert file.highest() == 6
    record.write_bytes(b"x" * len(third))
    with pytest.raises(Misconfigured, match="damaged"):
        file.write(8, "eight")


def test_writers_take_turns(tmp_path: Path) -> None:
    """Many threads, each with tokens of its own: the last content is that of the highest token."""
    path = tmp_path / "report.txt"
    refused: list[int] = []

    def work(start: int) -> None:
        file = fencing.File(path)
        for token in range(start, 60, 6):
            try:
                file.write(token, f"{token}")
            except StaleFence:
                refused.append(token)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert path.read_text() == "59"
    assert fencing.File(path).highest() == 59


def test_a_record_deleted_while_one_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.txt"
    file = fencing.File(path)
    real = fcntl.flock
    deleted: list[int] = []

    def flock(fd: int, operation: int) -> None:
        real(fd, operation)
        if operation == fcntl.LOCK_EX and not deleted:
            deleted.append(fd)
            (tmp_path / "report.txt.fence").unlink()

    monkeypatch.setattr(fcntl, "flock", flock)
    file.write(5, "five")
    assert deleted
    assert file.highest() == 5  # in the file that is there, not in the one that is gone


@pytest.mark.req("fork after acquire")
def test_a_forked_child_does_not_keep_the_file_locked(tmp_path: Path) -> None:
    file = fencing.File(tmp_path / "report.txt")
    with file._alone() as record:
        copy = os.dup(record)  # as in a child of which Python has not heard
    try:
        with (tmp_path / "report.txt.fence").open() as again:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(copy)


@pytest.mark.req("fork after acquire", "holder killed -9")
def test_a_child_of_a_writer_that_was_killed_does_not_keep_the_file_locked(tmp_path: Path) -> None:
    file = fencing.File(tmp_path / "report.txt")
    reading, writing = os.pipe()
    begun, began = os.pipe()
    parent = os.fork()
    if parent == 0:
        with file._alone():
            if os.fork() == 0:
                os.close(writing)
                os.write(began, b".")
                os.read(reading, 1)  # until the test is done
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.waitpid(parent, 0)
        os.read(begun, 1)
        with (tmp_path / "report.txt.fence").open() as record:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        for fd in (reading, writing, begun, began):
            os.close(fd)


def test_a_child_lets_go_of_the_record_and_not_of_its_parents_lock(tmp_path: Path) -> None:
    file = fencing.File(tmp_path / "report.txt")
    with file._alone():
        pid = os.fork()
        if pid == 0:
            for record in files._records:
                fcntl.flock(record, fcntl.LOCK_UN)
            os._exit(0)
        os.waitpid(pid, 0)
        with (tmp_path / "report.txt.fence").open() as again, pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_first_record_is_on_disk_with_its_name_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, os.replace

    def flush(fd: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    def replace(source: str, target: str) -> None:
        done.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", replace)
    fencing.File(tmp_path / "x").write(5, "five")
    assert done == ["x.fence-new", "x.fence", tmp_path.name, "rename", tmp_path.name]
    done.clear()
    fencing.File(tmp_path / "y").check(5)
    assert done == ["y.fence", tmp_path.name]


@pytest.mark.parametrize("name", ["report.txt.fence", "report.txt.fence-new"])
def test_links_that_somebody_put_there_are_not_followed(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("not yours")
    (tmp_path / name).symlink_to(precious)
    with contextlib.suppress(OSError):
        fencing.File(tmp_path / "report.txt").write(5, "five")
    assert precious.read_text() == "not yours"
    assert not (tmp_path / "report.txt").is_symlink()


def test_a_link_does_not_replace_a_file(tmp_path: Path) -> None:
    """The next one would follow it, find no record there, and let an older token in."""
    made, link, path = tmp_path / "made", tmp_path / "link", tmp_path / "report.txt"
    made.write_text("nine")
    link.symlink_to(made)
    with pytest.raises(Misconfigured, match="link"):
        fencing.File(path).replace(9, link)
    assert not path.exists()


def test_a_file_with_asyncio(tmp_path: Path) -> None:
    async def work() -> None:
        path, made = tmp_path / "report.txt", tmp_path / "made"
        file = afencing.File(path)
        await file.write(5, "five")
        with pytest.raises(StaleFence):
            await file.write(4, "four")
        made.write_text("six")
        await file.replace(6, made)
        await file.check(7)
        assert await file.highest() == 7
        assert path.read_text() == "six"

    asyncio.run(work())


# -- SQL, as text ----------------------------------------------------------------------------------


@pytest.mark.req("law 10")
def test_names_of_tables_and_columns_are_checked() -> None:
    for good in ("account", "app.account", "a_1$", '"Account"', "`order`", 'x."Y y".z'):
        assert identifier(good) == good
    for wrong in ("", "a b", "a;--", '"a', "a.b.c.d", "1a", "a'b", '"a%b"', '"{}"', 'a"b"'):
        with pytest.raises(Misconfigured):
            identifier(wrong)
    rows = fencing.Table("account")
    with sqlite3.connect(":memory:") as connection:
        for key, values in (({"id = 1 --": 7}, {}), ({"id": 7}, {"a = 1, b": 7})):
            with pytest.raises(Misconfigured, match="no name"):
                rows.update(connection, 1, key, values)
        with pytest.raises(Misconfigured, match="identify"):
            rows.update(connection, 1, {}, {"a": 1})
        with pytest.raises(Misconfigured, match="set by the gate"):
            rows.update(connection, 1, {"id": 7}, {"fence": 1})
    connection.close()


@pytest.mark.parametrize("style", STYLES)
def test_parameters_in_every_style(style: str) -> None:
    text, values = Statement("a = {} AND b = {}", (1, 2)).for_driver(style)
    assert (text, values) == {
        "qmark": ("a = ? AND b = ?", (1, 2)),
        "format": ("a = %s AND b = %s", (1, 2)),
        "pyformat": ("a = %s AND b = %s", (1, 2)),
        "numeric": ("a = :1 AND b = :2", (1, 2)),
        "numeric_dollar": ("a = $1 AND b = $2", (1, 2)),
        "named": ("a = :p1 AND b = :p2", {"p1": 1, "p2": 2}),
    }[style]


def test_an_unknown_driver_is_asked_about() -> None:
    class Connection:
        pass

    with pytest.raises(Misconfigured, match="paramstyle="):
        driver_of(Connection(), None)
    assert driver_of(Connection(), "qmark").style == "qmark"
    with pytest.raises(Misconfigured):
        driver_of(Connection(), "guess")


class Fake:
    """A driver whose cursors answer as they are told: what real ones do rarely, or never."""

    def __init__(self, counts: list[int], row: Any = None) -> None:
        self.counts, self.row = counts, row

    def cursor(self) -> Fake:
        return self

    def execute(self, text: str, values: Any) -> None:
        self.rowcount = self.counts.pop(0) if text.startswith("UPDATE") else -1

    def fetchone(self) -> Any:
        return self.row

    def close(self) -> None: ...


def test_what_drivers_may_say() -> None:
    rows = fencing.Table("account", paramstyle="qmark")
    with pytest.raises(Unsupported, match="how many rows"):
        rows.update(Fake([-1]), 5, {"id": 7})
    with pytest.raises(Misconfigured, match="3 rows"):
        rows.update(Fake([3]), 5, {"kind": "x"})
    rows.update(Fake([0, 1], (4,)), 5, {"id": 7})  # inserted in between
    with pytest.raises(holdfast.Unavailable, match="faster"):
        rows.update(Fake([0, 0, 0], (5,)), 5, {"id": 7})
    with pytest.raises(StaleFence):
        rows.update(Fake([0], {"fence": 6}), 5, {"id": 7})  # rows as mappings


def test_a_trigger_for_a_database_that_we_do_not_know() -> None:
    with pytest.raises(Misconfigured, match="postgresql"):
        fencing.trigger("account", "oracle")
    with pytest.raises(Misconfigured):
        fencing.trigger("account; DROP TABLE x", "sqlite")
    assert fencing.trigger("account", "postgresql+psycopg")
    assert any("app.account_fence_check" in s for s in fencing.trigger("app.account", "postgresql"))


@pytest.mark.req("law 10")
def test_a_trigger_takes_no_others_place() -> None:
    """Of tables whose names differ in a quoted character, or of two columns of one table."""
    connection = sqlite3.connect(":memory:")
    wanted = [
        ('"a b"', "fence"), ("a_b", "fence"), ('"a.b"', "fence"), ("a_b", "other"),
        ("a", "b_fence"), (f"{'long' * 20}1", "fence"), (f"{'long' * 20}2", "fence"),
    ]  # fmt: skip
    for table, fence in wanted:
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {table} (other INT, fence INT, b_fence INT)"
        )
        for _ in range(2):
            for statement in fencing.trigger(table, "sqlite", fence=fence):
                connection.execute(statement)
    for table, fence in wanted:
        connection.execute(f"INSERT INTO {table} VALUES (9, 9, 9)")
        with pytest.raises(sqlite3.IntegrityError, match="stale"):
            connection.execute(f"UPDATE {table} SET {fence} = 3")
    connection.close()


@pytest.mark.req("law 10")
def test_a_name_does_not_end_the_function_of_a_trigger() -> None:
    for fence in ("a$$b", '"f$$; DROP TABLE t; --"', '"$$ $x$"'):
        function = fencing.trigger("t", "postgresql", fence=fence)[0]
        quote = function.rpartition(" ")[2]
        assert function.count(quote) == 2
    assert fencing.trigger('app."my.table"', "postgresql")[0].split()[4].startswith("app.my_table_")


def test_a_class_of_the_callers_own_is_its_drivers() -> None:
    class Connection(sqlite3.Connection):
        pass

    connection = sqlite3.connect(":memory:", factory=Connection)
    connection.execute("CREATE TABLE account (id INT, fence INT)")
    connection.execute("INSERT INTO account VALUES (7, 9)")
    for table in (fencing.Table("account"), fencing.Table("account", paramstyle="qmark")):
        with pytest.raises(StaleFence):
            table.update(connection, 3, {"id": 7})
    connection.close()


# -- Redis, as text --------------------------------------------------------------------------------


def test_the_token_is_in_the_keys_own_slot() -> None:
    assert beside("account:7") == "{account:7}:fence"
    assert beside("{user}:account") == "{user}:account:fence"
    assert beside("{account:7}") == "{account:7}::fence"  # and not that of another key
    assert beside(b"a{b") == b"{a{b}:fence"
    assert beside(b"\xff") == b"{\xff}:fence"
    for wrong in ("{}x", "a}b", "}{"):
        with pytest.raises(Misconfigured, match="fence_key="):
            beside(wrong)
