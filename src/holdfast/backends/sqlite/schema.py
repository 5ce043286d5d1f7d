"""The tables, and the epoch: which boot of which kernel they belong to.

Times are the kernel's CLOCK_BOOTTIME, and processes are known by locks in the kernel: both mean
nothing after a restart of the host. So one row says for which boot, and for which presence file,
the claims are good; who finds another one there puts things right, or says what is wrong.

Tokens are `base` + microseconds of that clock, where `base` made them wall-clock microseconds when
the epoch began: they grow with a clock that is never set, and nothing has to be written for them.
`reserved` is a bound of the tokens given out, raised a minute at a time: the next epoch, or a clock
that was set back before the host came up, starts above it.
Partner: `site.py`.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.backends.sqlite import sound
from holdfast.errors import Misconfigured, Unavailable
from holdfast.ports import clock

__all__ = ["Epoch", "boot_id", "is_new", "make", "now"]

APPLICATION = 0x686F6C64  # "hold"
VERSION = 2
MINUTE = 60_000_000
CLAIMS = "holders", "waiters"

TABLES = """
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    epoch TEXT NOT NULL,       -- the kernel's boot id and the presence file's inode: "id:inode"
    base INTEGER NOT NULL,
    reserved INTEGER NOT NULL
);
CREATE TABLE holders (
    name BLOB NOT NULL,
    owner TEXT NOT NULL,
    process INTEGER NOT NULL,  -- 0: cannot be known any more, only its time ends it
    mode TEXT NOT NULL,
    permits INTEGER NOT NULL,
    since REAL NOT NULL,
    expires REAL NOT NULL,
    fence INTEGER,
    info TEXT NOT NULL,
    PRIMARY KEY (name, owner)
) WITHOUT ROWID;
CREATE TABLE waiters (
    name BLOB NOT NULL,
    place INTEGER NOT NULL,    -- in the line for this name
    owner TEXT NOT NULL UNIQUE,
    process INTEGER NOT NULL,
    mode TEXT NOT NULL,
    permits INTEGER NOT NULL,
    most INTEGER NOT NULL,
    ttl REAL NOT NULL,
    since REAL NOT NULL,
    expires REAL NOT NULL,
    look_at REAL NOT NULL,     -- when it will look by itself
    depends TEXT NOT NULL,     -- the processes whose end it will notice
    info TEXT NOT NULL,
    PRIMARY KEY (name, place)
) WITHOUT ROWID;
CREATE TABLE cells (
    name BLOB PRIMARY KEY,
    value BLOB,                -- NULL: deleted, and only the fence is remembered
    version INTEGER NOT NULL,
    expires REAL,
    fence INTEGER
) WITHOUT ROWID;
CREATE TABLE watchers (name BLOB, process INTEGER, PRIMARY KEY (name, process)) WITHOUT ROWID;
"""


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # pragma: no cover - no /proc: deaths are still noticed, by presence
        return "unknown"


def _offset() -> float:
    """How far this process's boot clock is ahead of the host's: a container may have a time
    namespace of its own, and must agree with those that have not."""
    try:
        offsets = Path("/proc/self/timens_offsets").read_text()
    except OSError:
        return 0.0
    match = re.search(r"^boottime\s+(-?\d+)\s+(\d+)", offsets, re.MULTILINE)
    return int(match[1]) + int(match[2]) / 1e9 if match else 0.0


AHEAD = _offset()


def _now() -> float:
    return clock.now() - AHEAD


now = _now if AHEAD else clock.now
"""The host's clock, the same in every process."""


def is_new(db: sqlite3.Connection) -> bool:
    """Whether it has no tables yet. Refuses a database that is not ours, and changes nothing."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if (application, version) == (APPLICATION, VERSION):
        return False
    if application == APPLICATION:
        raise Misconfigured(
            f"the database was made by another version of holdfast (its format is {version}, "
            f"this one's {VERSION}). Use one version for all, or delete it while nobody uses it"
        )
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application or tables:
        raise Misconfigured(
            "the database belongs to another program; give holdfast a file of its own"
        )
    return True


def make(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    for statement in TABLES.split(";\n"):
        if statement.strip():
            db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION}")
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


class Epoch:
    """This process's view of the row `state`."""

    def __init__(self, presence: int) -> None:
        self._boot = boot_id()
        self.word = f"{self._boot}:{presence}"
        self._base = 0
        self._reserved = 0
        # Where the clock is so coarse that two grants could have one token, each is written down.
        self.fine = time.clock_getres(time.CLOCK_BOOTTIME) <= 1e-6
        self._seen = False

    def join(self, db: sqlite3.Connection, path: Path, alive: Callable[[int], bool]) -> None:
        """Inside a transaction: make the state this process's own, or say why that is wrong."""
        row = db.execute(f"SELECT epoch, base, reserved, {sound.STATE} FROM state").fetchone()
        if row and not row[3]:
            sound.refuse_state(db, path)
        word, base, reserved = row[:3] if row else ("", 0, 0)
        same_boot = word.partition(":")[0] == self._boot
        if word == self.word:
            self._base, self._reserved, self._seen = base, reserved, True
            return
        if row and not same_boot:
            if self._seen:
                raise Unavailable(
                    "the database is used under two kernels at once, which cannot see one "
                    "another's locks: keep it on a disk of this host (not shared between virtual "
                    "machines), and use a server, redis:// or another, between hosts"
                )
            self._refuse_the_living(db, alive)
            # The host was restarted: nobody who made a claim is alive, and its clock began anew.
            for table in ("holders", "waiters", "watchers"):
                db.execute(f"DELETE FROM {table}")
            db.execute("UPDATE cells SET expires = 0 WHERE expires IS NOT NULL")
        elif row:
            # Somebody deleted the presence file: who was alive then cannot be told any more.
            for table in CLAIMS:
                db.execute(f"UPDATE {table} SET process = 0")
        if not same_boot:
            micros = int(now() * 1e6)
            base = max(int(time.time() * 1e6), reserved + 1) - micros
            reserved = max(reserved, base + micros)
        db.execute("REPLACE INTO state VALUES (1, ?, ?, ?)", (self.word, base, reserved))
        self._base, self._reserved, self._seen = base, reserved, True

    def _refuse_the_living(self, db: sqlite3.Connection, alive: Callable[[int], bool]) -> None:
        tables = (f"SELECT process FROM {table} WHERE {sound.PROCESS}" for table in CLAIMS)
        found = db.execute(" UNION ".join(tables))
        if any(process and alive(process) for (process,) in found.fetchall()):
            raise Unavailable(
                "the boot id of this process is not that of others who use the database, though "
                "they run under the same kernel (a container that is given a boot id of its own, "
                "or has no /proc). Let all of them see the same /proc/sys/kernel/random/boot_id"
            )

    def begun(self, word: str, reserved: int) -> bool:
        """Inside a transaction that found this in the state: is it the epoch that was joined?"""
        self._reserved = reserved
        return word == self.word

    def token(self, moment: float) -> int:
        """Good only if the state says that it is reserved; see `reserve`."""
        return self._base + int(moment * 1e6)

    def reserve(self, db: sqlite3.Connection) -> int:
        """Inside a transaction that has begun here: a token that is larger than all before."""
        token = self.token(now())
        if not self.fine:
            token = max(token, self._reserved + 1)
        if token > self._reserved or not self.fine:
            self._reserved = token + (MINUTE if self.fine else 0)
            db.execute("UPDATE state SET reserved = ?", (self._reserved,))
        return token
