"""The tables of the README and of the backends' pages say what is promised and was measured."""

from __future__ import annotations

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


def test_a_page_of_a_backend_has_what_was_measured_last() -> None:
    page = (ROOT / "docs" / "backends" / "zookeeper.md").read_text()
    assert pages.filled(page.replace(" x create and delete |", " x nothing |")) == page
    assert pages.filled(re.sub(r" holds in \d+ minutes", " holds in a minute", page)) == page
