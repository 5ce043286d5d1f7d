"""A cron job that runs once for each night, whichever of the hosts comes first.

    HOLDFAST_URL=redis://... python nightly.py jobs.db 2026-11-16

Every host has the same crontab. The lock lets one at a time in; what makes it *once per night* is
the mark in the database, which is written in the transaction that writes the report. A host that
dies in the middle leaves neither, and the next in line does it; one that was paused, and wakes up
when another has done it, is refused by the gate (docs/how-to/cron-once-per-fleet.md).
"""

from __future__ import annotations

import socket
import sqlite3
import sys

import holdfast
from holdfast import fencing

JOB = "nightly-report"
TABLES = """
CREATE TABLE IF NOT EXISTS job (name TEXT PRIMARY KEY, night TEXT, fence BIGINT);
CREATE TABLE IF NOT EXISTS report (night TEXT, host TEXT);
"""


def run(locks: holdfast.Locks, database: sqlite3.Connection, night: str) -> bool:
    """Whether it was us who did it."""
    with locks.lock(JOB, timeout=600) as lease:
        (done,) = database.execute("SELECT night FROM job WHERE name = ?", (JOB,)).fetchone()
        if done is not None and done >= night:
            return False
        with database:  # one transaction: the mark and the report, or neither
            fencing.Table("job").update(database, lease, {"name": JOB}, {"night": night})
            write_report(database, night)
        return True


def write_report(database: sqlite3.Connection, night: str) -> None:
    database.execute("INSERT INTO report VALUES (?, ?)", (night, socket.gethostname()))


def main(path: str, night: str) -> None:
    database = sqlite3.connect(path, timeout=60)
    database.executescript(TABLES)
    with database:
        database.execute("INSERT OR IGNORE INTO job (name) VALUES (?)", (JOB,))
    with holdfast.connect(label="nightly") as locks:
        print("done" if run(locks, database, night) else "was done before")
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
