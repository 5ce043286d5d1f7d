"""Holds under random kills, pauses, forks and clock steps of the client: zero violations?

    python -m tests.stress                          sqlite, in a folder of its own
    python -m tests.stress redis://localhost --holds 20000 --seconds 120 --seed 7
    python -m tests.stress redis --soak             a Redis of its own, which suffers too: make soak
    python -m tests.stress redlock                  five masters of its own, of which some suffer
    python -m tests.stress zookeeper                the same with ZooKeeper
    python -m tests.stress etcd --holds 50000       three members of its own, likewise
    python -m tests.stress postgres                 or mariadb

Exit status: 0 if nothing was found, 1 if something was, 2 if time ran out before all holds were
made and nothing was found until then. A seed chooses what is done, not when the kernel does it:
the same seed again is another try of the same kind.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.report import conditions

import holdfast
from tests.stress.actor import LONGEST
from tests.stress.check import Liveness, Violation, judge, liveness
from tests.stress.crew import Crew, Run
from tests.stress.etcd import EtcdStore
from tests.stress.history import History, gather
from tests.stress.leftovers import leftovers
from tests.stress.record import now, read
from tests.stress.redis import RedisStore
from tests.stress.redlock import RedlockStore
from tests.stress.resource import writes
from tests.stress.sql import MariaDBStore, PostgresStore
from tests.stress.store import Store
from tests.stress.zookeeper import ZooKeeperStore

LAST = 10.0
"""Of the seconds allowed, what finishing and checking may take."""
MOMENT = 2.0
"""Until the next one is served, when a holder is done or its death was seen: this machine may be
busy. Where only the end of a lease frees what the dead hold, that long after a lease."""
FREED_AFTER = {"process": 0.0, "session": 1.5 * LONGEST + 0.5}
"""Seconds after its death; a session lasts half as long again as the lease, and ends at a tick."""
SHOWN = 20
STORES: dict[str, Callable[[int, float], Store]] = {
    kind.name: kind
    for kind in (RedisStore, RedlockStore, ZooKeeperStore, EtcdStore, PostgresStore, MariaDBStore)
}


@dataclass
class Result:
    seed: int
    wanted: int
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter[str])
    live: Liveness = field(default_factory=Liveness)
    violations: list[Violation] = field(default_factory=list[Violation])
    store: dict[str, object] = field(default_factory=dict[str, object])
    overlaps: Counter[str] = field(default_factory=Counter[str])
    """Of unfenced holds, by the fault of the store that was the last one."""

    @property
    def status(self) -> int:
        if self.violations:
            return 1
        return 0 if self.counts["holds"] >= self.wanted else 2

    def document(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            **self.counts,
            **self.store,
            "unserved_p50_ms": round(self.live.quantile(0.5) * 1e3, 3),
            "unserved_p99_ms": round(self.live.quantile(0.99) * 1e3, 3),
            "unserved_max_ms": round(self.live.worst * 1e3, 3),
            "unserved_longest": self.live.longest,
            "rate_below": 3 / max(1, self.counts["holds"]),
            "overlaps": dict(self.overlaps),
            "violations": [violation._asdict() for violation in self.violations],
        }

    def text(self) -> str:
        def ms(share: float) -> str:
            return f"{self.live.quantile(share) * 1e3:.2f} ms"

        done = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        lines = [
            f"{done}; {self.seconds:.0f} s, seed {self.seed}",
            f"nobody held although somebody waited (no worker stopped): median {ms(0.5)}, "
            f"99 % {ms(0.99)}, longest {self.live.worst * 1e3:.2f} ms; {len(self.live.gaps)} "
            "hand-overs",
        ]
        lines += [f"{count} x {what}" for what, count in self.overlaps.items()]
        if self.status == 2:
            lines.append(f"time ran out before {self.wanted} holds")
        kinds = Counter(violation.kind for violation in self.violations)
        lines += [f"{kind}: {count}" for kind, count in kinds.items()]
        lines += [f"  {v.kind}: {v.text}" for v in self.violations[:SHOWN]]
        holds = self.counts["holds"]
        if not self.violations and holds:
            lines.append(
                f"0 violations in {holds} holds: at most {3 / holds:.1e} of all holds (95 %)"
            )
        elif self.violations:
            lines.append(f"{len(self.violations)} VIOLATIONS, seed {self.seed}")
        return "\n".join(lines)


class Progress:
    """A line that is written over, at a terminal; else one every ten seconds."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._began = now()
        self._tty = sys.stderr.isatty()
        self._next = now()

    def show(self, crew: Crew, begun: int) -> None:
        moment = now()
        if moment < self._next:
            return
        self._next = moment + (0.5 if self._tty else 10.0)
        faults = ", ".join(f"{count} {what}" for what, count in sorted(crew.did.items()))
        rate = begun / max(0.1, moment - self._began)
        line = f"{begun}/{self._wanted} holds, {rate:.0f}/s; {faults}"
        print(f"\r\033[K{line}" if self._tty else line, end="" if self._tty else "\n",
              file=sys.stderr, flush=True)  # fmt: skip

    def end(self) -> None:
        if self._tty:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def stress(
    run: Run,
    alone: bool,
    wanted: int,
    seconds: float,
    store: Store | None = None,
    soak: bool = False,
) -> Result:
    """`soak`: for all the time, though all holds were made."""
    result = Result(run.seed, wanted)
    began = now()
    deadline = began + max(seconds - LAST, seconds / 2)
    crew = Crew(run, store.pids if store is not None else set)
    progress = Progress(wanted)
    try:
        crew.start()
        count_at, begun = 0.0, 0
        while (begun < wanted or soak or not crew.all_struck()) and now() < deadline:
            crew.advance()
            if store is not None:
                store.advance()
            if now() >= count_at:
                begun, count_at = crew.begun(), now() + 0.25
                progress.show(crew, begun)
        if store is not None:
            store.heal()
            crew.stops += store.stops
            result.counts.update(store.did)
        crew.finish()
    finally:
        progress.end()
        crew.close()
    left = leftovers(run.url, run.prefix, alone, LONGEST + MOMENT)
    if store is not None:
        left += store.leftovers(run.prefix, LONGEST + MOMENT)
        result.store = store.figures()
    with holdfast.connect(run.url) as locks:
        freed = locks.capabilities.crash_release
    judged(result, crew, MOMENT + FREED_AFTER.get(freed, LONGEST))
    if store is not None:
        result.violations, result.overlaps = store.excuse(result.violations, LONGEST)
    result.violations += [Violation("left over", text) for text in left]
    result.seconds = now() - began
    return result


def judged(result: Result, crew: Crew, limit: float) -> None:
    folder = crew.run.folder
    faults = {"killed": crew.killed, "stops": crew.stops}  # for who looks at what was kept
    (folder / "faults.json").write_text(json.dumps(faults))
    history = History()
    for path in sorted(folder.glob("*.log")):
        kind, _, number = path.stem.partition("-")
        killed = crew.killed.get(int(number)) if kind == "worker" else None
        gather(history, path.stem, read(path), killed)
    accepted = list(writes(folder))
    result.live = liveness(history.holds, history.waits, crew.stops, limit)
    result.violations += judge(history.holds, accepted)
    result.violations += result.live.violations
    result.violations += [Violation("unexpected", text) for text in crew.wrong]
    result.counts.update(
        {
            "holds": len(history.holds),
            "kills": crew.did["kills"],
            "pauses": crew.did["pauses"],
            "forks": len(list(folder.glob("child-*.log"))),
            "clock steps": crew.did["clock steps"],
            "losses seen": sum(hold.lost for hold in history.holds),
            "writes": len(accepted),
            "refused stale writes": sum(hold.refused is not None for hold in history.holds),
            "gave up": history.gave_up,
            "unavailable": history.unanswered,
        }
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "url", nargs="?",
        help=f"the store (sqlite, the default: in a fresh folder); {', '.join(STORES)}: servers of "
        "this run's own, which suffer as well",
    )  # fmt: skip
    parser.add_argument("--holds", type=int, help="how many (100 000; any, with --soak)")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--actors", type=int, default=4, help="threads or tasks in each (4)")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=600.0, help="for all of it (600)")
    parser.add_argument("--calm", type=float, default=0.35, help="seconds between faults (0.35)")
    parser.add_argument("--keep", type=Path, help="a new folder for the records, which stays")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    parser.add_argument("--record", type=Path, help="keep them there as soak-BACKEND.json")
    parser.add_argument("--soak", action="store_true", help="use all the time, whatever was made")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through `finally`
    seed = random.randrange(1 << 32) if asked.seed is None else asked.seed
    wanted = (1 if asked.soak else 100_000) if asked.holds is None else asked.holds
    embedded = asked.url in (None, "sqlite")
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="holdfast-stress-"))
    folder.mkdir(exist_ok=True)
    store: Store | None = None
    try:
        url = f"sqlite://{folder.resolve() / 'locks.db'}" if embedded else asked.url
        if url in STORES:
            store = STORES[url](seed, 4 * asked.calm)
            url = store.url
        with holdfast.connect(url) as locks:
            if not locks.capabilities.cross_process:
                parser.error(f"{url} is of one process alone")
        prefix = f"stress-{random.randrange(1 << 32):08x}:"
        run = Run(url, folder, prefix, seed, asked.processes, asked.actors, asked.calm)
        alone = embedded or store is not None
        result = stress(run, alone, wanted, asked.seconds, store, asked.soak)
    finally:
        if store is not None:
            store.close()
        if not asked.keep:
            shutil.rmtree(folder)
    said = {"backend": url.partition(":")[0] if store is None else store.name}
    command = shlex.join(["python", "-m", "tests.stress", *sys.argv[1:]])
    document = json.dumps({**said, **conditions(command), **result.document()}, indent=2)
    if asked.out:
        asked.out.write_text(document + "\n")
    if asked.record:
        (asked.record / f"soak-{said['backend']}.json").write_text(document + "\n")
    print(document if asked.json else result.text())
    return result.status


if __name__ == "__main__":
    sys.exit(main())
