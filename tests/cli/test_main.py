"""The command line as a whole: help, errors, statuses, secrets, completion, and what it loads."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

import holdfast as library
from holdfast.cli import kernel, main, outcome
from holdfast.cli.app import app, commands
from holdfast.core.waiting import LOOK_AT
from tests.cli.harness import CLI, ROOT, Terminal, environment, holdfast, started, until
from tests.cli.store import Store

SECRET = "sw0rdfish"


def test_version() -> None:
    ran = holdfast("--version")
    assert (ran.returncode, ran.stdout) == (0, f"holdfast {library.__version__}\n")


def test_the_console_script_is_installed() -> None:
    script = Path(sys.executable).parent / "holdfast"
    ran = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("holdfast ")


@pytest.mark.req("B7")
@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_has_help_for_80_columns(
    path: tuple[str, ...], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*path, flag]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: {' '.join(('holdfast', *path))}")
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.req("B7")
@pytest.mark.parametrize("arguments", [(), ("--help",), ("run", "--help")])
def test_help_has_examples_and_every_exit_status(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "holdfast run nightly -- ./backup.sh" in said
    listed = re.findall(r"^  (\d+)  ", said.partition("Exit status:")[2], re.M)
    assert listed == [str(status) for status in outcome.STATUSES]


def test_every_option_says_what_it_does() -> None:
    for path, command in commands():
        assert command.help, path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (path, parameter.name)


@pytest.mark.req("B7")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lss",), "there is no command 'lss'. Did you mean 'ls'? See 'holdfast --help'"),
        (("relaese", "x"), "Did you mean 'release'?"),
        (("frobnicate",), "There are: completion, demo, lab, "),
        (("--verzion",), "--version"),
        (("ls", "--jsno"), "--json"),
        (("watch", "--interval", "0"), "--interval"),
        (("watch", "--interval", "nan"), "'nan' is not a number of seconds"),
        (("run", "--grace", "nan", "x", "--", "true"), "'nan' is not a number of seconds"),
        (("watch", "--interval", "abc"), "--interval: 'abc' is not a number of seconds"),
        (("watch", "--interval", "0.01"), "0.01 is too little: it must be at least 0.05 s"),
        (("watch", "--interval", "1e9"), "1e9 is too much: at most 86400 s"),
        (("watch", "--interval"), "See 'holdfast watch --help'"),
        (("ls", "--json=3"), "does not take a value. See 'holdfast ls --help'"),
        (("completion", "tcsh"), "tcsh"),
        (("show",), "NAME is missing. See 'holdfast show --help'"),
        (("ls", "redis://:pw@h"), "that is the URL of a store: say --url"),
        (("run", "redis://:pw@h", "x", "--", "true"), "that is the URL of a store: say --url"),
        (("release", "x"), "--force"),
    ],
)
def test_wrong_usage_is_one_line_with_a_hint(
    arguments: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("holdfast: ")
    assert said in err
    assert "pw" not in err
    assert err.count("\n") == 1
    for foreign in ("range", "invalid value", "Error", "x>"):
        assert foreign not in err


@pytest.mark.req("B7")
@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (library.Unavailable("the store is away"), 69, "the store is away. Is the store up"),
        (library.Unavailable(f"away. {LOOK_AT}"), 69, "away. Is the store up, and the URL right ("),
        (library.LeaseLost("it is lost", name="x", reason="y"), 70, "it is lost"),
        (library.AcquireTimeout("it was busy"), 75, "it was busy"),
        (library.Misconfigured("it cannot work"), 78, "it cannot work"),
        (library.Unsupported("it cannot do that"), 78, "it cannot do that"),
        (library.Closed("it was closed"), 1, "it was closed"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (
            RuntimeError("two\nlines \x1b[31m"),
            1,
            r"RuntimeError: two lines \x1b[31m. This is a bug",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_is_one_line_and_a_status(
    raised: BaseException,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(library, "connect", fail)
    assert main(["ls"]) == status
    error = capfd.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1


def test_debug_shows_where_without_the_password(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(url: str) -> None:
        raise RuntimeError(f"cannot parse {url}")

    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    monkeypatch.setattr(library, "connect", fail)
    assert main(["ls", "--url", f"redis://me:{SECRET}@host/0"]) == 1
    error = capfd.readouterr().err
    assert "Traceback" in error
    assert "in fail" in error
    assert SECRET not in error


@pytest.mark.req("B7")
@pytest.mark.parametrize("how", [(), ("--json",)])
def test_a_closed_pipe_ends_it_quietly(
    store: Store, locks: library.Locks, how: tuple[str, ...]
) -> None:
    with started("watch", *how, "--interval", "0.05", url=store.url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        with locks.lock("x"):  # a change, which it cannot say
            assert process.wait(30) == 141
        assert process.stderr.read() == ""


def test_help_into_a_closed_pipe() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            [*CLI, "--help"], stdout=writing, stderr=subprocess.PIPE, env=environment(), check=False
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, b"")


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_closed_standard_files_do_no_harm(store: Store, closed: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    words = [*CLI, "run", "job", "--", "touch", str(mark)]
    ran = subprocess.run(
        ["sh", "-c", f'"$@" {closed}>&-', "sh", *words],
        env=environment(store.url),
        check=False,
        capture_output=True,
        timeout=30,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
    assert mark.exists()


@pytest.mark.req("B7")
def test_without_click_or_rich_it_says_what_to_install() -> None:
    for missing, arguments in (("click", ["--version"]), ("rich", ["ls", "--url", "memory://x"])):
        program = (
            f"import sys; sys.modules['{missing}'] = None\n"
            f"import holdfast; from holdfast.cli import main\n"
            f"sys.exit(main({arguments!r}))"
        )
        ran = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True, text=True, check=False, env=environment(),
        )  # fmt: skip
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.startswith("holdfast: the command line needs ")
        assert "pip install 'click>=8.1' 'rich>=13'" in ran.stderr
        assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--version"], {"rich", "holdfast.cli.demo", "sqlite3"}),
        (["run", "--help"], {"rich", "holdfast.cli.demo", "sqlite3"}),
        (["ls", "--json", "--url", "memory://"], {"rich", "holdfast.cli.demo"}),
    ],
)
def test_nothing_is_loaded_that_is_not_needed(arguments: list[str], unwanted: set[str]) -> None:
    program = (
        f"import sys; from holdfast.cli import main; main({arguments!r}); "
        "print('|'.join(sys.modules), file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env=environment(),
    )  # fmt: skip
    assert not unwanted & set(ran.stderr.strip().split("|"))


# -- passwords -------------------------------------------------------------------------------------


@pytest.mark.req("B7", "law 9")
@pytest.mark.parametrize(
    "url",
    [
        f"nosuch://me:{SECRET}@host/0",
        f"nosuch://:{SECRET}@host/0",
        f"memory://me:{SECRET}@host",
        f"memory://me:{SECRET}@host:port",
        f"memory://x?password={SECRET}",
        f"me:{SECRET}@host",
        f"memory://me:a/{SECRET}@host",
        f"served://me:{SECRET}@/nobody?request_timeout=0.2",
    ],
)
@pytest.mark.parametrize("how", ["option", "environment"])
def test_a_password_is_never_said(
    url: str, how: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    if how == "environment":
        monkeypatch.setenv("HOLDFAST_URL", url)
    assert main(["ls", *(("--url", url) if how == "option" else ())]) != 0
    out, err = capfd.readouterr()
    assert SECRET not in out + err
    warned = "Put the URL into HOLDFAST_URL" in err
    assert warned == (how == "option" and "://" in url)
    assert err.count("\n") == 1 + warned


@pytest.mark.req("B7", "law 9")
@pytest.mark.parametrize("how", ["option", "environment"])
def test_run_does_not_say_a_password_either(how: str) -> None:
    url = f"memory://me:{SECRET}@host"
    given = ("--url", url) if how == "option" else ()
    ran = holdfast(*given, "run", "x", "--", "true", url=url if how == "environment" else None)
    assert ran.returncode == 78
    assert SECRET not in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_url_without_a_password_is_not_warned_of(store: Store) -> None:
    assert holdfast("ls", "--url", store.url).stderr == ""
    assert outcome.has_password("redis://me:pw@host")
    assert outcome.has_password("redis://host?ssl_password=x")
    assert not outcome.has_password("redis://me@host:6379/0?label=me")
    assert outcome.redact("redis://me:pw@h and pw", "redis://me:pw@h") == "redis://me:***@h and pw"
    assert outcome.redact("p%40ss p@ss", "redis://me:p%40ss@h") == "*** ***"


@pytest.mark.parametrize("place", ["before", "behind"])
def test_the_url_stands_before_or_behind_the_command(store: Store, place: str) -> None:
    url = ("--url", store.url)
    words = (*url, "ls", "--json") if place == "before" else ("ls", "--json", *url)
    ran = holdfast(*words, url="nosuch://")
    assert (ran.returncode, ran.stdout) == (0, '{"locks": []}\n')


# -- interrupts ------------------------------------------------------------------------------------


@pytest.mark.req("B7")
def test_ctrl_c_at_a_question(store: Store, locks: library.Locks) -> None:
    with locks.lock("job"):
        with Terminal(*CLI, "release", "job", "--force", env=environment(store.url)) as terminal:
            terminal.expect(r"\[y/N\]: ")
            # One that comes between the question and the read is seen by Python at the next key.
            until(lambda: kernel.process_state(terminal.pid) == "S", "it waits for an answer")
            time.sleep(0.05)
            terminal.type("\x03")
            assert terminal.wait() == 130
            assert "Traceback" not in terminal.said
        assert locks.lock("job").locked()


def test_ctrl_c_while_the_store_is_asked(tmp_path: Path) -> None:
    url = f"served://{tmp_path}/nobody?request_timeout=30"
    with started("run", "x", "--", "true", url=url) as process:
        # Before it has set up anything, Python's own default may still apply: any of them is fine.
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (130, -signal.SIGINT, 1)


def test_the_tree_of_commands() -> None:
    assert [path for path, _ in commands()] == [(), *((name,) for name in sorted(app.commands))]
    assert set(app.commands) == {
        "run",
        "ls",
        "show",
        "watch",
        "release",
        "sentinel",
        "schema",
        "sweep",
        "demo",
        "lab",
        "completion",
    }
    assert (ROOT / "docs/reference/cli.md").exists()
