"""`ls`, `show`, `watch`, `release`: what people see, and what programs read.

Over 400 lines: a list of cases, each read by itself, that share a store and a way to ask it.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

import holdfast as library
from holdfast.cli import main
from holdfast.cli.screen import PALETTE, Column, clean, cut, open_screen, table
from holdfast.cli.tables import duration
from tests.cli.harness import CLI, Terminal, environment, holdfast, line, started, until
from tests.cli.store import Store
from tests.cli.test_run import held

URL = "memory://tables"
NASTY = "a\x1b[31mred\x07\r\n\t\u202etxt\u200b\x9b1m"


@pytest.fixture
def mine() -> Iterator[library.Locks]:
    """A client of the store that `main` reaches in this process."""
    with library.connect(URL, label="tester") as locks:
        yield locks


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, "--url", URL]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


# -- JSON ------------------------------------------------------------------------------------------

LOCK = {"name": str, "fence": (int, type(None)), "holders": list, "waiters": list}
CLAIM = {
    "id": str, "mode": str, "since": float, "remaining": (float, type(None)), "permits": int,
    "fence": (int, type(None)), "info": dict,
}  # fmt: skip


def check(document: Any, schema: dict[str, Any]) -> None:
    assert list(document) == list(schema)
    for key, kind in schema.items():
        assert isinstance(document[key], kind), key


def check_lock(document: Any) -> None:
    check(document, LOCK)
    for claim in (*document["holders"], *document["waiters"]):
        check(claim, CLAIM)


@pytest.mark.req("B7")
def test_json_has_the_documented_schema(
    store: Store, locks: library.Locks, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        lease = stack.enter_context(locks.lock("a:1", metadata={"job": "x"}))
        stack.enter_context(locks.rwlock("b").read())
        stack.enter_context(locks.semaphore("c", 3, take=2))
        waiting = stack.enter_context(started("run", "a:1", "--", "true", url=store.url))
        until(lambda: any(info.waiters for info in locks.inspect("a:1")), "it waits")
        for words in (("ls",), ("watch",)):
            with started(*words, "--json", url=store.url) as process:
                (document,) = [json.loads(line(process))]
                assert list(document)[-1] == "locks"
                assert [lock["name"] for lock in document["locks"]] == ["a:1", "b", "c"]
                for lock in document["locks"]:
                    check_lock(lock)
        shown = json.loads(holdfast("show", "a:1", "--json", url=store.url).stdout)
        check_lock(shown)
        (holder,), (waiter,) = shown["holders"], shown["waiters"]
        assert holder["fence"] == shown["fence"] == lease.fence
        assert holder["info"]["job"] == "x"
        assert (holder["mode"], waiter["fence"]) == ("exclusive", None)
        assert 0 <= holder["since"] < 60 > holder["remaining"] > 0
        assert waiter["info"]["command"] == "true"
        permits = json.loads(holdfast("show", "c", "--json", url=store.url).stdout)
        assert permits["holders"][0]["permits"] == 2
        free = json.loads(holdfast("show", "free", "--json", url=store.url).stdout)
        assert free == {"name": "free", "fence": None, "holders": [], "waiters": []}
        waiting.terminate()
        waiting.wait(30)
    released = holdfast("release", "a:1", "--force", "--json", url=store.url)
    assert json.loads(released.stdout) == {"name": "a:1", "released": 0}


@pytest.mark.req("B7")
def test_names_are_whole_in_json_and_harmless_in_tables(
    mine: library.Locks, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "x" * 500 + "end"
    with (
        mine.lock(NASTY, metadata={"key": NASTY, NASTY: "v"}),
        mine.lock(long),
        library.connect(URL, label=NASTY) as labelled,
        labelled.lock("labelled"),
    ):
        for command in (("ls",), ("show", NASTY)):
            document = run(capsys, *command, "--json")
            assert document.count("\n") == 1
            assert document.isascii()
            assert document[:-1].isprintable()
            shown = run(capsys, *command)
            assert all(row.isprintable() for row in shown.splitlines())
            assert "\u202e" not in shown
            assert max(map(len, shown.splitlines())) <= 80
        names = {lock["name"] for lock in json.loads(run(capsys, "ls", "--json"))["locks"]}
        assert names == {NASTY, long, "labelled"}
        listing = run(capsys, "ls")
        assert r"a\x1b[31mred" in listing
        assert re.search(r"x+…x+end ", listing)
    other = mine.lock(NASTY).acquire()
    assert other
    assert run(capsys, "release", NASTY, "--force").startswith("a\\x1b[31mred")


@pytest.mark.req("B7", "law 9")
def test_owner_ids_are_not_shown(mine: library.Locks, capsys: pytest.CaptureFixture[str]) -> None:
    with mine.lock("x") as lease:
        owner = lease._hold.claim.owner
        for words in (("ls",), ("ls", "--json"), ("show", "x"), ("show", "x", "--json")):
            assert owner not in run(capsys, *words)


# -- tables ----------------------------------------------------------------------------------------


@pytest.mark.req("B7")
def test_ls_shows_who_holds_and_who_waits(
    mine: library.Locks, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "ls") == "Nobody holds a lock.\n"
    assert run(capsys, "ls", "in") == "Nobody holds a lock that begins with 'in'.\n"
    with (
        mine.lock("invoice:42", ttl=600),
        mine.semaphore("api", 3, take=2),
        mine.semaphore("api", 3),
        mine.rwlock("catalogue").read(),
    ):
        head, *rows = run(capsys, "ls").splitlines()
        assert head.split() == ["NAME", "HELD", "BY", "AS", "SINCE", "LEFT"]
        assert [row.split()[0] for row in rows] == ["api", "catalogue", "invoice:42"]
        assert "(tester) +1" in rows[0]
        assert "2 permits" in rows[0]
        assert "shared" in rows[1]
        assert "10 min" in rows[2]
        assert len(run(capsys, "ls", "inv").splitlines()) == 2


@pytest.mark.req("B7")
def test_show_says_everything(mine: library.Locks, capsys: pytest.CaptureFixture[str]) -> None:
    with mine.lock("job", metadata={"batch": "7"}) as lease:
        name, state, _, head, row = run(capsys, "show", "job").splitlines()
        assert name == "job"
        assert state == f"held by 1, 0 waiting; last token {lease.fence}"
        assert head.split() == ["WHO", "AS", "SINCE", "LEFT", "TOKEN", "ABOUT"]
        assert str(lease.fence) in row
        assert "label=tester batch=7" in row
    assert run(capsys, "show", "job").splitlines()[1].startswith("free, 0 waiting")
    with mine.lock("job:2"):  # not the one that was asked for
        assert run(capsys, "show", "job").splitlines()[1].startswith("free")


def test_show_of_what_cannot_be_a_name_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "", "--url", URL]) == 78
    assert "needs a name" in capfd.readouterr().err


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_tables_fit_the_screen(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    screen = open_screen(out)
    columns = [
        Column("NAME", least=12), Column("HELD BY", least=12), Column("AS"), Column("EMPTY"),
        Column("SINCE", right=True), Column("WAITING", right=True),
    ]  # fmt: skip
    screen.print(
        table(
            columns,
            [("n" * 300, "h" * 300, "exclusive", "", "10 min", "3"), ("漢" * 50, *"abcde")],
            screen,
        )
    )
    rows = out.getvalue().splitlines()

    assert max(map(cell_len, rows)) <= width
    if width > 60:
        assert rows[1].rstrip().endswith("3")
        assert "…" in rows[1]
    else:  # not even when it is cut: below one another, and whole
        text = "".join("".join(row.split()) for row in rows)
        assert text.startswith("n" * 300)
        assert "h" * 300 in text
        assert text.endswith("heldbya,asb,emptyc,sinced,waitinge")


@pytest.mark.req("B7")
@pytest.mark.parametrize("width", [40, 50, 60, 70, 80, 120])
def test_nothing_is_left_out_where_it_is_narrow(
    width: int,
    mine: library.Locks,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At any width the process is a number that `kill` takes, and `show` shows everything."""
    monkeypatch.setenv("COLUMNS", str(width))
    with mine.lock("invoice:42", ttl=600, metadata={"batch": "7"}) as lease:
        said = run(capsys, "ls") + run(capsys, "show", "invoice:42")
    assert max(map(cell_len, said.splitlines())) <= width
    listed, _, shown = " ".join(said.split()).partition("held by 1")
    for text in (listed, shown):
        assert f":{os.getpid()}" in text
        assert "exclusive" in text
        assert "10 min" in text
    assert str(lease.fence) in shown.partition("last token")[2].partition(" ")[2][10:]
    assert "batch=7" in shown


def test_watch_finds_room_where_a_lock_takes_several_lines(
    store: Store, locks: library.Locks
) -> None:
    env = environment(store.url, TERM="xterm-256color")
    with ExitStack() as stack:
        for number in range(20):
            stack.enter_context(locks.lock(f"one-of-many-names:{number:02}"))
        words = ("watch", "--interval", "0.05")
        with Terminal(*CLI, *words, env=env, columns=40) as terminal:
            terminal.expect("20 locks")
            more = terminal.expect(r"and (\d+) more")
            assert 10 < int(more[1]) < 19
            terminal.type("\x03")
            assert terminal.wait() == 130


def test_colours_can_be_read_on_black_and_on_white() -> None:
    for name, style in PALETTE.items():
        found = re.fullmatch(r"color\((\d+)\)", style)
        if found is not None:
            light = luminance(*rgb(int(found[1]))) + 0.05
            assert min(1.05 / light, light / 0.05) > 3.5, name


def rgb(number: int) -> tuple[int, int, int]:
    """Of one of the 256 colours of terminals."""
    if number >= 232:
        return (8 + 10 * (number - 232),) * 3
    steps = (0, 95, 135, 175, 215, 255)
    number -= 16
    return steps[number // 36], steps[number // 6 % 6], steps[number % 6]


def luminance(*channels: int) -> float:
    """As WCAG has it."""
    red, green, blue = (
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
        for c in (channel / 255 for channel in channels)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_cutting() -> None:
    assert cut("abcdefgh", 8) == "abcdefgh"
    assert cut("abcdefghi", 8) == "abcd…ghi"
    assert cut("abcdefghi", 8, "...") == "abc...hi"
    assert cut("漢字漢字漢字", 8) == "漢字…字"
    assert cut("abc", 1) == "…"
    assert cut("", 0) == ""
    assert cut("host:4711 (nightly-report)", 20) == "host:4711 (nig…port)"
    assert cut("a-host-with-a-long-name:4711 (nightly-report)", 24) == "a-ho…name:4711 (nig…ort)"
    assert cut("a-host-with-a-long-name:4711", 16) == "a-hos…-name:4711"
    assert cut("host:4711 (x) +2", 15) == "host:4711 (x…+2"
    assert clean("plain ünïcode 漢 :-/") == "plain ünïcode 漢 :-/"
    assert clean("\ud800\x00\x7f\u2028") == r"\ud800\x00\x7f\u2028"


def test_durations() -> None:
    wanted = {
        0.04: "0.0 s", 9.94: "9.9 s", 42.4: "42 s", 119: "119 s", 120: "2 min", 7199: "120 min",
        7200: "2 h", 172800: "2 d", 1e7: "116 d",
    }  # fmt: skip
    assert {seconds: duration(seconds) for seconds in wanted} == wanted
    assert duration(None) == "?"


@pytest.mark.req("B7")
@pytest.mark.parametrize(
    ("changes", "coloured"),
    [({"TERM": "xterm-256color"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({}, False)],
)
def test_colour_only_where_it_is_wanted(
    store: Store, locks: library.Locks, changes: dict[str, str], coloured: bool
) -> None:
    env = environment(store.url, **changes)
    with locks.lock("job"), Terminal(*CLI, "ls", env=env) as terminal:
        assert terminal.wait() == 0
        assert ("\x1b[" in terminal.said) == coloured
        assert "job" in terminal.said
    with locks.lock("job"):
        assert "\x1b" not in holdfast("ls", url=store.url, env=changes).stdout  # into a pipe


def test_an_encoding_without_the_characters(store: Store, locks: library.Locks) -> None:
    env = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    with locks.lock("ünïcode" * 30):
        ran = holdfast("ls", url=store.url, env=env)
    assert ran.returncode == 0
    assert ran.stdout.isascii()
    assert "..." in ran.stdout


# -- release ---------------------------------------------------------------------------------------


@pytest.mark.req("B7")
@pytest.mark.parametrize(
    ("answer", "status", "still"), [("y\n", 0, 0), ("n\n", 1, 1), ("\n", 1, 1), ("\x04", 130, 1)]
)
def test_release_asks_at_a_terminal(
    store: Store, locks: library.Locks, answer: str, status: int, still: int
) -> None:
    lease = locks.lock("job").acquire()
    assert lease
    with Terminal(*CLI, "release", "job", "--force", env=environment(store.url)) as terminal:
        terminal.expect(r"job is held by \S+:\d+\. Take it away\? \[y/N\]: ")
        terminal.type(answer)
        assert terminal.wait() == status
        assert ("job was released" in terminal.said) == (not still)
    assert held(locks, "job") == still


@pytest.mark.req("B7")
def test_release_without_asking(store: Store, locks: library.Locks) -> None:
    lease = locks.lock("job").acquire()
    assert lease
    with Terminal(
        *CLI, "release", "job", "--force", "--yes", env=environment(store.url)
    ) as terminal:
        assert terminal.wait() == 0
    assert held(locks, "job") == 0
    ran = holdfast("release", "job", "--force", url=store.url)  # nobody to ask
    assert (ran.returncode, ran.stdout) == (0, "nobody held job\n")


# -- watch -----------------------------------------------------------------------------------------


@pytest.mark.req("B7")
def test_watch_says_each_change_once(store: Store, locks: library.Locks) -> None:
    with started("watch", "jo", "--json", "--interval", "0.05", url=store.url) as process:
        first = json.loads(line(process))
        assert first["locks"] == []
        with locks.lock("job", ttl=30, renew=0.2) as lease, locks.lock("elsewhere"):
            second = json.loads(line(process))
            assert [lock["name"] for lock in second["locks"]] == ["job"]
            assert not lease.lost.wait(0.7)  # renewed, twice and more: no change
        third = json.loads(line(process))
        assert third["locks"] == []
        assert first["time"] <= second["time"] <= third["time"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.req("B7")
def test_watch_says_when_the_store_goes_away_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, mine: library.Locks, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: Iterator[list[library.LockInfo] | Exception]
    looks = iter([[], [], library.Unavailable("away"), library.Unavailable("still away"), []])

    def inspect(self: library.Locks, prefix: str = "") -> list[library.LockInfo]:
        look = next(looks, None)
        if look is None:
            raise KeyboardInterrupt
        if isinstance(look, Exception):
            raise look
        return look

    monkeypatch.setattr(library.Locks, "inspect", inspect)
    assert main(["watch", "--json", "--interval", "0.05", "--url", URL]) == 130
    documents = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
    assert [list(document) for document in documents] == [
        ["time", "locks"], ["time", "error"], ["time", "locks"]
    ]  # fmt: skip
    assert documents[1]["error"] == "away"


@pytest.mark.req("B7")
def test_watch_into_a_pipe_prints_a_table_for_each_change(
    store: Store, locks: library.Locks
) -> None:
    with started("watch", "--interval", "0.05", url=store.url) as process:
        assert re.fullmatch(r"\d\d:\d\d:\d\d  0 locks, 0 waiting", line(process))
        with locks.lock("job"):
            assert line(process) == ""
            assert line(process).endswith("1 lock, 0 waiting")
            assert line(process).startswith("NAME")
            assert line(process).startswith("job")


@pytest.mark.req("B7")
def test_watch_is_live_at_a_terminal(store: Store, locks: library.Locks) -> None:
    env = environment(store.url, TERM="xterm-256color")
    with Terminal(*CLI, "watch", "--interval", "0.05", env=env) as terminal:
        terminal.expect("0 locks, 0 waiting")
        with locks.lock("job"):
            terminal.expect("1 lock, 0 waiting")
            terminal.expect("job")
            terminal.expect(r"\x1b\[\d*A")  # drawn over the one before
        terminal.expect("0 locks")
        terminal.type("\x03")
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.said
        assert "\x1b[?25h" in terminal.said  # the cursor is back


def test_watch_of_more_locks_than_lines(store: Store, locks: library.Locks) -> None:
    env = environment(store.url, TERM="xterm-256color")
    with ExitStack() as stack:
        for number in range(40):
            stack.enter_context(locks.lock(f"job:{number:02}"))
        with Terminal(*CLI, "watch", "--interval", "0.05", env=env) as terminal:
            terminal.expect("40 locks")
            terminal.expect(r"and \d+ more")
            terminal.type("\x03")
            assert terminal.wait() == 130


def test_a_store_that_is_away_from_the_start_is_an_error(tmp_path: Path) -> None:
    ran = holdfast("watch", url=f"served://{tmp_path}/nobody?request_timeout=0.2")
    assert ran.returncode == 69
    assert ran.stderr.count("\n") == 1
