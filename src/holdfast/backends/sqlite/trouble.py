"""What can be wrong with the file, said so that somebody can do something about it.

Contract: pure. `Misconfigured` where trying again is no use, `Unavailable` where it may be.
Partners: `site.py`, which asks; `place.py`, for what is wrong with the folder.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from holdfast.errors import HoldfastError, Misconfigured, Unavailable

__all__ = ["BUSY", "explained", "is_busy", "stuck"]

BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
UNREADABLE = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
ACCESS = "every process needs write access to the file and its folder"
HINTS = {
    sqlite3.SQLITE_FULL: "the disk is full; make room, nothing is damaged",
    sqlite3.SQLITE_READONLY: f"it cannot be written; {ACCESS}",
    sqlite3.SQLITE_CANTOPEN: f"it cannot be opened; {ACCESS}",
    sqlite3.SQLITE_BUSY: "somebody keeps it locked: a process that was stopped in the middle of a "
    "request (Ctrl-Z, a debugger), a backup, a shell with an open transaction",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write; look at the system's log",
}


def code(error: sqlite3.Error) -> int:
    """Without the details; errors of the module itself have none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    return code(error) in BUSY


def explained(path: Path, error: sqlite3.Error) -> HoldfastError:
    if code(error) in UNREADABLE:
        return Misconfigured(
            f"{path} is not a database that can be read ({error}). If it is only holdfast's, "
            "delete it while nobody uses it; locks then start afresh"
        )
    hint = HINTS.get(code(error), "an unexpected error of SQLite")
    return Unavailable(f"cannot use {path}: {hint} ({error})")


def stuck(path: Path, pid: int) -> Unavailable:
    who = f"process {pid}" if pid > 0 else "another process"
    return Unavailable(
        f"{who} has been inside {path} for too long; if it was stopped (Ctrl-Z, a debugger, "
        "SIGSTOP), continue or end it: nobody can use these locks before"
    )
