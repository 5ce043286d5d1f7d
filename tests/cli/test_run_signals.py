"""Signals reach the command of `holdfast run` once, from wherever they come; terminals work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast as library
from holdfast.cli import kernel
from holdfast.cli.warden import ANSWER_PATIENCE, Mine, Warden
from tests.cli.harness import CLI, Terminal, alive, environment, line, started, until
from tests.cli.store import Store
from tests.cli.test_run import held, waiting

CHILD = (sys.executable, "-S", str(Path(__file__).with_name("child.py")))
FORWARDED = (
    signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH,
    signal.SIGCONT,
)  # fmt: skip


class Running:
    """A `holdfast run` whose command says each signal that it gets."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.front = process.pid
        self.command, self.warden = map(int, line(process).split())

    def heard(self) -> list[str]:
        """Everything until TERM, which ends it."""
        assert self.process.stdout is not None
        return [row.strip() for row in self.process.stdout]


@contextmanager
def counting(store: Store, *options: str) -> Iterator[Running]:
    with started("run", "job", *options, "--", *CHILD, "count", url=store.url) as process:
        yield Running(process)


@pytest.mark.req("B7")
@pytest.mark.parametrize("target", ["front", "warden", "group"])
def test_each_signal_arrives_once(store: Store, target: str) -> None:
    """Sent to the process that the shell knows, to the one that `show` names, or to all of them."""
    with counting(store) as run:
        for number in (*FORWARDED, signal.SIGTERM):
            if target == "group":
                os.killpg(run.front, number)
            else:
                os.kill(getattr(run, target), number)
            if number != signal.SIGTERM:  # one at a time: signals have no order among themselves
                assert line(run.process) == number.name
        assert run.heard() == ["SIGTERM"]
        assert run.process.wait(30) == 0


@pytest.mark.req("B7")
def test_a_stop_is_forwarded_and_ends(store: Store, locks: library.Locks) -> None:
    with started("run", "job", "--ttl", "3", "--", "sleep", "60", url=store.url) as process:
        until(lambda: held(locks, "job"), "it runs")
        warden = int(locks.inspect("job")[0].holders[0].info["pid"])
        command = until(lambda: _only_child(warden), "the command is there")
        until(lambda: Path(f"/proc/{command}/comm").read_text() == "sleep\n", "it is executed")
        os.kill(process.pid, signal.SIGTSTP)
        until(lambda: _state(command) == "T", "the command has stopped")
        before = store.grants["job"]
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)  # longer than the lease: it is renewed all the same
        assert held(locks, "job")
        assert store.grants["job"] == before
        os.kill(process.pid, signal.SIGCONT)
        until(lambda: _state(command) in "SR", "the command goes on")
        process.terminate()
        assert process.wait(30) == 143


def _only_child(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else 0


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.req("B7", "R7")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("target", ["front", "group"])
def test_a_signal_ends_the_wait(
    store: Store, locks: library.Locks, number: signal.Signals, target: str
) -> None:
    with locks.lock("job"), started("run", "job", "--", "echo", "ran", url=store.url) as process:
        until(lambda: waiting(locks, "job"), "it waits")
        send = os.kill if target == "front" else os.killpg
        send(process.pid, number)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (128 + number, "", "")
        assert waiting(locks, "job") == 0


@pytest.mark.req("B7")
def test_other_signals_do_not_end_the_wait_and_are_not_kept(
    store: Store, locks: library.Locks
) -> None:
    lease = locks.lock("job").acquire()
    assert lease
    with started("run", "job", "--", *CHILD, "count", url=store.url) as process:
        until(lambda: waiting(locks, "job"), "it waits")
        os.killpg(process.pid, signal.SIGUSR1)
        os.kill(process.pid, signal.SIGUSR2)
        lease.release()
        run = Running(process)
        process.terminate()
        assert run.heard() == ["SIGTERM"]


@pytest.mark.req("B7")
def test_who_asks_again_does_not_wait_for_a_silent_store(
    store: Store, locks: library.Locks
) -> None:
    with locks.lock("job"), started("run", "job", "--", "true", url=store.url) as process:
        until(lambda: waiting(locks, "job"), "it waits")
        warden = int(locks.inspect("job")[0].waiters[0].info["pid"])
        with store.silence(warden):
            process.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.8)  # it tries to leave the line
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        assert not alive(warden)


@pytest.mark.req("B7")
def test_an_ignored_signal_stays_ignored(store: Store, locks: library.Locks) -> None:
    """As under nohup."""

    def nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    lease = locks.lock("job").acquire()
    assert lease
    with started(
        "run", "job", "--", "cat", "/proc/self/status", url=store.url, preexec_fn=nohup
    ) as process:
        until(lambda: waiting(locks, "job"), "it waits")
        os.killpg(process.pid, signal.SIGHUP)
        lease.release()
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    ignored = int(out.partition("SigIgn:\t")[2].split()[0], 16)
    assert ignored >> (signal.SIGHUP - 1) & 1


# -- at a terminal ---------------------------------------------------------------------------------


def at_terminal(store: Store, *arguments: str) -> Terminal:
    return Terminal(*CLI, *arguments, env=environment(store.url))


@pytest.mark.req("B7")
def test_ctrl_c_reaches_the_command_once(store: Store) -> None:
    with at_terminal(store, "run", "job", "--", *CHILD, "count") as terminal:
        command, _ = map(int, terminal.expect(r"(\d+) (\d+)\r\n").groups())
        terminal.type("\x03")
        terminal.expect("SIGINT\r\n")
        terminal.type("\x1c")
        terminal.expect("SIGQUIT\r\n")
        os.kill(command, signal.SIGTERM)
        assert terminal.wait() == 0
        assert [word for word in terminal.said.split() if word.startswith("SIG")] == ["SIGTERM"]


@pytest.mark.req("B7")
def test_ctrl_c_ends_a_command_that_does_not_care(store: Store, locks: library.Locks) -> None:
    # Not a shell: dash itself loses a Ctrl-C that comes just before it starts its next command.
    with at_terminal(store, "run", "job", "--", "cat") as terminal:
        terminal.type("on\n")
        terminal.expect("on\r\non\r\n")
        terminal.type("\x03")
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.said
    assert locks.inspect() == []


@pytest.mark.req("B7")
def test_ctrl_c_ends_the_wait_at_a_terminal(store: Store, locks: library.Locks) -> None:
    with locks.lock("job"), at_terminal(store, "run", "job", "--", "echo", "ran") as terminal:
        terminal.expect("waiting for the lock 'job'; Ctrl-C gives up")
        terminal.type("\x03")
        assert terminal.wait() == 130
        assert "ran" not in terminal.said
        assert waiting(locks, "job") == 0


@pytest.mark.req("B7")
def test_a_password_can_be_asked_for(store: Store) -> None:
    script = "import getpass; print('got', getpass.getpass('secret? '))"
    with at_terminal(store, "run", "job", "--", sys.executable, "-c", script) as terminal:
        terminal.expect(r"secret\? ")
        terminal.type("xyzzy\n")
        terminal.expect("got xyzzy")
        assert terminal.wait() == 0


@pytest.mark.req("B7")
def test_a_screen_program_has_the_terminal(store: Store) -> None:
    """As vi does: raw mode, keys one by one, and the size of the window."""
    script = (
        "import os, sys, tty; tty.setraw(0); print(os.get_terminal_size(), end='', flush=True);"
        "key = os.read(0, 1); os.system('stty sane'); print('key', key)"
    )
    with at_terminal(store, "run", "job", "--", sys.executable, "-c", script) as terminal:
        terminal.expect("columns=80, lines=24")
        terminal.type("\x03")  # in raw mode a key like any other
        terminal.expect(r"key b'\\x03'")
        assert terminal.wait() == 0


@pytest.mark.req("B7")
def test_ctrl_z_and_fg(store: Store, locks: library.Locks) -> None:
    """The shell has its prompt back, the lock is kept beyond its ttl, and `fg` goes on."""
    env = environment(store.url, PS1="prompt> ", HISTFILE="/dev/null")
    with Terminal("bash", "--norc", "--noprofile", "-i", env=env) as shell:
        shell.expect("prompt> ")
        child = "trap 'echo interrupted; exit 7' INT; echo up; while :; do sleep 0.05; done"
        run = f'{" ".join(CLI)} run job --ttl 3 -- bash -c "{child}"'
        shell.type(run + "\n")
        shell.expect("up\r\n")
        shell.type("\x1a")
        shell.expect("Stopped")
        shell.expect("prompt> ")
        warden = int(locks.inspect("job")[0].holders[0].info["pid"])
        granted = list(store.grants["job"])
        assert locks.lock("job").acquire(timeout=4) is None  # a lease and more
        assert store.grants["job"] == granted
        shell.type("fg\n")
        until(lambda: shell.listens(_only_child(warden)), "the shell has let go of the terminal")
        shell.type("\x03")
        shell.expect("interrupted\r\n")
        shell.expect("prompt> ")
        shell.type("echo status $?\n")
        shell.expect("status 7\r\n")
        shell.type("exit\n")
        shell.wait()


@pytest.mark.req("B7")
def test_a_command_that_stops_itself_stops_the_job(store: Store, locks: library.Locks) -> None:
    """As programs in raw mode do on Ctrl-Z: the shell must get its prompt, and fg must work."""
    env = environment(store.url, PS1="prompt> ", HISTFILE="/dev/null")
    with Terminal("bash", "--norc", "--noprofile", "-i", env=env) as shell:
        shell.expect("prompt> ")
        shell.type(f"{' '.join(CLI)} run job -- sh -c 'kill -STOP $$; echo on; exit 5'\n")
        shell.expect("Stopped")
        shell.expect("prompt> ")
        assert held(locks, "job")
        shell.type("fg\n")
        shell.expect("on\r\n")
        shell.expect("prompt> ")
        shell.type("echo status $?\n")
        shell.expect("status 5\r\n")
        shell.type("exit\n")
        shell.wait()


@pytest.mark.req("B7")
def test_reading_in_the_background_stops_the_job_and_not_the_renewal(
    store: Store, locks: library.Locks
) -> None:
    env = environment(store.url, PS1="prompt> ", HISTFILE="/dev/null")
    with Terminal("bash", "--norc", "--noprofile", "-i", env=env) as shell:
        shell.expect("prompt> ")
        shell.type(f"{' '.join(CLI)} run job --ttl 3 -- cat &\n")
        until(lambda: held(locks, "job"), "it holds")
        warden = int(locks.inspect("job")[0].holders[0].info["pid"])
        until(lambda: _state(_only_child(warden)) == "T", "cat has been stopped")
        granted = list(store.grants["job"])
        assert locks.lock("job").acquire(timeout=4) is None  # a lease and more
        assert store.grants["job"] == granted
        shell.type("jobs\n")
        shell.expect("Stopped")
        shell.type("fg\n")
        until(lambda: shell.listens(_only_child(warden)), "the shell has let go of the terminal")
        shell.type("read at last\n")
        shell.expect("read at last\r\nread at last\r\n")
        shell.type("\x04")
        shell.expect("prompt> ")
        shell.type("echo status $?; exit\n")
        shell.expect("status 0\r\n")
        shell.wait()


@pytest.mark.req("B7")
def test_a_command_that_does_not_stop_keeps_the_terminal(store: Store) -> None:
    env = environment(store.url, PS1="prompt> ", HISTFILE="/dev/null")
    with Terminal("bash", "--norc", "--noprofile", "-i", env=env) as shell:
        shell.expect("prompt> ")
        shell.type(f"{' '.join(CLI)} run job -- {' '.join(CHILD)} count\n")
        shell.expect(r"\d+ \d+\r\n")
        shell.type("\x1a")
        shell.expect("SIGTSTP\r\n")
        shell.type("\x03")
        shell.expect("SIGINT\r\n")
        assert "prompt>" not in shell.said
        shell.type("\x1c")
        shell.expect("SIGQUIT\r\n")


@pytest.mark.req("B7")
def test_a_pipeline_at_a_terminal(store: Store) -> None:
    """The command shares the terminal with what it is piped into, as without holdfast."""
    env = environment(store.url, PS1="prompt> ", HISTFILE="/dev/null")
    with Terminal("bash", "--norc", "--noprofile", "-i", env=env) as shell:
        shell.expect("prompt> ")
        reader = "import sys; t = open('/dev/tty'); print(sys.stdin.read().strip(), t.readline())"
        run = f'{" ".join(CLI)} run job -- echo piped | {sys.executable} -c "{reader}"'
        shell.type(run + "\n")
        shell.expect("prompt> |\r\n")
        shell.type("typed\n")
        shell.expect("piped typed")
        shell.expect("prompt> ")
        shell.type("exit\n")
        shell.wait()


@pytest.mark.req("B7")
def test_a_front_that_is_busy_is_not_taken_for_one_that_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After half a second the warden answered for it, and the command got the signal twice."""
    warden = object.__new__(Warden)
    warden._mine = [Mine(signal.SIGHUP, kernel.now() - 2 * ANSWER_PATIENCE)]
    settled: list[Mine] = []
    monkeypatch.setattr(warden, "_settle", settled.append)
    monkeypatch.setattr(kernel, "stopped", lambda pid: False)
    warden._answer_for_the_front()
    assert settled == []
    monkeypatch.setattr(kernel, "stopped", lambda pid: pid == os.getppid())
    warden._answer_for_the_front()
    assert settled == warden._mine
