"""What `holdfast run` asks of Linux, each by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from holdfast.cli import kernel
from holdfast.cli.link import Kind, Link, Message
from tests.cli.harness import ROOT, alive, until


def python(source: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


FAMILY = """
    import os, subprocess, sys
    from holdfast.cli import kernel
    kernel.adopt_orphans()
    spared = subprocess.Popen(["sleep", "60"]) if {spare} else None
    # A child that leaves a grandchild in a session of its own, and one that ignores TERM.
    script = "setsid sleep 60 & trap '' TERM; echo on; while :; do sleep 60; done"
    child = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
    child.stdout.readline()
    while len(kernel.descendants()) < 3 + {spare}:
        pass
    spare = frozenset([spared.pid]) if spared else frozenset()
    before = kernel.descendants(spare)
    left = kernel.end_descendants(10, spare)
    print(len(before), left, kernel.descendants() == sorted(spare))
    child.returncode = 0
    if spared:
        spared.kill()
        spared.wait()
"""


@pytest.mark.parametrize("spare", [0, 1])
def test_all_descendants_are_ended_except_those_that_are_spared(spare: int) -> None:
    with python(FAMILY.format(spare=spare)) as process:
        assert process.communicate(timeout=30)[0] == "3 [] True\n"


def test_orphans_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a kernel without the files that list children."""
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert child.pid in kernel._children(os.getpid())
            assert child.pid in kernel._children_by_search(os.getpid())
            monkeypatch.setattr(os.path, "exists", lambda path: False)
            assert child.pid in kernel.descendants()
        finally:
            child.kill()


def test_a_process_dies_with_its_parent() -> None:
    program = """
        import os, sys
        from holdfast.cli import kernel
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            assert kernel.die_with_parent(parent)
            os.execvp("sleep", ["sleep", "60"])
        print(pid, flush=True)
        sys.stdin.read()
    """
    with python(program) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert alive(pid)
        process.kill()
        until(lambda: not alive(pid), "it is gone")
    assert not kernel.die_with_parent(-1)
    kernel._prctl(kernel.PR_SET_PDEATHSIG, 0)


def test_signals_come_with_their_sender() -> None:
    program = """
        import os, signal
        from holdfast.cli import kernel
        numbers = {signal.SIGUSR1, signal.SIGUSR2}
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        file = kernel.SignalFile(numbers)
        assert list(file.read()) == []
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        arrived = sorted(file.read())
        assert arrived == [(signal.SIGUSR1, True, os.getpid()), (signal.SIGUSR2, True, os.getpid())]
        print("fine")
    """
    with python(program) as process:
        assert process.communicate(timeout=30)[0] == "fine\n"


def test_a_deadline_is_shared() -> None:
    deadline = kernel.Deadline()
    assert deadline.moment == float("inf")
    pid = os.fork()
    if pid == 0:
        deadline.moment = 42.5
        os._exit(0)
    os.waitpid(pid, 0)
    assert deadline.moment == 42.5


def test_states() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        child.send_signal(signal.SIGSTOP)
        until(lambda: kernel.stopped(child.pid), "it has stopped")
        child.kill()
        until(lambda: kernel.process_state(child.pid) == "Z", "it is dead and not waited for")
        assert not alive(child.pid)
    assert kernel.process_state(child.pid) == ""


def test_the_link_never_waits_and_shows_its_end() -> None:
    one, other = Link.pair()
    one.send(Kind.SIGNAL, 15)
    one.send(Kind.STARTED, 2**31)
    assert other.receive() == (
        [Message(Kind.SIGNAL, 15), Message(Kind.STARTED, 2**31)],
        False,
    )
    filled = threading.Event()

    def fill() -> None:
        for _ in range(100_000):
            one.send(Kind.ASK, 1)
        filled.set()

    threading.Thread(target=fill, daemon=True).start()
    assert filled.wait(60)
    one.close()
    messages, gone = other.receive()
    assert messages
    assert gone
    other.send(Kind.ANSWER, 1)  # to nobody
    other.close()
