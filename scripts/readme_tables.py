"""The tables of the README that are not typed: what each backend promises, and what was measured.

    python scripts/readme_tables.py --write     # put them in; `make docs-map` does it
    python scripts/readme_tables.py --check     # status 1 if they are not as they should be

Contract: promises come from `capabilities`, figures from bench/results (the last run of each
scenario). A ratio that was not measured is left out, never guessed. No server is asked.
Partner: README.md, between `<!-- NAME: ... -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Capabilities, Mode

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "bench" / "results"

BACKENDS = {
    "sqlite": ("sqlite:///path", "the processes of one host; the default"),
    "redis": ("redis://host", "hosts; also Sentinel, Cluster, TLS"),
    "redis-dialects": (
        "redis://host?dialect=redisson",
        "hosts, with Redisson's (or redis-py's) locks",
    ),
    "redlock": ("redlock://a,b,c", "hosts, over independent Redis masters"),
    "etcd": ("etcd://host", "hosts; no client library"),
    "zookeeper": ("zk://host", "hosts; in one line with kazoo's locks"),
    "postgresql": ("postgresql://host/db", "hosts, in a database you have"),
    "postgresql#": ("postgresql://host/db?strategy=advisory", "the same, by advisory locks"),
    "mysql": ("mysql://host/db", "hosts, in MySQL or MariaDB"),
    "mysql#": ("mysql://host/db?strategy=advisory", "the same, by `GET_LOCK`"),
    "memory": ("memory://", "the threads and tasks of one process; tests"),
}
"""Page in docs/backends (and more, to tell strategies apart) -> a URL, and what it is for."""

KINDS = {Mode.EXCLUSIVE: "lock", Mode.SHARED: "read-write", Mode.PERMITS: "semaphore"}
ORDER = {"fifo": "first come, first served", "best effort": "roughly", "none": "no"}
CRASH = {
    "ttl": "after its ttl",
    "process": "at once",
    "session": "when its session ends",
    "connection": "when its connection ends",
}


@dataclass(frozen=True)
class Row:
    """A claim of the second table: ratios of one subject to its peers."""

    what: str
    scenario: str
    case: str
    subject: str
    figure: str
    peers: tuple[str, ...]
    placement: str = "same core"


TIME, CHANGES = "p50", "changes per s"
ALONE = "acquire and release, nobody else there: time"
CROWD = "50 waiters in four processes: hand-overs per second"
WORKS = "50 waiters, holder works"
REDIS = ("redis-py", "python-redis-lock", "pottery", "redlock-ng", "sherlock", "tooz")
ROWS = (
    Row(f"{ALONE}, Redis", "redis-uncontended", "acquire, release", "holdfast redis://", TIME,
        REDIS),
    Row(f"{ALONE}, etcd", "etcd-uncontended", "acquire, release", "holdfast etcd://", TIME,
        ("etcd3", "etcd3gw", "tooz on etcd")),
    Row(f"{ALONE}, ZooKeeper", "zookeeper-uncontended", "acquire, release", "holdfast zk://", TIME,
        ("kazoo", "tooz on ZooKeeper")),
    Row(f"{ALONE}, PostgreSQL, advisory locks", "postgresql-advisory-uncontended",
        "acquire, release", "holdfast postgresql://", TIME,
        ("sqlalchemy-dlock", "pals", "tooz on PostgreSQL")),
    Row(f"{ALONE}, MySQL, GET_LOCK", "mysql-advisory-uncontended", "acquire, release",
        "holdfast mysql://", TIME, ("sqlalchemy-dlock on MySQL", "tooz on MySQL")),
    Row(f"{ALONE}, files", "uncontended", "acquire, release", "holdfast sqlite://", TIME,
        ("filelock", "portalocker", "flock")),
    Row(f"{CROWD}, Redis", "redis-handover-processes", WORKS, "holdfast redis://", CHANGES, REDIS),
    Row(f"{CROWD}, ZooKeeper", "zookeeper-handover-processes", WORKS, "holdfast zk://", CHANGES,
        ("kazoo", "tooz on ZooKeeper")),
    Row(f"{CROWD}, files", "handover-processes", WORKS, "holdfast sqlite://", CHANGES,
        ("filelock", "portalocker", "flock")),
    Row("200 tasks, each with a lock of its own: locks per second, Redis", "redis-abreast",
        "200 tasks", "holdfast redis://", "ops per s", ("redis.asyncio",)),
    Row("memory of one of 1000 held locks (ours are renewed), Redis", "redis-held",
        "1000 / 10000 leases", "holdfast redis://, 1000 leases", "bytes per lease",
        tuple(f"{peer}, 1000 locks" for peer in REDIS), "not pinned"),
)  # fmt: skip


def backends() -> Iterator[str]:
    heads = [
        "store",
        "between",
        "kinds",
        "in order",
        "tokens",
        "free after a crash",
        "a failover loses",
    ]
    yield f"| {' | '.join(heads)} |"
    yield "| --- " * 7 + "|"
    for page, (url, purpose) in BACKENDS.items():
        with holdfast.connect(url) as locks:  # asks nobody
            can = locks.capabilities
        file = page.partition("#")[0]
        cells = [f"[`{url}`](docs/backends/{file}.md)", purpose, *promises(can)]
        yield f"| {' | '.join(cells)} |"


def promises(can: Capabilities) -> list[str]:
    kinds = ", ".join(word for mode, word in KINDS.items() if mode in can.modes)
    tokens = ", ".join(word for mode, word in KINDS.items() if mode in can.fencing)
    loses = re.split(r"[;:.]", can.failover)[0]
    return [kinds, ORDER[can.fairness], tokens or "none", CRASH[can.crash_release], loses]


def measured() -> Iterator[str]:
    yield "| what | holdfast has | better is | proof |"
    yield "| --- " * 4 + "|"
    for row in ROWS:
        found = list(ratios(row))
        if found:
            better = found[0]["better"]
            said = ", ".join(
                f"{_number(ratio['median'])} x {ratio['against'].partition(',')[0]}"
                for ratio in found
            )
            proof = f"[{row.scenario}](bench/RESULTS.md#{row.scenario})"
            yield f"| {row.what} | {said} | {better} | {proof} |"


def ratios(row: Row) -> Iterator[dict[str, Any]]:
    path = RESULTS / f"{row.scenario}.json"
    if not path.exists():
        return
    for case in json.loads(path.read_text())["cases"]:
        if case["case"] != row.case or case["placement"] != row.placement:
            continue
        for peer in row.peers:
            yield from (
                ratio
                for ratio in case["ratios"]
                if (ratio["subject"], ratio["against"]) == (row.subject, peer)
                and ratio["figure"] == row.figure
                and ratio["median"]
            )


def _number(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


TABLES = {"backends": backends, "measured": measured}


def filled(text: str) -> str:
    """The README with its tables as they should be."""
    for name, table in TABLES.items():
        mark = f"<!-- {name}: made by `make docs-map`, do not edit -->"
        before, found, rest = text.partition(mark)
        _, end, after = rest.partition("<!-- end -->")
        if not (found and end):
            raise SystemExit(f"README.md has no place for the table {name!r}")
        text = f"{before}{mark}\n\n" + "\n".join(table()) + f"\n\n{end}{after}"
    return text


def main(words: list[str]) -> int:
    if words not in (["--write"], ["--check"]):
        sys.exit(__doc__)
    text = README.read_text()
    wanted = filled(text)
    if words == ["--write"]:
        README.write_text(wanted)
    elif text != wanted:
        print("README.md has old tables: make docs-map")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
