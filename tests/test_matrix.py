"""docs/reference/matrix.md says what the clients declare, and what a run has shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from scripts import matrix

from holdfast import aio, sync
from holdfast.core import stores
from holdfast.core.backend import Backend, Downgrading, Transactional
from holdfast.core.presence import Detectable
from holdfast.testing.conformance import ConformanceSuite
from holdfast.types import Mode

pytestmark = pytest.mark.req("B5")

SUITE = "tests.conformance.test_memory.TestMemory"


def report(path: Path, *cases: tuple[str, str], suite: str = SUITE) -> Path:
    """A report as pytest writes it: test -> outcome."""
    inner = {"passed": "", "failed": "<failure/>", "skipped": '<skipped message="why not"/>'}
    body = "".join(
        f'<testcase classname="{suite}" name="{name}">{inner[outcome]}</testcase>'
        for name, outcome in cases
    )
    path.write_text(
        f'<testsuites><testsuite timestamp="2026-01-02T03:04">{body}</testsuite></testsuites>'
    )
    return path


def cell(text: str, url: str, primitive: str) -> str:
    return matrix.read_page(text).marks[url, primitive]


def test_a_mark_needs_a_pass_on_both_ports_and_no_failure(tmp_path: Path) -> None:
    both = [(f"test_readers_share[memory-{port}]", "passed") for port in ("sync", "aio")]
    run = matrix.read_reports([report(tmp_path / "good", *both)])
    assert run.marks["memory://", "rwlock"] == matrix.PASSED
    assert run.marks["memory://", "lock"] == matrix.NOT_RUN  # the test does not use it
    assert "2 tests of the suite passed, 0 failed" in run.told
    assert "2026-01-02" in run.told
    one = matrix.read_reports([report(tmp_path / "one", both[0])])
    assert one.marks["memory://", "rwlock"] == matrix.NOT_RUN
    bad = ("test_a_writer_is_alone[memory-sync]", "failed")
    failed = matrix.read_reports([report(tmp_path / "bad", *both, bad)])
    assert failed.marks["memory://", "rwlock"] == matrix.FAILED
    skipped = [(name, "skipped") for name, _ in both]
    none = matrix.read_reports([report(tmp_path / "none", *skipped)])
    assert none.marks["memory://", "rwlock"] == matrix.NOT_RUN
    assert "2: why not" in none.counts["memory://"]


def test_a_test_that_was_run_again_counts_as_it_ended_and_that_is_said(tmp_path: Path) -> None:
    name = "test_readers_share[memory-sync]"
    bad, good = ((report(tmp_path / out, (name, out))) for out in ("failed", "passed"))
    run = matrix.read_reports([bad, good])
    assert "1 tests of the suite passed, 0 failed" in run.told
    assert f"1 of those that passed had failed when they were run before: `{name}`" in run.told
    assert "0 tests of the suite passed, 1 failed" in matrix.read_reports([good, bad]).told
    assert "before" not in matrix.read_reports([good, bad]).told


def test_what_is_not_of_the_suite_does_not_count(tmp_path: Path) -> None:
    path = report(tmp_path / "x", ("test_other[memory-sync]", "failed"), ("test_y", "failed"))
    assert matrix.read_reports([path]).told == "No run yet."
    path = report(tmp_path / "x", ("test_readers_share[memory-sync]", "passed"), suite="tests.x")
    assert matrix.read_reports([path]).told == "No run yet."


def test_parameters_behind_the_port_are_understood(tmp_path: Path) -> None:
    path = report(tmp_path / "x", ("test_readers_share[memory-aio-False-3]", "passed"))
    assert "1 tests" in matrix.read_reports([path]).told


def test_the_page_says_who_refuses_and_why() -> None:
    text = matrix.render(matrix.Run())
    number = cell(text, "redlock://one,two,three", "rwlock")
    assert re.search(rf"^{number}\. this backend has no shared \(read\) locks.*quorum", text, re.M)
    assert cell(text, "memory://", "rwlock") == matrix.NOT_RUN
    assert matrix.refusal("redis://host", "semaphore") is None
    assert all(name in text for name in ("**exclusion**", "**fencing**", "`rediss://host`"))


def test_a_page_is_rendered_anew_from_itself(tmp_path: Path) -> None:
    both = [(f"test_readers_share[memory-{port}]", "passed") for port in ("sync", "aio")]
    text = matrix.render(matrix.read_reports([report(tmp_path / "x", *both)]))
    assert matrix.render(matrix.read_page(text)) == text
    assert cell(text, "memory://", "rwlock") == matrix.PASSED
    lies = text.replace("| 1 | 2 |", f"| {matrix.PASSED} | 2 |", 1)
    assert lies != text
    assert matrix.render(matrix.read_page(lies)) != lies


def test_a_new_tool_is_a_new_column(monkeypatch: pytest.MonkeyPatch) -> None:
    def carousel(self: Any, name: str, count: int) -> object:
        return object()

    monkeypatch.setattr(aio.Locks, "carousel", carousel, raising=False)
    assert "carousel" in matrix.primitives.__wrapped__()
    assert matrix.primitives.__wrapped__()[:3] == ["lock", "rwlock", "semaphore"]
    assert not {"close", "inspect", "locked"} & set(matrix.primitives.__wrapped__())
    assert list(matrix.arguments(carousel.__get__(object()))) == ["x", 2]


ABLE: dict[str, Callable[[Backend], bool]] = {
    "ALL_KINDS": lambda store: store.capabilities.modes == set(Mode),
    "CELLS": lambda store: store.capabilities.cells,
    "DOWNGRADING": lambda store: (
        isinstance(store, Downgrading) and Mode.SHARED in store.capabilities.modes
    ),
    "GUARDS": lambda store: isinstance(store, Transactional),
    "WATCHED": lambda store: isinstance(store, Detectable),
}
"""What of `core/stores.py` means what of a backend."""


def is_named(url: str, text: str) -> bool:
    scheme = re.sub("^redis.*", "redis", urlsplit(url).scheme)  # one store, however it is reached
    if f"{scheme}://" not in text:
        return False
    if scheme not in ("mysql", "postgresql"):
        return True
    strategy = parse_qs(urlsplit(url).query).get("strategy", ["row"])[0]
    return re.search(rf"strategy=(\w+ or )?{strategy}\b", text) is not None


def of_its_own_format() -> list[str]:
    return sorted({url for _, url in matrix.BACKENDS.values() if "dialect=" not in url})


@pytest.mark.parametrize("ability", sorted(stores.__all__))
def test_messages_name_the_stores_that_can(ability: str) -> None:
    text = getattr(stores, ability)
    able = {url for url in of_its_own_format() if ABLE[ability](sync.connect(url)._current.store)}
    assert able == {url for url in of_its_own_format() if is_named(url, text)}
    assert 0 < len(able) < len(of_its_own_format())


def test_every_suite_has_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"memory://", "sqlite://", "etcd://host"} <= set(matrix.whole_rows())
    assert matrix.themes(ConformanceSuite)
    monkeypatch.delitem(matrix.BACKENDS, "memory")
    with pytest.raises(SystemExit, match="memory"):
        matrix.suites.__wrapped__()


@pytest.mark.parametrize("word", ["failed", "not run", ""])
def test_a_page_with_a_failure_or_a_gap_is_not_good_enough(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "matrix.md"
    monkeypatch.setattr(matrix, "PAGE", page)
    marks = {(url, name): "✓" for url in matrix.whole_rows() for name in matrix.primitives()}
    rows = re.findall(r"^\| `([^`]+)` \|", matrix.render(matrix.Run()), re.M)
    counts = dict.fromkeys(rows, "| 5 |  |")
    if word:
        marks["memory://", "lock"] = word
    page.write_text(matrix.render(matrix.Run("From the run of today.", marks, counts)))
    assert matrix.main(["--check"]) == (1 if word else 0)
    assert word in capsys.readouterr().out
    page.unlink()
    assert matrix.main(["--check"]) == 1


def test_a_missing_report_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="make test"):
        matrix.main(["--write", str(tmp_path / "nothing")])
    with pytest.raises(SystemExit):
        matrix.main([])
    matrix.suites()  # found once, where they are
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "matrix.md")
    assert matrix.main(["--write", str(report(tmp_path / "report"))]) == 0
    assert (tmp_path / "matrix.md").exists()
