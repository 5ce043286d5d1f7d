"""sqlite:// in one process: where the file is, who may read it, and what can be wrong with it."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

import holdfast
from holdfast import Misconfigured, Unavailable
from holdfast.backends.sqlite import place, sites
from holdfast.backends.sqlite.lockfile import LockFile
from holdfast.backends.sqlite.post import Post
from holdfast.backends.sqlite.store import Store
from holdfast.backends.url import parse
from holdfast.ports import clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def locks(path: Path) -> Iterator[holdfast.Locks]:
    with holdfast.connect(f"sqlite://{path}") as locks:
        yield locks


# -- where -----------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_default_is_a_private_file_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = os.umask(0)
    try:
        with holdfast.connect() as locks, locks.lock("x"):
            folder = tmp_path / ".local/state/holdfast"
            assert mode(folder) == 0o700
            assert mode(folder / "locks.db.holdfast") == 0o700
            files = [f for f in folder.rglob("*") if not f.is_dir()]
            assert {mode(file) for file in files} == {0o600}
            names = {f.name for f in files if f.suffix != ".pipe"}
            assert names == {"locks.db", "locks.db-wal", "locks.db-shm", "presence"}
    finally:
        os.umask(before)


def test_the_state_directory_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert place.default() == tmp_path / "holdfast/locks.db"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert place.default() == Path.home() / ".local/state/holdfast/locks.db"


def test_both_names_of_one_file_are_one_store(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with (
        holdfast.connect(f"sqlite://{tmp_path}/real/a.db") as one,
        holdfast.connect(f"sqlite://{tmp_path}/link/a.db") as two,
        one.lock("x"),
    ):
        assert two.lock("x").acquire(blocking=False) is None


def test_paths_that_are_long_or_odd(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100) / "a b%é#?"
    url = f"sqlite://{folder}/l.db".replace("%", "%25").replace("#", "%23").replace("?", "%3F")
    with holdfast.connect(url) as locks, locks.lock("x"):
        assert (folder / "l.db").exists()


def test_a_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert place.resolve(parse("sqlite:///~/x.db")) == tmp_path / "x.db"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://locks.db", "three slashes"),
        ("sqlite://u:secret@/x.db", "have no user"),
        ("sqlite:///x.db?ttl=3", "'ttl' is an option of a lock"),
        ("sqlite:///~nobody-has-this-name/x.db", "determine home"),
        ("sqlite:///a%00b", "NUL"),
    ],
)
def test_bad_urls(url: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message) as caught:
        holdfast.connect(url)
    assert "secret" not in str(caught.value)


MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:20 / /mnt/nfs rw,relatime - nfs4 server:/export rw
23 21 0:21 / /mnt/with\\040space rw - fuse.sshfs me@host: rw
24 22 0:22 / /mnt/nfs/local rw - tmpfs tmpfs rw
25 21 0:23 / /over rw - ext4 /dev/sdb1 rw
26 25 0:24 / /over rw - cifs //server/share rw
"""


@pytest.mark.req("SQLite: disk full, read-only, network filesystem")
@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/mnt/nfs", "nfs4"),
        ("/mnt/nfs/a/b", "nfs4"),
        ("/mnt/with space/a", "fuse.sshfs"),
        ("/over", "cifs"),
        ("/mnt/nfs/local", None),
        ("/mnt/nfsx", None),
        ("/home/me", None),
    ],
)
def test_a_network_filesystem_is_refused(folder: str, kind: str | None) -> None:
    if kind is None:
        place.refuse_network(Path(folder), MOUNTS)
        return
    with pytest.raises(Misconfigured, match=rf"network filesystem \({kind}\).*local disk"):
        place.refuse_network(Path(folder), MOUNTS)


def test_the_filesystem_of_this_very_folder_is_known(tmp_path: Path) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    found = subprocess.run(
        ["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True
    )
    kind = place._filesystem(str(tmp_path.resolve()), mounts)
    assert kind.startswith(found.stdout.strip().partition("/")[0][:3])


# -- what may be wrong with the file ---------------------------------------------------------------


def test_another_programs_database_is_left_alone(path: Path, locks: holdfast.Locks) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE users (name)")
    with pytest.raises(Misconfigured, match="belongs to another program"):
        locks.lock("x").acquire()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("users",)]


def test_another_versions_database_is_left_alone(path: Path) -> None:
    with holdfast.connect(f"sqlite://{path}") as locks, locks.lock("x"):
        pass
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with (
        holdfast.connect(f"sqlite://{path}") as locks,
        pytest.raises(Misconfigured, match=r"another version of holdfast .its format is 99"),
    ):
        locks.lock("x").acquire()


def test_a_file_that_is_no_database(path: Path, locks: holdfast.Locks) -> None:
    path.write_bytes(b"Dear diary, " * 100)
    with pytest.raises(Misconfigured, match="not a database"):
        locks.lock("x").acquire()
    path.unlink()
    with locks.lock("x"):  # the client is not spoilt by it
        pass


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        holdfast.connect(f"sqlite://{tmp_path}/file/locks.db") as locks,
        pytest.raises(Unavailable, match=r"cannot use .*(Not a directory|File exists)"),
    ):
        locks.lock("x").acquire(timeout=0.2)


IN_A_SMALL_DISK = """
import os, subprocess, sys
import holdfast
disk, kind = sys.argv[1:]
def sh(*command): subprocess.run(command, check=True)
sh("mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", disk)
locks = holdfast.connect(f"sqlite://{disk}/locks.db", request_timeout=0.3)
lease = locks.lock("held", ttl=1000).acquire()
if kind == "full":
    with open(disk + "/filler", "wb", buffering=0) as filler:
        try:
            while True: filler.write(bytes(1024))
        except OSError: pass
else:
    locks.close()
    lease = None
    sh("mount", "-o", "remount,ro", disk)
    locks = holdfast.connect(f"sqlite://{disk}/locks.db", request_timeout=0.3)
leases = []
try:
    for n in range(2000): leases.append(locks.lock(f"{n}" * 100, ttl=1000).acquire())
    print("no error")
except holdfast.Unavailable as error:
    print(error)
if kind == "full":
    assert lease.held
    os.unlink(disk + "/filler")
else:
    sh("mount", "-o", "remount,rw", disk)
with locks.lock("x"): pass
assert lease is None or lease.release()
for lease in leases: assert lease.release()
assert locks.inspect() == [], locks.inspect()
locks.close()
import sqlite3
print(sqlite3.connect(f"{disk}/locks.db").execute("PRAGMA integrity_check").fetchone()[0])
"""


@pytest.mark.req("SQLite: disk full, read-only, network filesystem")
@pytest.mark.parametrize(
    ("kind", "message"), [("full", "the disk is full"), ("read-only", "cannot be|Read-only")]
)
def test_a_disk_that_is(kind: str, message: str, tmp_path: Path) -> None:
    """A clear error, nothing damaged, and it goes on when there is room again."""
    user = ["--user", "--map-root-user"] if os.getuid() != 0 else []
    ran = subprocess.run(
        ["unshare", *user, "--mount", sys.executable, "-c", IN_A_SMALL_DISK, str(tmp_path), kind],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ran.returncode == 0, ran.stderr
    said, integrity = ran.stdout.splitlines()
    assert re.search(message, said), said
    assert integrity == "ok"


# -- the gate and the descriptors ------------------------------------------------------------------


def test_the_gate_lets_one_process_in(tmp_path: Path) -> None:
    presence = LockFile(str(tmp_path / "presence"))
    assert presence.try_gate()
    script = (
        "import sys; from holdfast.backends.sqlite.lockfile import LockFile\n"
        "gate = LockFile(sys.argv[1])\n"
        "print(gate.try_gate(), gate.gate_free(0.05), gate.gate_holder(), flush=True)\n"
        "print(gate.gate_free(20), gate.try_gate())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "presence")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == f"False False {os.getpid()}\n"
        presence.leave_gate()
        assert other.stdout.readline() == "True True\n"
    presence.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_closing_leaves_no_descriptor_thread_or_file(tmp_path: Path) -> None:
    def use() -> None:
        with (
            holdfast.connect(f"sqlite://{tmp_path}/locks.db") as one,
            holdfast.connect(f"sqlite://{tmp_path}/locks.db") as two,
            one.lock("x"),
        ):
            assert two.lock("x").acquire(timeout=0.01) is None

    use()
    before, threads = descriptors(), threading.active_count()
    for _ in range(5):
        use()
    until(lambda: descriptors() <= before, "no more descriptors than before")
    until(lambda: threading.active_count() <= threads, "no more threads than before")
    assert not sites._sites
    assert sorted(p.name for p in tmp_path.iterdir()) == ["locks.db", "locks.db.holdfast"]


def test_many_lock_names_and_prefixes(locks: holdfast.Locks) -> None:
    names = ["a", "a\0", "a\0b", "ab", "A", "é", "e\u0301", "\U0010ffff", "a" * 1024]
    leases: list[Any] = [locks.lock(name).acquire(blocking=False) for name in names]
    assert all(leases)
    assert {info.name for info in locks.inspect()} == set(names)
    assert {info.name for info in locks.inspect("a")} == {n for n in names if n.startswith("a")}
    assert {info.name for info in locks.inspect("\U0010ffff")} == {"\U0010ffff"}


# -- forks and interrupts --------------------------------------------------------------------------


@pytest.mark.req("law 8", "fork after acquire")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # 3.12: threads here, which is the point
def test_no_connection_is_carried_through_a_fork(path: Path, locks: holdfast.Locks) -> None:
    """SQLite would believe the child's own connection to have the locks of the parent's."""
    with locks.lock("x"):
        readable, writable = os.pipe()
        pid = os.fork()
        if not pid:
            files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
            ours = [file for file in files if str(path) in file]
            os.write(writable, repr(ours).encode() or b"?")
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(readable, 10000) == b"[]"
        os.close(readable)
        os.close(writable)


@pytest.mark.req("law 4", "KeyboardInterrupt at any line")
def test_an_interrupt_between_commit_and_notice_loses_nothing(
    locks: holdfast.Locks, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ttl is so long that no heartbeat would find the grant in time."""
    with holdfast.connect(f"sqlite://{path}") as other:
        lease = locks.lock("x", ttl=1000).acquire()
        assert lease
        got: list[object] = []
        waiter = threading.Thread(
            target=lambda: got.append(other.lock("x", ttl=1000).acquire(timeout=60))
        )
        waiter.start()
        while not any(info.waiters for info in locks.inspect("x")):
            pass
        tell, struck = Post.tell, list[bool]()

        def interrupted(post: Post, *message: Any) -> None:
            if not struck:
                struck.append(True)
                raise KeyboardInterrupt
            tell(post, *message)

        monkeypatch.setattr(Post, "tell", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lease.release()
        waiter.join()
        assert struck
        assert got[0], "the grant was never told"


@pytest.mark.req("R6", "law 6", "client paused longer than its lease")
def test_a_request_paused_on_its_way_judges_by_the_time_of_its_arrival(
    locks: holdfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute between the first line of a renewal and its turn in the file: what ended meanwhile
    is not brought back, though nobody has taken it."""
    lease = locks.lock("x", ttl=0.3, renew=False).acquire()
    assert lease
    begin = Store.begin

    def late(store: Store) -> float:
        time.sleep(0.4)
        return begin(store)

    site = locks._engine().backend._site  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setattr(Store, "begin", late)
        assert site.run(clock.now() + 10, lambda: site.store.renew([lease._hold.claim])) == [False]
    assert lease.release() is False


def test_the_gate_is_asked_about_after_it_was_closed(tmp_path: Path) -> None:
    """Whoever waits at it has no mutex: its descriptors may be another file's by then."""
    presence = LockFile(str(tmp_path / "presence"))
    presence.close()
    assert presence.gate_free(0.0)
    assert presence.gate_holder() == 0
