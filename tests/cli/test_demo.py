"""`holdfast demo`: real, judged, and gone without a trace."""

from __future__ import annotations

import io
import re
import signal
import tempfile
from pathlib import Path
from random import Random

import pytest

from holdfast.cli import demo
from holdfast.cli.judge import (
    Account,
    Hold,
    Pause,
    Refused,
    judge_contention,
    judge_crash,
    judge_pause,
)
from holdfast.cli.screen import (
    GLYPHS,
    WORDS,
    Row,
    Span,
    legend,
    open_screen,
    shown,
    timeline,
)
from holdfast.cli.stage import Stage
from tests.cli.harness import CLI, Terminal, environment, kernel_children, line, started, until
from tests.cli.launch import patient

FAST = 0.4


def leftovers(folder: Path) -> list[str]:
    """Of demonstrations that have this folder for themselves: others run at the same time."""
    return [path.name for path in folder.iterdir() if path.name.startswith("holdfast-demo-")]


@pytest.mark.req("B1", "B2", "B7", "R1", "R2", "R8", "client paused longer than its lease")
def test_the_demo_keeps_every_promise_it_shows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    patient(monkeypatch.setattr)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    out = io.StringIO()
    assert demo.play(out, pace=FAST) == 0
    said = out.getvalue()
    assert "NOT KEPT" not in said
    assert "\x1b" not in said  # not a terminal: no colour, no cursor
    assert max(map(len, said.splitlines())) <= 80
    ada, bob = map(int, re.findall(r"has the lock, token (\d+)", said))
    assert ada < bob
    assert re.search(rf"refuses it: token\s+{ada}\s+is\s+older\s+than\s+{bob}", said)
    assert "ada   sees at the first look: lease.held is False" in said
    assert "where tokens are checked: 150" in said
    holds = re.search(r"(\d+) holds by 4 processes; two at once: 0 times", said)
    assert holds is not None
    assert int(holds[1]) >= 5
    assert re.search(r"\d+ ms after its holder was killed \w+ had the lock", said)
    for glyph in "█·X▒x":
        assert glyph in said
    assert leftovers(tmp_path) == []


@pytest.mark.req("B7")
def test_it_is_drawn_live_at_a_terminal() -> None:
    with Terminal(
        *CLI, "demo", env=environment(TERM="xterm-256color", TEST_PATIENT="1")
    ) as terminal:
        terminal.expect("1. Four processes")
        terminal.expect(r"\x1b\[\d*A")
        terminal.expect(r"\x1b\[38;5;32m")
        terminal.expect("What this run showed")
        assert terminal.wait() == 0


@pytest.mark.req("B7")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("scene", ["asked first", "nothing renews"])
def test_no_process_and_no_file_is_left(
    number: int, status: int, scene: str, tmp_path: Path
) -> None:
    env = {"PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path), "TEST_SCENE": "1"}
    with started("demo", env=env) as process:
        while scene not in line(process):
            pass
        actors = until(lambda: kernel_children(process.pid), "the actors are there")
        assert leftovers(tmp_path)
        process.send_signal(number)
        _, said = process.communicate(timeout=100)
        assert process.returncode == status
        assert said == ("holdfast: interrupted\n" if number == signal.SIGINT else "")
    assert not [pid for pid in actors if Path(f"/proc/{pid}").exists()]
    assert leftovers(tmp_path) == []


@pytest.mark.req("B7")
def test_actors_die_with_the_director(tmp_path: Path) -> None:
    env = {"PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path), "TEST_SCENE": "1"}
    with started("demo", env=env) as process:
        while "nothing renews" not in line(process):
            pass
        actors = kernel_children(process.pid)
        assert len(actors) == 2  # one of them is stopped
        process.kill()
        until(lambda: not [pid for pid in actors if Path(f"/proc/{pid}").exists()], "they are gone")


# -- judging ---------------------------------------------------------------------------------------


class Verdicts(list[tuple[bool, str]]):
    def __call__(self, kept: bool, promise: str) -> None:
        self.append((kept, promise))


def test_a_broken_promise_is_found() -> None:
    verdict = Verdicts()
    one = Hold("ada", 0, asked=0.0, start=0.5, fence=7, end=1.0)
    other = Hold("bob", 0, asked=0.1, start=0.8, fence=7, end=1.5)  # too early, same token
    judge_contention(verdict, [one, other], [[("bob", 0), ("ada", 0)]])
    assert [kept for kept, _ in verdict] == [False, False, False, True]
    assert verdict[0][1].endswith("two at once: 1 times")
    assert verdict[1][1].endswith("overtakes after it: 1")
    assert verdict[2][1].endswith(": 1")


def test_a_hold_that_nobody_ended_is_not_overlooked() -> None:
    verdict = Verdicts()
    endless = Hold("ada", 0, asked=0.0, start=0.5, fence=1)
    judge_contention(verdict, [endless, Hold("bob", 0, 0.1, 2.0, 2, 3.0)], [])
    assert verdict[0][0] is False


def test_a_late_hand_over_after_a_crash_is_found() -> None:
    holds = [Hold("ada", 0, 0.0, 0.1, 1, end=1.0), Hold("bob", 0, 0.2, 2.5, 2, end=3.0)]
    for promise, kept in ((2.0, True), (1.0, False)):
        verdict = Verdicts()
        judge_crash(verdict, holds, killed=1.0, promise=promise)
        assert verdict == [
            (
                kept,
                f"1500 ms after its holder was killed bob had the lock (promised: {promise:g} s)",
            )
        ]
    verdict = Verdicts()
    judge_crash(verdict, holds[:1], killed=1.0, promise=1.0)
    assert verdict == [(False, "nobody had the lock after its holder was killed")]


def kept_pause() -> Pause:
    return Pause(
        ttl=1.0, stopped=10.0, next_start=11.0, fence=1, next_fence=2, held_on_waking=False,
        refused=("ada",), kept=False, careless=120, careful=150, expected=150,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("next_start", 13.0),
        ("next_start", 9.0),
        ("held_on_waking", True),
        ("held_on_waking", None),
        ("kept", True),
        ("next_fence", 1),
        ("refused", ()),
        ("refused", ("bob",)),
        ("careful", 120),
    ],
)
def test_each_promise_of_the_second_scene_can_be_broken(field: str, value: object) -> None:
    verdict = Verdicts()
    judge_pause(verdict, kept_pause())
    assert all(kept for kept, _ in verdict)
    broken = kept_pause()
    setattr(broken, field, value)
    verdict = Verdicts()
    judge_pause(verdict, broken)
    assert sum(not kept for kept, _ in verdict) == 1


def test_a_broken_promise_is_said_and_is_the_exit_status() -> None:
    out = io.StringIO()
    stage = Stage(open_screen(out), None, None)  # type: ignore[arg-type]
    stage.verdict(True, "this was kept")
    stage.verdict(False, "this was not")
    assert stage.farewell() == 1
    assert "  + this was kept\n  ! NOT KEPT: this was not\n" in out.getvalue()
    silent = Stage(open_screen(io.StringIO()), None, None)  # type: ignore[arg-type]
    assert silent.farewell() == 1  # nothing shown is nothing proved


def test_an_actor_that_dies_breaks_the_scene(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that cannot be used: the actors end at once."""
    monkeypatch.setattr(demo.Contention, "TTL", -1.0)
    out = io.StringIO()
    assert demo.play(out, pace=FAST) == 1
    assert "NOT KEPT: the process of" in out.getvalue()


def test_the_account_checks_tokens() -> None:
    account = Account(100, checks=True)
    account.write(150, fence=2)
    account.write(160, fence=2)
    with pytest.raises(Refused):
        account.write(120, fence=1)
    assert account.balance == 160


# -- the timeline ----------------------------------------------------------------------------------

ROWS = [
    Row("ada", "blue", [Span("wait", 0.0, 1.0), Span("hold", 1.0, 2.0), Span("stale", 2.0)]),
    Row("bob", "orange", [Span("wait", 1.0, 2.0), Span("hold", 2.0, 3.0)]),
]


def test_a_timeline_shows_each_moment() -> None:
    screen = open_screen(io.StringIO())
    lines = timeline(ROWS, 4.0, 4.0, screen).plain.splitlines()
    bars = [line.partition("│")[2] for line in lines[:2]]
    quarter = len(bars[0]) // 4
    middles = [[bar[i * quarter + quarter // 2] for i in range(4)] for bar in bars]
    assert middles == [["·", "█", "x", "x"], [" ", "·", "█", " "]]
    assert lines[2].endswith("4.0 s")
    assert max(map(len, lines)) <= screen.width


@pytest.mark.parametrize("kind", ["clash", "dead", "stale", "paused", "hold"])
@pytest.mark.parametrize("start", [0.0, 4.999, 5.03, 9.999])
def test_what_is_shorter_than_a_column_is_shown(kind: str, start: float) -> None:
    """A column is 0.15 s; a row that only waits is around it."""
    rows = [Row("ada", "blue", [Span("wait", 0.0, 10.0), Span(kind, start, start + 0.0005)])]
    screen = open_screen(io.StringIO())
    drawn = timeline(rows, 10.0, 10.0, screen).plain
    assert 1 <= drawn.count(GLYPHS[kind][0]) <= 2
    assert shown(rows, 10.0, 10.0, screen) == [each for each in GLYPHS if each in (kind, "wait")]


def test_the_worst_in_a_column_is_what_it_shows() -> None:
    worse = ("wait", "hold", "paused", "stale", "dead", "clash")
    screen = open_screen(io.StringIO())
    for number, kind in enumerate(worse):
        brief = [Span(one, 5.0 + 0.01 * place, 5.005 + 0.01 * place)
                 for place, one in enumerate(worse[: number + 1])]  # fmt: skip
        for spans in (brief, brief[::-1]):
            rows = [Row("ada", "blue", spans)]
            assert shown(rows, 100.0, 100.0, screen) == [kind]


def test_what_has_not_begun_is_not_shown() -> None:
    rows = [Row("ada", "blue", [Span("hold", 5.0), Span("clash", 6.0, 7.0)])]
    screen = open_screen(io.StringIO())
    assert shown(rows, 4.0, 10.0, screen) == []
    assert shown(rows, 5.5, 10.0, screen) == ["hold"]
    assert shown(rows, 12.0, 4.0, screen) == []  # to the right of it all


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("longest", [0.05, 0.2, 1.0])
def test_one_after_the_other_is_not_drawn_as_two_at_once(
    columns: int, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holds that are shorter than a column share it: it shows one of them."""
    monkeypatch.setenv("COLUMNS", str(columns))
    random = Random(columns)
    rows = [Row(name, "blue", [Span("wait", 0.0, 10.0)]) for name in "abcd"]
    moment, holds = 0.0, 0
    while moment < 10:
        start, moment = moment, moment + random.uniform(0.01, longest)
        rows[holds % 4].spans.append(Span("hold", start, moment))
        holds += 1
    drawn = timeline(rows, 10.0, 10.0, open_screen(io.StringIO())).plain.splitlines()[:4]
    bars = [row.partition("│")[2] for row in drawn]
    assert [column.count("█") for column in zip(*bars, strict=True)] == [1] * len(bars[0])


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_legend_ends_its_lines_between_entries(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    screen = open_screen(io.StringIO())
    lines = legend(list(GLYPHS), screen).plain.splitlines()
    assert max(map(len, lines)) <= width
    entries = [entry for line in lines for entry in line.strip().split("   ")]
    assert entries == [f"{GLYPHS[kind][0]} {WORDS[kind]}" for kind in GLYPHS]


def test_a_plain_encoding_gets_plain_characters() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    drawn = timeline(ROWS, 4.0, 4.0, open_screen(out)).plain
    assert drawn.isascii()
    assert "#" in drawn


def test_a_row_knows_when_something_ends() -> None:
    row = Row("ada", "blue")
    row.begin("wait", 1.0)
    row.begin("hold", 2.0)
    row.end(3.0)
    row.end(4.0)
    assert [row.at(moment) for moment in (0.5, 1.5, 2.5, 3.5)] == [None, "wait", "hold", None]
