"""One database, as one process uses it: a connection, a place among the processes, a pipe for mail.

Contract: `run` applies a request while no other process does; it returns by its deadline, or raises
`Unavailable`, and then the request was not applied. All clients of a process share the site of a
database. Nobody waits in SQLite, which would poll: who finds it busy waits at the gate.

How it stays safe:
- `mutex` is held for one transaction and never while waiting. It is left in one call in C, so an
  interrupt cannot leave it held; and whatever else it interrupted is put right before it goes on.
- Mail is a draft until its transaction is committed: a grant that was rolled back is never told.
- SQLite must not be carried through a fork: even a connection that the child opens for itself
  would be believed to have the locks of the parent's. So it is closed before every fork, and both
  sides open it again when they need it. Everything else a child inherits is closed in the child.
- A file that was deleted or replaced while it is open is noticed within a tenth of a second of use.
  The number under which we lived is then kept as long as we live: claims may still be under it.
Partners: `lockfile.py` (gate, deaths), `post.py` (mail), `schema.py` (epoch), `store.py` (rules),
`sites.py` (who uses a site; forks), `trouble.py` (what to say).
"""

from __future__ import annotations

import functools
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from holdfast.backends.local import INSIDE, Call, Held
from holdfast.backends.sqlite import place, schema
from holdfast.backends.sqlite.lockfile import SPINS, LockFile
from holdfast.backends.sqlite.post import Post, sweep
from holdfast.backends.sqlite.trouble import explained, is_busy, stuck
from holdfast.errors import Misconfigured, Unavailable
from holdfast.ports import clock
from holdfast.types import Unknown

__all__ = ["Site"]

T = TypeVar("T")
Mail = tuple[int, str, Held | None]  # to which process, for whom, what
log = logging.getLogger("holdfast")

VERIFY = 0.1
"""How often, while it is used, a look is taken whether the files are still the same."""

COURTESY = 0.05
"""So many seconds every request is given to have its turn."""

AGAIN = 0.0125
"""Seconds after which who was refused by SQLite itself, and not at the gate, tries once more."""

INSIDE_FOR = 0.1
"""Seconds after which whoever is in the gate is not waited for, but tried past."""

MOVES = 20
"""So often in one request the files may turn out to be others."""

PAGE = 1024
"""Bytes. Each commit writes and checks whole pages; a claim needs a fraction of one."""

CHECKPOINT = 8000
"""Pages of log (8 MB) that are gathered before they are written into the database itself."""


READABLE = functools.partial(str, encoding="utf-8", errors="replace")
"""What somebody else has written need not be UTF-8: it is told by `sound.py`, not by an error of
SQLite that names no row."""


class _Moved(Exception):
    """The files are not the ones we have open."""


@dataclass(slots=True)
class _Busy:
    """The request was not applied; it is worth making again."""

    error: sqlite3.Error | None = None  # what SQLite said, if it was that
    gate: bool = False  # somebody is in the gate


class Site:
    cursor: sqlite3.Cursor
    """Of the connection, for statements that are wanted often: not made anew each time."""
    number = 0
    """Under which this process is known to the others; 0 before the first request."""
    epoch: schema.Epoch
    store: Any
    """The rules for this database; one for all clients (`store.py`, which knows us)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users = 0
        self.mutex = threading.RLock()
        self.calls: dict[str, Call] = {}
        self.drafts: list[Mail] = []
        self._outbox: deque[Mail] = deque()
        self.db: sqlite3.Connection | None = None  # there is one during a request
        self._lockfile: LockFile | None = None
        self._left: list[LockFile] = []  # of files that are not there any more
        self._post: Post | None = None
        self._files: tuple[int, ...] = ()
        self._verify_at = 0.0
        self._closed = False
        self._doomed = False

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
            db = self.db
            if db is not None and not db.in_transaction and clock.now() < self._verify_at:
                answer = self._apply(request)
                if not isinstance(answer, _Busy):
                    return answer
        return self._run_in_gate(deadline, request)

    def _apply(self, request: Callable[[], T]) -> T | _Busy:
        try:
            answer = request()
            if self._outbox:
                self._deliver()
            return answer
        except BaseException as error:  # noqa: BLE001 - raised again there
            return self._broken_off(error)

    def _broken_off(self, error: BaseException) -> _Busy:
        """Raises unless the request is worth making again."""
        self._tidy_up(error)
        if isinstance(error, _Moved):
            return _Busy()
        if not isinstance(error, sqlite3.Error):
            raise error
        if is_busy(error):
            return _Busy(error)
        raise explained(self.path, error) from error

    def _tidy_up(self, error: BaseException) -> None:
        """Whatever it was: no transaction stays open, and no notice is lost or invented."""
        if self.db is not None and self.db.in_transaction:
            self._roll_back(self.db)
        elif isinstance(error, sqlite3.Error):
            self.drafts.clear()  # SQLite has rolled back by itself
        else:
            self.post_drafts()  # it was committed, and then interrupted
        if self._outbox:
            self._deliver()

    def _roll_back(self, db: sqlite3.Connection) -> None:
        self.drafts.clear()
        try:
            db.execute("ROLLBACK")
        except sqlite3.Error:  # it has no transaction any more, or is no use: begin anew
            self._close_database()

    def post_drafts(self) -> None:
        """Their transaction is committed."""
        self._outbox.extend(self.drafts)
        self.drafts.clear()

    def _deliver(self) -> None:
        while self._outbox:
            try:
                self.post.tell(*self._outbox[0])
            except OSError:  # the next look of whom it was for finds it
                log.warning("a notice to another process could not be sent", exc_info=True)
            self._outbox.popleft()

    def _run_in_gate(self, deadline: float, request: Callable[[], T]) -> T:
        # However short the caller's patience: to be busy for a moment is not to be unavailable.
        deadline = max(deadline, clock.now() + COURTESY)
        failures = moves = 0
        through = True
        while True:
            with self.mutex:
                lockfile = self._lockfile or self._enter()
                answer = self._apply_in_gate(lockfile, request, through)
                if not isinstance(answer, _Busy):
                    return answer
            left = deadline - clock.now()
            if answer.gate:
                if left <= 0:
                    raise stuck(self.path, lockfile.gate_holder())
                through = lockfile.gate_free(min(left, INSIDE_FOR))
            elif answer.error is None:
                moves += 1
                if moves > MOVES:
                    raise Unavailable(f"{self.path} is deleted or replaced again and again")
            elif left <= 0:
                raise explained(self.path, answer.error) from answer.error
            elif failures < SPINS:  # somebody who needed no gate, and is gone in a moment
                failures += 1
                os.sched_yield()
            else:  # who does not know of it: a backup, or a person with a shell
                time.sleep(min(left, AGAIN))

    def _apply_in_gate(
        self, lockfile: LockFile, request: Callable[[], T], through: bool
    ) -> T | _Busy:
        """Not `through`: somebody has been in the gate for long, and was perhaps stopped just after
        its transaction. The gate is an order and SQLite's locks are the law, so try past it."""
        try:
            inside = lockfile.try_gate()
            if not inside and through:
                return _Busy(gate=True)
            answer = self._apply(lambda: self._opened(request))
            if isinstance(answer, _Busy) and not inside:
                return _Busy(gate=True)
            return answer
        finally:
            lockfile.leave_gate()

    def _opened(self, request: Callable[[], T]) -> T:
        self._open()
        return request()

    # -- opening and closing ----------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether this process has used it."""
        return self._lockfile is not None

    @property
    def post(self) -> Post:
        assert self._post is not None
        return self._post

    def alive(self, process: int) -> bool:
        """0 is somebody of whom nothing is known but their time."""
        if process in (0, self.number):
            return True
        assert self._lockfile is not None
        return self._lockfile.alive(process)

    def _enter(self) -> LockFile:
        if self._closed:
            raise Unavailable(f"the last client of {self.path} was closed")
        if self._doomed:
            raise Unavailable(
                f"this process was forked in the middle of a request to {self.path}, and cannot "
                "use it any more; fork earlier, or exec a new program"
            )
        self._beside = str(place.prepare(self.path))
        try:
            lockfile = LockFile(os.path.join(self._beside, "presence"))
        except OSError as error:
            raise place.unusable(self.path, error) from error
        self._lockfile = lockfile
        return lockfile

    def _open(self) -> None:
        """Have a connection that can be used, to the files that are there now."""
        lockfile = self._lockfile
        assert lockfile is not None
        files = self._inodes()
        if self.db is not None and files == self._files:
            self._verify_at = clock.now() + VERIFY
            return
        self._close_database()
        if files[1] != lockfile.inode or not files[0]:
            self._move()
            raise _Moved
        db = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False, uri=False
        )
        db.text_factory = READABLE
        try:
            new = schema.is_new(db)  # first of all: what follows would change another's
            db.execute(f"PRAGMA page_size = {PAGE}")
            (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise Misconfigured(
                    f"{self.path}: SQLite cannot use its write-ahead log there (it says {mode!r}); "
                    "put the file on an ordinary local disk"
                )
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}").fetchone()
            if new:
                schema.make(db)
            self._join(db, lockfile)
            self.cursor = db.cursor()
            self._files = self._inodes()
            self._verify_at = clock.now() + VERIFY
        except BaseException:
            db.close()
            raise
        self.db = db

    def _join(self, db: sqlite3.Connection, lockfile: LockFile) -> None:
        """Take part: the epoch, and a number and a pipe if we have none."""
        epoch = schema.Epoch(lockfile.inode) if self._post is None else self.epoch
        db.execute("BEGIN IMMEDIATE")
        epoch.join(db, self.path, self.alive)
        number = epoch.reserve(db)
        db.execute("COMMIT")
        self.epoch = epoch
        if self._post is None:
            try:
                lockfile.enter(number)
                self.number = number
                sweep(self._beside, self.alive)
                self._post = Post(self._beside, number, lockfile.alive, self.calls)
            except OSError as error:
                raise place.unusable(self.path, error) from error

    def rejoin(self) -> NoReturn:
        """The state in the database is not ours: open everything anew."""
        self._close_database()
        raise _Moved

    def _inodes(self) -> tuple[int, ...]:
        """Of the database, the presence file and SQLite's own; 0 for what is not there."""
        found: list[int] = []
        beside = os.path.join(self._beside, "presence")
        for path in (self.path, beside, f"{self.path}-wal", f"{self.path}-shm"):
            try:
                found.append(os.stat(path).st_ino)
            except FileNotFoundError:
                found.append(0)
            except OSError as error:
                raise place.unusable(self.path, error) from error
        return tuple(found)

    def _close_database(self) -> None:
        """A statement that is not finished would keep the files open, and the locks on them."""
        db, self.db = self.db, None
        self._files = ()
        if db is not None:
            self.cursor.close()
            try:
                db.close()
            except sqlite3.Error:  # pragma: no cover - nothing is to be done about it
                log.warning("closing %s failed", self.path, exc_info=True)

    def _move(self) -> None:
        """Everything anew; but the number is kept, for others may still see claims under it."""
        lockfile, self._lockfile = self._lockfile, None
        post, self._post = self._post, None
        if lockfile is not None:
            self._left.append(lockfile)
        if post is not None:
            post.close()

    def close(self) -> None:
        """Nobody uses it any more."""
        with self.mutex:
            self._closed = True
            if not self._doomed:  # a connection of the parent's must not be closed in its child
                self._close_database()
            post = self._post
            self._move()
            if post is not None:
                post.join(1.0)  # it still asks who is alive
            while self._left:
                self._left.pop().close()

    # -- fork -------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """To be followed by `mutex.release()`."""
        self.mutex.acquire()
        self._close_database()

    def in_child(self) -> bool:
        """Nothing here is the child's: close it, first of all what keeps the parent alive in the
        eyes of others. False if the connection was carried through the fork."""
        self._doomed = self._is_open()
        for lockfile in (*self._left, *([self._lockfile] if self._lockfile else ())):
            lockfile.drop()
        if self._post is not None:
            self._post.drop()
        self._left.clear()
        self._lockfile = self._post = None
        return not self._doomed

    def _is_open(self) -> bool:
        """Whether this process has the database open, by any connection."""
        for fd in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{fd}") == str(self.path):
                    return True
            except OSError:  # that of the listing itself
                pass
        return False
