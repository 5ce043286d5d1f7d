"""The command line: what it prints, what it exits with, and that the demonstration is real."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.cli import demo, main
from holdfast.cli.screen import Row, Screen, Span

FAST = 0.15


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


class Terminal(io.StringIO):
    """Looks like a terminal to whoever asks."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_version() -> None:
    ran = run("--version")
    assert (ran.returncode, ran.stdout) == (0, f"holdfast {holdfast.__version__}\n")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("demo", "--help")])
def test_help_says_what_there_is_and_the_exit_status(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(arguments)
    except SystemExit as ended:
        status = int(ended.code or 0)
    said = capsys.readouterr().out
    assert status == 0
    assert "demo" in said
    assert "exit status" in said
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [("dmeo",), ("--verzion",), ("demo", "--faster")])
def test_wrong_usage_is_a_message_and_status_2(arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert ran.returncode == 2
    assert "usage: holdfast" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (holdfast.Unavailable("the store is away"), 1, "holdfast: the store is away\n"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_expected_error_is_one_line(
    raised: BaseException,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(out: object) -> int:
        raise raised

    monkeypatch.setattr(demo, "play", fail)
    assert main(["demo"]) == status
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_a_closed_pipe_ends_it_quietly() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(60) == 141
    assert said == b""


def test_ctrl_c_ends_it_with_130() -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "holdfast.cli", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background of a shell has us inherit an ignored Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "1." not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
    assert said.strip() == "holdfast: interrupted"


# -- the demonstration -----------------------------------------------------------------------------


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)


@pytest.mark.req("B1", "B2", "R1", "R8")
def test_the_demo_keeps_every_promise_it_shows() -> None:
    out = io.StringIO()
    assert demo.play(out, pace=FAST) == 0
    said = out.getvalue()
    assert "NOT KEPT" not in said
    assert "\x1b" not in said  # not a terminal: no colour, no cursor
    assert max(map(len, said.splitlines())) <= 80
    tokens = [int(token) for token in re.findall(r"token (\d{10,});?", said)]
    ada, bob = tokens[:2]
    assert ada < bob
    assert f"token {ada}" in said
    assert re.search(r"lease\.held is False", said)
    assert re.search(r"callback on_lost: ", said)
    assert re.search(r"is cancelled after page \d+", said)
    assert re.search(r"raises LeaseLost: the store has it no longer", said)
    assert "balance without tokens: 120   with tokens: 150" in said
    holds = re.search(r"(\d+) holds, two at once: 0 times", said)
    assert holds is not None
    assert int(holds[1]) >= 5


def test_a_broken_promise_is_said_and_is_the_exit_status() -> None:
    out = io.StringIO()
    stage = demo.Stage(Screen(out), 1.0)
    rows = [Row("ada", "blue"), Row("bob", "orange")]
    rows[0].spans = [Span("wait", 0.0, 0.5), Span("hold", 0.5, 1.0)]
    rows[1].spans = [Span("wait", 0.1, 0.2), Span("hold", 0.2, 0.8)]  # too early, and too long
    demo.judge(stage, rows, [[("ada", 0), ("bob", 0)]])
    assert demo.farewell(stage) == 1
    assert "NOT KEPT: 2 holds, two at once: 1 times" in out.getvalue()
    assert "NOT KEPT: the waiting line was looked at 1 times; overtakes after it: 1" in (
        out.getvalue()
    )


def test_the_account_checks_tokens() -> None:
    account = demo.Account(100, checks=True)
    account.write(150, fence=2)
    account.write(160, fence=2)
    with pytest.raises(demo.Refused):
        account.write(120, fence=1)
    assert account.balance == 160


# -- the screen ------------------------------------------------------------------------------------

ROWS = [
    Row("ada", "blue", [Span("wait", 0.0, 1.0), Span("hold", 1.0, 2.0), Span("stale", 2.0)]),
    Row("bob", "orange", [Span("wait", 1.0, 2.0), Span("hold", 2.0, 3.0)]),
]


def test_a_timeline_shows_each_moment() -> None:
    screen = Screen(io.StringIO())
    lines = screen.timeline(ROWS, 4.0, 4.0)
    bars = [line.partition("│")[2].ljust(screen.width - 8) for line in lines[:2]]
    quarter = (screen.width - 8) // 4
    middles = [[bar[i * quarter + quarter // 2] for i in range(4)] for bar in bars]
    assert middles == [["·", "█", "x", "x"], [" ", "·", "█", " "]]
    assert lines[2].endswith("4.0 s")
    assert max(map(len, lines)) <= screen.width


def test_colour_and_movement_only_on_a_terminal_that_wants_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = Terminal()
    screen = Screen(coloured)
    screen.redraw(screen.timeline(ROWS, 4.0, 4.0))
    screen.redraw(screen.timeline(ROWS, 4.0, 4.0))
    assert "\x1b[38;5;33m" in coloured.getvalue()
    assert "\x1b[3A" in coloured.getvalue()  # drawn over the first one

    monkeypatch.setenv("NO_COLOR", "1")
    without = Screen(Terminal())
    assert not without.coloured
    assert plain("\n".join(screen.timeline(ROWS, 4.0, 4.0))) == "\n".join(
        without.timeline(ROWS, 4.0, 4.0)
    )
    monkeypatch.setenv("TERM", "dumb")
    assert not Screen(Terminal()).live


def test_a_plain_encoding_gets_plain_characters() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    lines = Screen(out).timeline(ROWS, 4.0, 4.0)
    "\n".join(lines).encode("ascii")
    assert "#" in lines[0]


def test_the_console_script_is_installed() -> None:
    script = Path(sys.executable).parent / "holdfast"
    ran = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("holdfast ")
