"""The gate of a file: killed, forked, linked, torn and out of space."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast import Misconfigured, StaleFence, fencing
from holdfast.fencing import aio as afencing
from holdfast.fencing import file as files

pytestmark = pytest.mark.req("B1")

PATIENCE = 60.0


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


def at_line(line: int, strike: Callable[[], None]) -> Callable[[FrameType, str, object], Any]:
    """A tracer that strikes at the n-th line that is executed in file.py."""
    left = line

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != files.__file__:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                strike()
        return trace

    return trace


def dies_at(line: int, path: Path, token: int, text: str) -> bool:
    """A child writes, and is killed at the n-th line that it executes in file.py. True: it was
    done before."""
    pid = os.fork()
    if pid == 0:
        try:
            sys.settrace(at_line(line, lambda: os.kill(os.getpid(), signal.SIGKILL)))
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
    token, line, done = 1, 0, False

    def interrupt() -> None:
        sys.settrace(None)
        raise KeyboardInterrupt

    while not done:
        token += 1
        try:
            sys.settrace(at_line(line, interrupt))
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
