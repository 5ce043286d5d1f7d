"""`holdfast run`: the command, its status, its environment, and who may run at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import holdfast as library
from tests.cli.harness import (
    CLI,
    Terminal,
    alive,
    environment,
    holdfast,
    line,
    started,
    until,
)
from tests.cli.store import Store

SAY = "echo started; read end"
"""A command that says that it runs, and ends when its input does."""


def held(locks: library.Locks, name: str) -> int:
    return sum(len(info.holders) for info in locks.inspect(name) if info.name == name)


def waiting(locks: library.Locks, name: str) -> int:
    return sum(len(info.waiters) for info in locks.inspect(name) if info.name == name)


@pytest.mark.req("B7")
@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("true", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        *((f"kill -{name} $$", 128 + number) for name, number in (("TERM", 15), ("USR1", 10))),
        ("kill -KILL $$", 137),
    ],
)
def test_the_status_is_the_commands(store: Store, script: str, status: int) -> None:
    ran = holdfast("run", "job", "--", "sh", "-c", script, url=store.url)
    assert (ran.returncode, ran.stdout, ran.stderr) == (status, "", "")


@pytest.mark.req("B7", "B1")
def test_the_command_knows_name_and_token(store: Store, locks: library.Locks) -> None:
    with locks.lock("a job:7") as before:
        pass
    ran = holdfast(
        "run", "a job:7", "--", "sh", "-c", 'echo "$HOLDFAST_NAME"; echo "$HOLDFAST_FENCE"',
        url=store.url,
    )  # fmt: skip
    name, fence = ran.stdout.splitlines()
    assert name == "a job:7"
    assert int(fence) > before.fence


@pytest.mark.req("B7", "B5")
def test_a_permit_has_no_token_and_does_not_inherit_one(store: Store) -> None:
    ran = holdfast(
        "run", "api", "--permits", "2", "--", "sh", "-c", 'echo "${HOLDFAST_FENCE-none}"',
        url=store.url, env={"HOLDFAST_FENCE": "17"},
    )  # fmt: skip
    assert ran.stdout == "none\n"


@pytest.mark.req("B7", "R1")
def test_it_is_held_while_the_command_runs_and_free_afterwards(
    store: Store, locks: library.Locks
) -> None:
    with started("run", "job", "--", "sh", "-c", SAY, url=store.url, stdin=subprocess.PIPE) as run:
        assert line(run) == "started"
        (info,) = locks.inspect("job")
        assert info.holders[0].info["command"] == "sh"
        assert locks.lock("job").acquire(blocking=False) is None
        run.communicate("\n")
        assert run.returncode == 0
    assert locks.inspect("job") == []


@pytest.mark.req("B7", "R1")
def test_one_after_the_other(store: Store, locks: library.Locks, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"echo in >> {log}; sleep 0.05; echo out >> {log}"
    command = ("run", "job", "--", "sh", "-c", script)
    with (
        started(*command, url=store.url) as one,
        started(*command, url=store.url) as two,
        started(*command, url=store.url) as three,
    ):
        assert [run.wait(30) for run in (one, two, three)] == [0, 0, 0]
    assert log.read_text().split() == ["in", "out"] * 3


@pytest.mark.req("B7", "R7")
def test_no_wait_is_refused_at_once(store: Store, locks: library.Locks) -> None:
    with locks.lock("job"):
        ran = holdfast("run", "job", "--no-wait", "--", "echo", "ran", url=store.url)
    assert (ran.returncode, ran.stdout) == (75, "")
    assert ran.stderr.startswith("holdfast: the lock 'job' was held by ")
    assert "--timeout" in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.req("B7", "R7")
def test_a_timeout_is_waited_for_and_leaves_nothing(store: Store, locks: library.Locks) -> None:
    with locks.lock("job"):
        began = time.monotonic()
        ran = holdfast("run", "job", "--timeout", "0.4", "--", "echo", "ran", url=store.url)
        assert time.monotonic() - began >= 0.4
        assert waiting(locks, "job") == 0
    assert (ran.returncode, ran.stdout) == (75, "")
    assert "for 0.4 s" in ran.stderr


@pytest.mark.req("B7", "R7")
@pytest.mark.parametrize("patience", [("--no-wait",), ("--timeout", "0.2")])
def test_a_busy_lock_is_quiet_if_that_is_wanted(
    store: Store, locks: library.Locks, patience: tuple[str, ...]
) -> None:
    command = ("run", "job", *patience, "--quiet-busy", "--", "sh", "-c", "echo ran; exit 3")
    with locks.lock("job"):
        ran = holdfast(*command, url=store.url)
    assert (ran.returncode, ran.stdout, ran.stderr) == (75, "", "")
    assert waiting(locks, "job") == 0
    ran = holdfast(*command, url=store.url)
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "ran\n", "")


@pytest.mark.req("B7", "R7")
def test_only_a_busy_lock_is_quiet(store: Store, tmp_path: Path) -> None:
    away = f"served://{tmp_path}/nobody?request_timeout=0.3"
    for name, program, url, status in (
        ("job", "true", away, 69),
        ("job", "no-such-command", store.url, 127),
        ("", "true", store.url, 78),
    ):
        ran = holdfast("run", name, "--no-wait", "--quiet-busy", "--", program, url=url)
        assert ran.returncode == status
        assert ran.stderr.count("\n") == 1


def test_who_waits_quietly_at_a_terminal_says_nothing(store: Store, locks: library.Locks) -> None:
    words = ("run", "job", "--timeout", "1.6", "--quiet-busy", "--", "true")
    with locks.lock("job"), Terminal(*CLI, *words, env=environment(store.url)) as terminal:
        assert terminal.wait() == 75  # longer than it takes until waiting is said
        assert terminal.said == ""


@pytest.mark.req("B7", "R10")
def test_readers_share_and_a_writer_does_not(store: Store, locks: library.Locks) -> None:
    with locks.rwlock("book").read():
        reader = holdfast("run", "book", "--shared", "--no-wait", "--", "true", url=store.url)
        writer = holdfast("run", "book", "--no-wait", "--", "true", url=store.url)
    assert (reader.returncode, writer.returncode) == (0, 75)


@pytest.mark.req("B7", "B5")
def test_permits_are_counted(store: Store, locks: library.Locks) -> None:
    command = ("run", "api", "--permits", "2", "--no-wait", "--")
    with started(*command, "sh", "-c", SAY, url=store.url, stdin=subprocess.PIPE) as one:
        assert line(one) == "started"
        assert holdfast(*command, "true", url=store.url).returncode == 0
        with locks.semaphore("api", 2):
            assert holdfast(*command, "true", url=store.url).returncode == 75


@pytest.mark.req("B7")
def test_what_the_command_reads_and_writes_passes_through(store: Store) -> None:
    with started(
        "run", "job", "--", "sh", "-c", "cat; echo e >&2", url=store.url, stdin=subprocess.PIPE
    ) as run:
        assert run.communicate("in\n") == ("in\n", "e\n")


@pytest.mark.req("B7")
def test_the_command_finds_files_and_signals_as_they_were(store: Store) -> None:
    ran = holdfast("run", "job", "--", "cat", "/proc/self/status", url=store.url)
    status = dict(row.split(":\t", 1) for row in ran.stdout.splitlines() if ":\t" in row)
    assert int(status["SigBlk"], 16) == 0
    ignored = int(status["SigIgn"], 16)
    for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        assert not ignored >> (number - 1) & 1, number
    files = holdfast("run", "job", "--", "ls", "/proc/self/fd", url=store.url).stdout.split()
    assert files == ["0", "1", "2", "3"]  # the last one is the listing itself


@pytest.mark.req("B7")
def test_what_the_command_leaves_in_the_background_lives_on(store: Store, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"sleep 60 >/dev/null 2>&1 & echo $! > {pid_file}"
    ran = holdfast("run", "job", "--", "sh", "-c", script, url=store.url)
    assert ran.returncode == 0
    pid = int(pid_file.read_text())
    try:
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.req("B7")
def test_a_grace_that_is_cut_is_said(store: Store) -> None:
    for words, said in (
        (("--grace", "50", "--ttl", "9"), "holdfast: --grace 50 is cut to 3, a third of --ttl 9\n"),
        (("--grace", "3", "--ttl", "9"), ""),
        (("--ttl", "9"), ""),  # nobody asked for more
    ):
        ran = holdfast("run", "job", *words, "--", "true", url=store.url)
        assert (ran.returncode, ran.stderr) == (0, said)
    help_ = " ".join(holdfast("run", "--help").stdout.split())
    assert "more than a third of the ttl is cut to that" in help_


# -- what cannot work ------------------------------------------------------------------------------


@pytest.mark.req("B7")
@pytest.mark.parametrize("program", ["no-such-command", "/no/such/command", "/etc/passwd/x"])
def test_a_command_that_is_not_there(store: Store, program: str) -> None:
    ran = holdfast("run", "job", "--", program, url=store.url)
    assert ran.returncode == 127
    assert ran.stderr.startswith(f"holdfast: the command {program!r} was not found")
    assert ran.stderr.count("\n") == 1


@pytest.mark.req("B7")
def test_a_command_that_cannot_be_executed(store: Store, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("echo\n")
    nonsense = tmp_path / "nonsense"
    nonsense.write_bytes(b"\x01\x02\x03")
    nonsense.chmod(0o755)
    for program in (plain, nonsense, tmp_path):
        ran = holdfast("run", "job", "--", str(program), url=store.url)
        assert ran.returncode == 126, program
        assert "could not be executed" in ran.stderr
        assert ran.stderr.count("\n") == 1


@pytest.mark.req("B7")
def test_a_command_that_vanishes_while_we_wait(
    store: Store, locks: library.Locks, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    lease = locks.lock("job").acquire()
    assert lease
    with started("run", "job", "--", str(program), url=store.url) as run:
        until(lambda: waiting(locks, "job"), "it waits")
        program.unlink()
        lease.release()
        assert run.wait(30) == 127
    assert locks.inspect("job") == []


@pytest.mark.req("B7")
def test_a_store_that_is_away(tmp_path: Path) -> None:
    url = f"served://{tmp_path}/nobody?request_timeout=0.3"
    ran = holdfast("run", "job", "--", "echo", "ran", url=url)
    assert (ran.returncode, ran.stdout) == (69, "")
    assert "did not answer" in ran.stderr
    assert "HOLDFAST_URL" in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.req("B7")
@pytest.mark.parametrize(
    ("name", "url", "said"),
    [
        ("job", "rediss-typo://x", "no backend speaks"),
        ("job", "memory://", "memory of one process"),
        ("n" * 1025, None, "1025 bytes"),
        ("", None, "needs a name"),
    ],
)
def test_what_cannot_work_is_said(store: Store, name: str, url: str | None, said: str) -> None:
    ran = holdfast("run", name, "--", "true", url=url or store.url)
    assert ran.returncode == 78
    assert said in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.req("B7")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("job",), "COMMAND is missing"),
        (("job", "--no-wait", "--timeout", "1", "--", "true"), "contradict"),
        (("job", "--shared", "--permits", "1", "--", "true"), "contradict"),
        (("job", "--permits", "0", "--", "true"), "--permits: '0' is not a whole number from 1"),
        (("job", "--permits", "x", "--", "true"), "--permits: 'x' is not a whole number from 1"),
        (("job", "--ttl", "soon", "--", "true"), "--ttl: 'soon' is not a number of seconds"),
        (("job", "--ttl", "0", "--", "true"), "--ttl: 0 is too little: it must be more than 0 s"),
        (("job", "--t", "9", "--", "true"), "there is no option --t. Did you mean --t"),
        (("job", "--on-lost=pray", "--", "true"), "--on-lost"),
        (("job", "ls", "-l"), "write -- before the command"),
    ],
)
def test_wrong_usage_is_one_line_and_2(arguments: tuple[str, ...], said: str) -> None:
    ran = holdfast("run", *arguments, url="memory://")
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "See 'holdfast run --help'" in ran.stderr
    assert ran.stderr.count("\n") == 1
