"""The README's tables say what the backends promise and what was measured."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.backends import _registry

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    path = ROOT / "scripts" / "readme_tables.py"
    spec = importlib.util.spec_from_file_location("readme_tables", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_up_to_date() -> None:
    ran = subprocess.run(
        [sys.executable, "scripts/readme_tables.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_backend_is_in_the_table(tables: ModuleType) -> None:
    shown = {url.partition(":")[0] for url, _ in tables.BACKENDS.values()}
    targets = {_registry[scheme].target for scheme in shown}
    ours = {e.target for e in _registry.values() if e.target.startswith("holdfast.")}
    assert targets == ours


def test_an_old_table_is_noticed(tables: ModuleType) -> None:
    assert tables.filled(README) == README
    assert tables.filled(README.replace("first come, first served", "no order")) == README
    ratio = re.search(r"[\d.]+ x redis-py", README)
    assert ratio is not None
    assert tables.filled(README.replace(ratio[0], "0.01 x redis-py")) == README
    with pytest.raises(SystemExit):
        tables.filled("no place")


def test_every_row_was_measured(tables: ModuleType) -> None:
    for row in tables.ROWS:
        assert list(tables.ratios(row)), f"{row.what}: there is no such result"
