"""One database, as one process uses it: a connection, a place among the processes, a pipe for mail.

Contract: `run` applies a request while no other process does; it returns by its deadline, or raises
`Unavailable`, and then the request was not applied. All clients of a process share the site of a
database. Nobody waits in SQLite, which would poll: who finds it busy waits at the gate.

How it stays safe:
- `mutex` is held for one transaction and never while waiting. It is left in one call in C, so an
  interrupt cannot leave it held. What an interrupt does leave behind (an open transaction, the
  gate, mail not yet sent), the next request puts right; the keeper makes one at once.
- SQLite must not be carried through a fork: even a connection that the child opens for itself
  would be believed to have the locks of the parent's. So it is closed before every fork, and both
  sides open it again when they need it. Everything else a child inherits is closed in the child.
- A file that was deleted or replaced while it is open is noticed within a tenth of a second of use.
Partners: `presence.py` (gate, deaths), `post.py` (mail), `schema.py` (epoch), `store.py` (rules).
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from holdfast.backends.local import INSIDE, Call, Held
from holdfast.backends.sqlite import place, schema
from holdfast.backends.sqlite.post import Post, sweep
from holdfast.backends.sqlite.presence import SPINS, Presence
from holdfast.core.backoff import pause
from holdfast.errors import HoldfastError, Misconfigured, Unavailable
from holdfast.ports import clock
from holdfast.types import Unknown

__all__ = ["Site", "join"]

T = TypeVar("T")
log = logging.getLogger("holdfast")

VERIFY = 0.1
"""How often, while it is used, a look is taken whether the files are still the same."""

PAGE = 1024
"""Bytes. Each commit writes and checks whole pages; a claim needs a fraction of one."""

CHECKPOINT = 8000
"""Pages of log (8 MB) that are gathered before they are written into the database itself."""

BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class _Moved(Exception):
    """The files are not the ones we have open."""


@dataclass(slots=True)
class _Busy:
    """The request was not applied; it is worth making again."""

    error: sqlite3.Error | None = None  # what SQLite said, if it was that
    gate: bool = False  # somebody is in the gate


class Site:
    db: sqlite3.Connection
    """The connection, during a request."""
    cursor: sqlite3.Cursor
    """The same, for statements that return no rows: a cursor that is not made each time."""
    number = 0
    """Under which this process is known to the others; 0 before the first request."""
    epoch: schema.Epoch

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users = 0
        self.mutex = threading.RLock()
        self.outbox: deque[tuple[int, str, Held | None]] = deque()
        self.calls: dict[str, Call] = {}
        self.doomed = False
        self._db: sqlite3.Connection | None = None
        self._presence: Presence | None = None
        self._post: Post | None = None
        self._files = (0, 0)
        self._verify_at = 0.0

    @property
    def entered(self) -> bool:
        """Whether this very thread is inside (the garbage collector ran a finaliser there)."""
        return self.mutex._is_owned()  # type: ignore[attr-defined,no-any-return]

    def run(self, deadline: float, request: Callable[[], T]) -> T | Unknown:
        """Apply the request, in one process at a time, and send the notices that it left.

        Usually nobody else is inside, and SQLite's own locks will do; if somebody is, it says so
        at once, and the request is made again through the gate."""
        if self.mutex._is_owned():  # type: ignore[attr-defined]
            return Unknown(INSIDE)
        with self.mutex:
            db = self._db
            if db is not None and not db.in_transaction and clock.now() < self._verify_at:
                answer = self._apply(request)
                if not isinstance(answer, _Busy):
                    return answer
        return self._run_in_gate(deadline, request)

    def _apply(self, request: Callable[[], T]) -> T | _Busy:
        try:
            answer = request()
            if self.outbox:
                self._deliver()
            return answer
        except _Moved:
            return _Busy()
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF not in BUSY:
                raise self._trouble(error) from error
            return _Busy(error)

    def _run_in_gate(self, deadline: float, request: Callable[[], T]) -> T:
        failures = 0
        while True:
            with self.mutex:
                presence = self._presence or self._enter()
                answer = self._apply_in_gate(presence, request)
                if not isinstance(answer, _Busy):
                    return answer
            left = deadline - clock.now()
            if answer.gate:
                if not presence.gate_free(left):
                    raise Unavailable(self._stuck(presence))
            elif answer.error is not None:
                failures += 1
                if left <= 0:
                    raise self._trouble(answer.error) from answer.error
                if failures < SPINS:  # somebody who needed no gate, and is gone in a moment
                    os.sched_yield()
                else:  # who does not know of it: a backup, or a person with a shell
                    time.sleep(pause(failures - SPINS, 0.5, min(left, 0.05)))

    def _apply_in_gate(self, presence: Presence, request: Callable[[], T]) -> T | _Busy:
        try:
            if not presence.try_gate():
                return _Busy(gate=True)
            return self._apply(lambda: self._opened(request))
        finally:
            presence.leave_gate()

    def _opened(self, request: Callable[[], T]) -> T:
        self._open()
        return request()

    def _roll_back(self, db: sqlite3.Connection) -> None:
        self.outbox.clear()
        try:
            db.execute("ROLLBACK")
        except sqlite3.Error:  # it has no transaction any more, or is no use: begin anew
            self._close_database()

    def _deliver(self) -> None:
        while self.outbox:
            message = self.outbox[0]
            self.post.tell(*message)
            self.outbox.popleft()

    # -- opening and closing ----------------------------------------------------------------------

    @property
    def post(self) -> Post:
        assert self._post is not None
        return self._post

    def alive(self, process: int) -> bool:
        """0 is somebody of whom nothing is known but their time."""
        if process in (0, self.number):
            return True
        assert self._presence is not None
        return self._presence.alive(process)

    def _enter(self) -> Presence:
        if self.doomed:
            raise Unavailable(
                f"this process was forked in the middle of a request to {self.path}, and cannot "
                "use it any more; fork earlier, or exec a new program"
            )
        self._beside = str(place.prepare(self.path))
        try:
            presence = Presence(os.path.join(self._beside, "presence"))
        except OSError as error:
            raise place.unusable(self.path, error) from error
        self._presence = presence
        return presence

    def _open(self) -> None:
        """Have a connection that can be used, to the files that are there now."""
        presence = self._presence
        assert presence is not None
        if self._db is not None and self._db.in_transaction:  # left behind by an interrupt
            self._roll_back(self._db)
        files = self._inodes()
        if self._db is not None and files == self._files:
            self._verify_at = clock.now() + VERIFY
            return
        if files[1] != presence.inode or not files[0]:
            self._leave()  # the gate goes with it
            raise _Moved
        self._close_database()
        db = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False, uri=False
        )
        try:
            db.execute(f"PRAGMA page_size = {PAGE}")
            (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise Misconfigured(
                    f"{self.path}: SQLite cannot use its write-ahead log there (it says {mode!r}); "
                    "put the file on an ordinary local disk"
                )
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}").fetchone()
            schema.ready(db)
            self._join(db, presence)
        except BaseException:
            db.close()
            raise
        self.db = self._db = db
        self.cursor = db.cursor()
        self._files = files
        self._verify_at = clock.now() + VERIFY

    def _join(self, db: sqlite3.Connection, presence: Presence) -> None:
        """Take part: the epoch, and a number and a pipe if we have none."""
        epoch = schema.Epoch(presence.inode) if self._post is None else self.epoch
        db.execute("BEGIN IMMEDIATE")
        epoch.join(db)
        number = epoch.reserve(db)
        db.execute("COMMIT")
        self.epoch = epoch
        if self._post is None:
            presence.enter(number)
            self.number = number
            try:
                sweep(self._beside, presence.alive)
                self._post = Post(self._beside, number, presence.alive, self.calls)
            except OSError as error:
                raise place.unusable(self.path, error) from error

    def rejoin(self) -> None:
        """The state in the database is not ours: open everything anew."""
        self._verify_at = 0.0
        self._close_database()
        raise _Moved

    def _inodes(self) -> tuple[int, int]:
        """Of the database and the presence file; 0 for what is not there."""
        found: list[int] = []
        for path in (self.path, os.path.join(self._beside, "presence")):
            try:
                found.append(os.stat(path).st_ino)
            except OSError:
                found.append(0)
        return found[0], found[1]

    def _close_database(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            del self.db, self.cursor
            try:
                db.close()
            except sqlite3.Error:  # pragma: no cover - nothing is to be done about it
                log.warning("closing %s failed", self.path, exc_info=True)

    def _leave(self) -> None:
        self._close_database()
        presence, self._presence = self._presence, None
        post, self._post = self._post, None
        if post is not None:
            post.close()
        if presence is not None:
            presence.close()

    def leave(self) -> None:
        """One client less; the last one closes everything."""
        with _registry:
            self.users -= 1
            if self.users > 0:
                return
            if _sites.get(str(self.path)) is self:
                del _sites[str(self.path)]
        with self.mutex:
            post = self._post
            self._leave()
        if post is not None:
            post.join(1.0)

    # -- fork -------------------------------------------------------------------------------------

    def before_fork(self) -> bool:
        """True: to be followed by `mutex.release()`. False: this very thread is inside."""
        if self.entered:
            return False
        self.mutex.acquire()
        self._close_database()
        return True

    def in_child(self) -> None:
        """Nothing here is the child's. Its locks the kernel did not give it."""
        if self._post is not None:
            self._post.drop()
        if self._presence is not None:
            self._presence.close()

    # -- what can go wrong ------------------------------------------------------------------------

    def _stuck(self, presence: Presence) -> str:
        pid = presence.gate_holder()
        who = f"process {pid}" if pid else "another process"
        return (
            f"{who} has been inside {self.path} for too long; if it was stopped (Ctrl-Z, a "
            "debugger, SIGSTOP), continue or end it: nobody can use these locks before"
        )

    def _trouble(self, error: sqlite3.Error) -> HoldfastError:
        code = error.sqlite_errorcode & 0xFF
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            self._verify_at = 0.0
            return Misconfigured(
                f"{self.path} is not a database that can be read ({error}). If it is only "
                "holdfast's, delete it while nobody uses it; locks then start afresh"
            )
        hints = {
            sqlite3.SQLITE_FULL: "the disk is full; make room, nothing is damaged",
            sqlite3.SQLITE_READONLY: "it cannot be written; every process needs write access to "
            "the file and its folder",
            sqlite3.SQLITE_CANTOPEN: "it cannot be opened; every process needs write access to "
            "the file and its folder",
            sqlite3.SQLITE_BUSY: "somebody keeps it locked: a process that was stopped in the "
            "middle of a request (Ctrl-Z, a debugger), a backup, a shell with an open transaction",
            sqlite3.SQLITE_IOERR: "the disk failed to read or write; look at the system's log",
        }
        hint = hints.get(code, "an unexpected error of SQLite")
        return Unavailable(f"cannot use {self.path}: {hint} ({error})")


_sites: dict[str, Site] = {}
_registry = threading.RLock()
_forking: list[Site] = []


def join(path: Path) -> Site:
    """The process's site of this database; to be left by `Site.leave`. No I/O on the file."""
    real = Path(os.path.realpath(path))
    with _registry:
        site = _sites.get(str(real))
        if site is None:
            site = _sites[str(real)] = Site(real)
        site.users += 1
        return site


def _before() -> None:
    _registry.acquire()
    _forking.extend(site for site in list(_sites.values()) if site.before_fork())


def _in_parent() -> None:
    while _forking:
        _forking.pop().mutex.release()
    _registry.release()


def _in_child() -> None:
    global _registry
    _registry = threading.RLock()
    inherited = list(_sites.values())
    _sites.clear()
    for site in inherited:
        site.in_child()
        if site not in _forking:
            # Its connection is open, and must never be closed here: it stays in this dictionary.
            site.doomed = True
            site.users = 1
            site._presence = site._post = None
            _sites[str(site.path)] = site
    _forking.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
