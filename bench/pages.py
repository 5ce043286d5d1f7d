"""What is not typed in the README and the pages of the backends: promises, and what was measured.

    python -m bench.pages --write     # put it in; `make docs-map` does it
    python -m bench.pages --check     # status 1 if it is not as it should be

Contract: promises come from `capabilities`, figures from bench/results (the last run of each
scenario, the last soak). What was not measured is left out, never guessed. No server is asked.
Partners: README.md and docs/backends/, between `<!-- NAME: ... -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast
from bench.report import faults_of
from holdfast import Capabilities, Mode

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs" / "backends").glob("*.md")))
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
    """A claim of the second table: ratios of one subject to its peers, in all placements."""

    what: str
    scenario: str
    contest: str  # what the names of its cases begin with: holders work, sleep, or do nothing
    subject: str
    figure: str
    peers: tuple[str, ...]


TIME, CHANGES = "p50", "changes per s"
ALONE = "acquire and release, nobody else there: time"
CROWD = "50 waiters in four processes: hand-overs per second"
FIFTY = "50 waiters, "
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
    Row(f"{CROWD}, Redis", "redis-handover-processes", FIFTY, "holdfast redis://", CHANGES, REDIS),
    Row(f"{CROWD}, ZooKeeper", "zookeeper-handover-processes", FIFTY, "holdfast zk://", CHANGES,
        ("kazoo", "tooz on ZooKeeper")),
    Row(f"{CROWD}, files", "handover-processes", FIFTY, "holdfast sqlite://", CHANGES,
        ("filelock", "portalocker", "flock")),
    Row("200 tasks, each with a lock of its own: locks per second, Redis", "redis-abreast",
        "200 tasks", "holdfast redis://", "ops per s", ("redis.asyncio",)),
    Row("memory of one of 1000 held locks (ours are renewed), Redis", "redis-held",
        "1000 / 10000 leases", "holdfast redis://, 1000 leases", "bytes per lease",
        tuple(f"{peer}, 1000 locks" for peer in REDIS)),
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
        found = ratios(row)
        if any(found.values()):
            better = next(ratio["better"] for ratios in found.values() for ratio in ratios)
            said = ", ".join(
                f"{_from_to([ratio['median'] for ratio in ratios])} x {peer.partition(',')[0]}"
                for peer, ratios in found.items()
                if ratios
            )
            proof = f"[{row.scenario}](bench/RESULTS.md#{row.scenario})"
            yield f"| {row.what} | {said} | {better} | {proof} |"


def ratios(row: Row) -> dict[str, list[dict[str, Any]]]:
    """Of each peer, in all placements and contests: no favourable one is chosen."""
    path = RESULTS / f"{row.scenario}.json"
    cases = json.loads(path.read_text())["cases"] if path.exists() else []
    return {
        peer: [
            ratio
            for case in cases
            if case["case"].startswith(row.contest)
            for ratio in case["ratios"]
            if (ratio["subject"], ratio["against"]) == (row.subject, peer)
            and ratio["figure"] == row.figure
            and ratio["median"]
        ]
        for peer in row.peers
    }


def _from_to(medians: list[float]) -> str:
    """The lowest and the highest; one figure if they are the same when rounded."""
    ends = dict.fromkeys((_number(min(medians)), _number(max(medians))))
    return " to ".join(ends)


def _number(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


SCENARIOS = ("uncontended", "abreast", "handover-threads", "handover-processes", "handover-tasks",
             "drain", "crowd", "waiting", "away", "crash", "held")  # fmt: skip
PLACEMENTS = ("same core", "split cores", "not pinned")


def goals(schemes: str) -> Iterator[str]:
    """What was aimed at over these stores, and what came of it. `schemes`: names as in bench/, each
    with the part of a URL that its rows begin with: `etcd=etcd etcd-cluster=etcd`; without a name
    those of the embedded stores."""
    rows: dict[tuple[str, str, str], dict[str, list[dict[str, Any]]]]
    rows = defaultdict(lambda: defaultdict(list))
    for scheme in schemes.split():
        store, _, begins = scheme.partition("=")
        for scenario in SCENARIOS:
            title = f"{store}-{scenario}" if store else scenario
            path = RESULTS / f"{title}.json"
            for case in json.loads(path.read_text())["cases"] if path.exists() else ():
                for goal in case["goals"]:
                    who = goal["subject"].partition(",")[0].removeprefix("holdfast ")
                    if who.startswith(begins) and goal["value"] is not None:
                        rows[title, goal["goal"], who][case["placement"]].append(goal)
    yield "| | goal | of | measured |"
    yield "| --- " * 4 + "|"
    shown = ""
    for (title, goal, who), found in rows.items():
        said = "; ".join(
            f"{'' if place == 'not pinned' else f'{place} '}{_range(found[place])}"
            for place in PLACEMENTS
            if place in found
        )
        link = f"[{title}](../../bench/RESULTS.md#{title})" if title != shown else ""
        yield f"| {link} | {goal} | `{who}` | {said} |"
        shown = title
    yield ""
    yield (
        "The least and the most, with few and many waiters or leases. Bold: missed in one "
        "of them at least; [why](../how-to/benchmark.md#goals-that-are-missed-and-why)."
    )


def _range(goals: list[dict[str, Any]]) -> str:
    values = sorted({_figure(goal["value"]) for goal in goals}, key=float)
    said = values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"
    return said if all(goal["met"] for goal in goals) else f"**{said}**"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{round(value, 2):g}"


def soak(backend: str) -> Iterator[str]:
    said = json.loads((RESULTS / f"soak-{backend}.json").read_text())
    faults = faults_of(said)
    most = sorted(faults, key=lambda name: -faults[name])
    bad = len(said["violations"])
    yield (
        f"[`make soak BACKEND={backend}`](../../bench/RESULTS.md#soaks) on {said['date'][:10]}: "
        f"{_many(said['holds'])} holds in {said['seconds'] / 60:.0f} minutes under "
        f"{_many(sum(faults.values()))} faults "
        f"({', '.join(f'{_many(faults[name])} {name}' for name in most)}); "
        f"{_many(said['refused stale writes'])} stale writes were refused, "
        f"{_many(said['losses seen'])} losses were told. Two who held at once, a token that did "
        f"not grow, a stale write that was accepted, or anything left behind: "
        f"{'none' if not bad else _many(bad)}."
    )


def _many(count: int) -> str:
    return f"{count:,}".replace(",", " ") if count >= 10_000 else str(count)


TABLES = {"backends": backends, "measured": measured}
ABOUT = {"goals": goals, "soak": soak}
MARK = re.compile(r"<!-- (\w+)( of ([^:]*))?: made by `make docs-map`, do not edit -->")


def filled(text: str) -> str:
    """The page with its tables as they should be."""
    done = ""
    while mark := MARK.search(text):
        name, about = mark[1], mark[3]
        _, end, after = text[mark.end() :].partition("<!-- end -->")
        if not end or name not in (TABLES if about is None else ABOUT):
            raise SystemExit(f"there is no end of, or nothing to put in, the place of {mark[0]!r}")
        rows = TABLES[name]() if about is None else ABOUT[name](about)
        done += text[: mark.end()] + "\n\n" + "\n".join(rows) + f"\n\n{end}"
        text = after
    return done + text


def main(words: list[str]) -> int:
    if words not in (["--write"], ["--check"]):
        sys.exit(__doc__)
    old: list[str] = []
    for page in PAGES:
        text = page.read_text()
        wanted = filled(text)
        if text != wanted and words == ["--write"]:
            page.write_text(wanted)
        elif text != wanted:
            old.append(str(page.relative_to(ROOT)))
    if words == ["--check"] and old:
        print(f"old tables in {', '.join(old)}: make docs-map")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
