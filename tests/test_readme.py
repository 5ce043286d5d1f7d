"""The tables of the README and of the backends' pages say what is promised and was measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import pages
from holdfast.backends import _registry

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_the_tables_are_up_to_date() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "bench.pages", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_backend_is_in_the_table() -> None:
    shown = {url.partition(":")[0] for url, _ in pages.BACKENDS.values()}
    targets = {_registry[scheme].target for scheme in shown}
    ours = {e.target for e in _registry.values() if e.target.startswith("holdfast.")}
    assert targets == ours


def test_an_old_table_is_noticed() -> None:
    assert pages.filled(README) == README
    assert pages.filled(README.replace("first come, first served", "no order")) == README
    ratio = re.search(r"[\d.]+ x redis-py", README)
    assert ratio is not None
    assert pages.filled(README.replace(ratio[0], "0.01 x redis-py")) == README
    with pytest.raises(SystemExit):
        pages.filled("<!-- soak of redis: made by `make docs-map`, do not edit --> and no end")


@pytest.mark.parametrize("row", pages.ROWS, ids=lambda row: row.what)
def test_a_figure_goes_from_the_least_to_the_most_favourable(row: pages.Row) -> None:
    """Over every placement and contest of the row, as they are stored: none is left out."""
    cases = json.loads((pages.RESULTS / f"{row.scenario}.json").read_text())["cases"]
    (line,) = [line for line in README.splitlines() if line.startswith(f"| {row.what} |")]
    said = line.split(" | ")[1].split(", ")
    assert len(said) == len(row.peers)
    for peer, words in zip(row.peers, said, strict=True):
        figures, _, name = words.partition(" x ")
        assert name == peer.partition(",")[0]
        medians = [
            ratio["median"]
            for case in cases
            if case["case"].startswith(row.contest)
            for ratio in case["ratios"]
            if (ratio["subject"], ratio["against"], ratio["figure"])
            == (row.subject, peer, row.figure)
        ]
        low, high = min(medians), max(medians)
        ends = [float(figure) for figure in figures.split(" to ")]
        assert ends[0] == pytest.approx(low, rel=0.05)
        assert ends[-1] == pytest.approx(high, rel=0.05)


def test_all_contests_of_a_row_count() -> None:
    """Holders that work, sleep and do nothing, on one core and on two."""
    files = next(row for row in pages.ROWS if row.scenario == "handover-processes")
    assert {peer: len(found) for peer, found in pages.ratios(files).items()} == {
        "filelock": 6, "portalocker": 6, "flock": 6
    }  # fmt: skip


def test_a_page_of_a_backend_has_what_was_measured_last() -> None:
    page = (ROOT / "docs" / "backends" / "zookeeper.md").read_text()
    assert pages.filled(page.replace(" x create and delete |", " x nothing |")) == page
    assert pages.filled(re.sub(r" holds in \d+ minutes", " holds in a minute", page)) == page
