"""python -m bench [SCENARIO ...] [--store NAME ...] [--target URL ...] [--peer NAME ...] [--quick]
                [--pairs N] [--out DIRECTORY] [--import MODULE ...] [--list] [--page]

A full run prints a table of ratios and writes results/*.json, results/*.svg and RESULTS.md into
DIRECTORY (default: bench/). A quick run shows that every scenario works; its figures mean nothing,
and it writes only when a directory is given. A missed goal is printed, and is not an error; a
scenario that fails is, and the others still run.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import report
from bench.entrants import fields
from bench.peers import PEERS
from bench.scenarios import SCENARIOS
from bench.servers import Servers
from bench.session import Plan
from bench.stores import STORES

HERE = Path(__file__).resolve().parent


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("scenario", nargs="*", help="default: all")
    add(
        "--target",
        action="append",
        default=[],
        metavar="URL",
        help="measure holdfast over this; {folder} is a temporary folder, {redis} the host:port of "
        "a redis-server of this run (default: "
        f"{', '.join(url for store in STORES.values() for url in store.targets)}, if there are)",
    )
    add("--store", action="append", default=[], choices=list(STORES), help="default: all")
    add("--peer", action="append", default=[], choices=[*PEERS, "none"], help="default: all")
    add("--quick", action="store_true", help="a smoke run, in seconds")
    add("--pairs", type=int, help="pairs of runs for each ratio (5, Redis 7; quick: 2)")
    add("--out", type=Path, help="where to write (default: bench/)")
    add(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import it first: it makes the target's scheme known",
    )
    add("--list", action="store_true", help="the scenarios")
    add(
        "--page",
        action="store_true",
        help="measure nothing: RESULTS.md and its plots anew, of what is stored",
    )
    said = parser.parse_args(arguments)
    unknown = [name for name in said.scenario if name not in SCENARIOS]
    if said.list or unknown:
        print("\n".join([f"no scenario {name!r}; there are:" for name in unknown] + [*SCENARIOS]))
        return 2 if unknown else 0
    if said.page:
        _write_page(said.out or HERE)
        return 0
    if said.pairs is not None and said.pairs < 1:
        parser.error("--pairs: at least one")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, Servers() as servers:
        chosen = fields(
            Path(folder),
            servers,
            stores=said.store,
            urls=said.target,
            peers=said.peer,
            imports=said.imports,
        )
        out: Path | None = said.out or (None if said.quick else HERE)
        began = time.monotonic()
        everything: list[dict[str, Any]] = []
        failed: list[str] = []
        for field in chosen:
            for name, why in field.left_out.items():
                print(f"{name} is left out: {why}", flush=True)
            pairs = said.pairs or (2 if said.quick else field.store.pairs)
            plan = Plan(field, pairs, said.quick)
            for name in said.scenario or SCENARIOS:
                if name in field.store.without:
                    print(f"{field.store.title(name)}: says nothing, and is not measured")
                    continue
                try:
                    everything += _measure(plan, name, out, shlex.join(arguments))
                except RuntimeError as error:  # a worker's; the others' figures are worth having
                    title = field.store.title(name)
                    print(f"{title} failed: {error}", file=sys.stderr, flush=True)
                    failed.append(title)
        print(report.summary(everything))
        print(f"{time.monotonic() - began:.0f} s")
        if out is not None:
            _write_page(out)
        return 1 if failed else 0


def _write_page(out: Path) -> None:
    titles = [
        store.title(name)
        for store in STORES.values()
        for name in SCENARIOS
        if name not in store.without  # what once was measured, and is no more, is no result
    ]
    soaks, kills = (report.load_last(out, kind) for kind in ("soak", "kills"))
    runs = report.load(out, titles)
    report.draw(out, runs)
    page = report.page(runs, soaks, kills)
    (out / "RESULTS.md").write_text(page)


def _measure(plan: Plan, name: str, out: Path | None, arguments: str) -> list[dict[str, Any]]:
    """One scenario over one store."""
    title, servers = plan.field.store.title(name), plan.field.server_versions()
    began = time.monotonic()
    cases: list[dict[str, Any]] = []
    for case in SCENARIOS[name](plan):
        versions = {**case.versions, **servers}
        cases.append(report.record(replace(case, scenario=title, versions=versions)))
        print("\n".join(report.table(cases[-1])), flush=True)
    if not cases:
        print(f"{title}: nobody that it applies to")
    elif out is not None:
        command = f"python -m bench {arguments}".rstrip()
        report.write(out, title, command, cases, time.monotonic() - began)
    return cases


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
