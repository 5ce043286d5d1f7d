"""A holder that is stopped between its decision and its write, and wakes up too late.

    python -m tests.faults.late LOCKS_URL NAME KIND PLACE

takes the lock NAME, says so, waits for a line, and then writes "late" to the gate KIND at PLACE as
if nothing had happened; it prints what became of it. `stopped_holder` is the other end: it stops
the process (SIGSTOP), so that neither its clock nor its keeper can warn it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import holdfast
from holdfast import fencing

PATIENCE = 100.0

Write = Callable[[Any, str], object]


def sql_connection(place: str) -> Any:
    """A new connection, autocommitting: `sqlite:PATH`, `mysql:PORT` or `postgresql:PORT`."""
    kind, _, where = place.partition(":")
    if kind == "sqlite":
        import sqlite3

        return sqlite3.connect(
            where, isolation_level=None, timeout=PATIENCE, check_same_thread=False
        )
    if kind == "mysql":
        import pymysql

        return pymysql.connect(
            host="127.0.0.1", port=int(where), user="root", database="holdfast", autocommit=True
        )
    import psycopg

    return psycopg.connect(
        f"host=127.0.0.1 port={where} user=postgres dbname=postgres", autocommit=True
    )


def by_table(place: str) -> Write:
    where, _, table = place.partition("|")
    rows = fencing.Table(table)

    def write(lease: Any, value: str) -> None:
        with contextlib.closing(sql_connection(where)) as connection:
            rows.update(connection, lease, {"id": 7}, {"value": value})

    return write


def by_trigger(place: str) -> Write:
    """As who knows nothing of gates: the token is set, and nothing compared."""
    where, _, table = place.partition("|")
    mark = "?" if where.startswith("sqlite") else "%s"

    def write(lease: Any, value: str) -> None:
        with fencing.refusals(lease), contextlib.closing(sql_connection(where)) as connection:
            text = f"UPDATE {table} SET value = {mark}, fence = {mark} WHERE id = 7"
            connection.cursor().execute(
                text, (value, lease if isinstance(lease, int) else lease.fence)
            )

    return write


def by_redis(place: str) -> Write:
    import redis

    where, _, key = place.partition("|")

    def write(lease: Any, value: str) -> None:
        with redis.Redis.from_url(where) as client:
            fencing.RedisKey(client, key).set(lease, value)

    return write


def by_etcd(place: str) -> Write:
    return lambda lease, value: lease.transact(put={place: value})


WRITERS: dict[str, Callable[[str], Write]] = {
    "table": by_table,
    "trigger": by_trigger,
    "redis": by_redis,
    "etcd": by_etcd,
    "file": lambda place: fencing.File(place).write,
}


@contextlib.contextmanager
def stopped_holder(url: str, name: str, kind: str, place: str) -> Iterator[Callable[[], str]]:
    """A process that holds the lock, stopped. The function lets it go on, and says what it says."""
    command = [sys.executable, "-m", "tests.faults.late", url, name, kind, place]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said == "held\n", process.communicate()
        process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.stdin.write("go\n")
        process.stdin.flush()

        def wake() -> str:
            process.send_signal(signal.SIGCONT)
            said, logged = process.communicate(timeout=PATIENCE)
            return said.strip() or logged

        yield wake
    finally:
        process.kill()
        process.communicate()


def main(url: str, name: str, kind: str, place: str) -> None:
    write = WRITERS[kind](place)
    with holdfast.connect(url) as locks:
        lease = locks.lock(name, ttl=1.0, renew=False).acquire()
        assert lease is not None
        print("held", flush=True)
        sys.stdin.readline()
        try:
            write(lease, "late")
        except holdfast.StaleFence as refused:
            print("refused" if refused.token == lease.fence else refused)
        else:
            print("accepted")


if __name__ == "__main__":
    main(*sys.argv[1:])
