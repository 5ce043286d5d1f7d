"""What every test server is: a `Process`, or a `Group` of them, in a `Home` that leaves no trace.

Contract: `start()` returns when the server answers, or raises `ServerError` with the end of its
log and leaves nothing behind. `stop()` ends the processes this object started, by pid, and removes
their files. Between the two a node may be killed, paused and restarted; its port and data stay the
same, unless `restart(wipe=True)`. Servers listen on loopback only. One file per store adds the
rest; `reaper.py` covers the runner that dies before it could stop anything.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Generic, Self, TypeVar

from tests.servers import install, reaper
from tests.servers.home import HOST, Home

START_SECONDS = 60.0  # for a loaded machine; the slowest server here needs 4
END_SECONDS = 10.0  # for a polite end, before force
STOP_SECONDS = 1.0  # the same when the data goes too: nothing to lose by force
POLL_SECONDS = 0.02

# Holds the program back until the reaper knows its pid: a runner killed in between closes the pipe,
# `read` fails, and no server was ever started. The pid stays the same through exec.
_GATE = 'read -r go && exec "$@"'

T = TypeVar("T")


class ServerError(RuntimeError):
    """A test server did not do what it was asked."""


def wait_until(check: Callable[[], T | None], what: str, timeout: float) -> T:
    """The first truthy value of `check`, looked at often; ServerError when the time is up."""
    deadline = time.monotonic() + timeout
    while not (value := check()):
        if time.monotonic() > deadline:
            raise ServerError(f"{what}: not within {timeout:g} s")
        time.sleep(POLL_SECONDS)
    return value


def wait_for_other(find: Callable[[], T | None], than: T | None, what: str, timeout: float) -> T:
    """The first thing found that is not `than`: a master after a failover, a leader."""

    def look() -> T | None:
        found = find()
        return None if found is than else found

    return wait_until(look, what, timeout)


class Server(ABC):
    """What the registry names, and a test asks for: `with Kind() as server`."""

    kind: ClassVar[str]
    families: ClassVar[tuple[str, ...]]  # keys of install.FAMILIES
    version_command: ClassVar[tuple[str, ...]]

    home: Home

    @property
    @abstractmethod
    def processes(self) -> Sequence[Process]: ...

    @property
    @abstractmethod
    def url(self) -> str:
        """What a user would give to `holdfast.connect`."""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where clients connect."""
        return [(HOST, node.port) for node in self.processes]

    def start(self) -> Self:
        if any(node.alive for node in self.processes):
            raise ServerError(f"{self.kind} runs already")
        try:
            install.ensure(*self.families)
            self._launch_all(wipe=False)
        except BaseException:
            self.stop()
            raise
        return self

    def restart(self, *, wipe: bool = False) -> None:
        """End it, if it still runs, and start it again: same ports, same data unless `wipe`."""
        self._end_all(STOP_SECONDS if wipe else END_SECONDS)
        self._launch_all(wipe=wipe)

    def stop(self) -> None:
        """End everything and remove every file. For good: a stopped server does not start again."""
        try:
            self._end_all(STOP_SECONDS)
        finally:
            self.home.close()

    def ping(self, timeout: float = 1.0) -> bool:
        """Does every process answer? False on refusal, error or silence; never raises for those."""
        return all(node.ping(timeout) for node in self.processes)

    def _launch_all(self, *, wipe: bool) -> None:
        for node in self.processes:
            node.launch(wipe=wipe)
        for node in self.processes:
            node.wait_ready()

    def _end_all(self, patience: float) -> None:
        for node in self.processes:
            node.ask_to_end()
        for node in self.processes:
            node.wait_end(patience)

    @classmethod
    def version(cls) -> str:
        program, *rest = cls.version_command
        said = subprocess.run(
            [install.need(program), *rest], capture_output=True, text=True, check=False
        )
        found = re.search(r"\d+(\.\d+)+", said.stdout + said.stderr)
        return found.group() if found else "unknown"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class Process(Server):
    """One server process. A subclass says how to run it and how to ping it."""

    user: ClassVar[str | None] = None  # databases refuse to run as root
    end_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, home: Home | None = None, name: str | None = None) -> None:
        self._in_group = home is not None
        self.home = home or Home(self.kind)
        self.name = name or self.kind
        self.port = self.home.reserve_port()
        self.directory = self.home.path / self.name
        self.data = self.directory / "data"
        self._popen: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """The program and its arguments; it must stay in the foreground and log to its output."""

    @abstractmethod
    def ping(self, timeout: float = 1.0) -> bool: ...

    def prepare(self) -> None:
        """Fill `data`, which exists and is empty."""

    def configure(self) -> None:
        """Write what `command` names; called before every launch."""

    def environment(self) -> dict[str, str]:
        """What the process finds in its environment, besides ours."""
        return {}

    def forget_data(self) -> None:
        """What `wipe` means."""
        shutil.rmtree(self.data, ignore_errors=True)

    def ready(self) -> bool:
        """Has it started? More than a ping where an answer alone proves too little."""
        return self.ping()

    @property
    def processes(self) -> Sequence[Process]:
        return [self]

    @property
    def pid(self) -> int:
        if self._popen is None or self._popen.poll() is not None:
            raise ServerError(f"{self.name} is not running")
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def log(self, lines: int | None = None) -> str:
        """What the server said so far, over all restarts; the last `lines` of it."""
        path = self.directory / "log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return text if lines is None else "\n".join(text.splitlines()[-lines:])

    def launch(self, *, wipe: bool = False) -> None:
        """Start the process without waiting for an answer. For nodes that need each other."""
        if self.alive:
            raise ServerError(f"{self.name} runs already")
        if not self.home.path.exists():
            raise ServerError(f"{self.name} was stopped and its data removed: make a new one")
        if wipe:
            self.forget_data()
        self.directory.mkdir(exist_ok=True)
        if not self.data.exists():
            self.data.mkdir(mode=0o700)
            if account := self._account():
                shutil.chown(self.data, account.pw_uid, account.pw_gid)
            self.prepare()
        self.configure()
        self._popen = self._spawn(self.command())

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        def answers_or_died() -> bool:
            return not self.alive or self.ready()

        try:
            wait_until(answers_or_died, f"{self.name} on port {self.port} answering", timeout)
            if not self.alive:
                assert self._popen is not None
                raise ServerError(f"{self.name} ended with status {self._popen.returncode}")
        except ServerError as error:
            raise ServerError(f"{error}; the end of its log:\n{self.log(25)}") from None

    def ask_to_end(self) -> None:
        """Send the polite signal and return."""
        if self._popen is not None and self.alive:
            # A paused process would keep the signal for later.
            _signal(self._popen.pid, signal.SIGCONT)
            self._popen.send_signal(self.end_signal)

    def wait_end(self, patience: float = END_SECONDS) -> None:
        """Wait for the end that `ask_to_end` asked for; use force when it takes too long."""
        if self._popen is None:
            return
        try:
            self._popen.wait(patience)
        except subprocess.TimeoutExpired:
            _signal(self._popen.pid, signal.SIGKILL)
            self._popen.wait()
        reaper.forget_process(self._popen.pid)

    def terminate(self) -> None:
        """End it politely. Its data stays for `restart`."""
        self.ask_to_end()
        self.wait_end()

    def stop(self) -> None:
        """End it; a server of its own is then removed, a node of a group can `restart`."""
        if self._in_group:
            self.terminate()
        else:
            super().stop()

    def kill(self) -> None:
        """SIGKILL: what a crash looks like. Its data stays for `restart`."""
        if self._popen is not None and self.alive:
            _signal(self._popen.pid, signal.SIGKILL)
            self._popen.wait()
            reaper.forget_process(self._popen.pid)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers. Returns when every thread has stopped:
        on a busy machine one of many may still answer for a moment."""
        pid = self.pid
        _signal(pid, signal.SIGSTOP)
        wait_until(lambda: stopped(pid), f"{self.name} stops", END_SECONDS)

    def resume(self) -> None:
        _signal(self.pid, signal.SIGCONT)

    def run(self, argv: list[str], *, timeout: float = START_SECONDS) -> None:
        """Run a set-up program of this server to its end, as the server's user."""
        popen = self._spawn(argv)
        try:
            status = popen.wait(timeout)
        except BaseException:
            os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
            raise
        finally:
            reaper.forget_process(popen.pid)
        if status != 0:
            raise ServerError(f"{argv[0]} ended with status {status}:\n{self.log(25)}")

    def _spawn(self, argv: list[str]) -> subprocess.Popen[bytes]:
        account = self._account()
        with (self.directory / "log").open("ab") as log:
            popen = subprocess.Popen(
                ["/bin/sh", "-c", _GATE, "sh", *argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                bufsize=0,
                cwd=self.data,
                env={**os.environ, **self.environment()},
                # Ctrl-C is for the runner; and the reaper may then kill a whole group.
                start_new_session=True,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
            )
        assert popen.stdin is not None
        reaper.watch_process(popen.pid)
        try:
            popen.stdin.write(b"go\n")
        except BrokenPipeError:
            pass  # it died already: wait_ready says so
        popen.stdin.close()
        return popen

    def _account(self) -> pwd.struct_passwd | None:
        """Whom the process runs as, when not as ourselves."""
        return pwd.getpwnam(self.user) if self.user and os.geteuid() == 0 else None


P = TypeVar("P", bound=Process)


class Group(Server, Generic[P]):
    """Several processes in one home; `nodes` are those that hold data."""

    nodes: list[P]

    @property
    def processes(self) -> Sequence[Process]:
        return self.nodes

    def __getitem__(self, index: int) -> P:
        return self.nodes[index]


def _signal(pid: int, number: signal.Signals) -> None:
    """Signal a process and its descendants: PostgreSQL's backends stop with their parent.

    Parent first, so that a paused one forks no more. SIGKILL pauses the whole family before it
    kills, or the orphans of the first would be nobody's children and not be found.
    """
    first = signal.SIGSTOP if number is signal.SIGKILL else number
    family = [pid]
    for member in family:
        if _send(member, first):
            family += _children(member)
    if first is not number:
        for member in family:
            _send(member, number)


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    except OSError:  # it has ended, or one of its threads
        pass
    return found


def stopped(pid: int) -> bool:
    """Whether every thread of it has."""
    states = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state.rpartition(")")[2].split()[0] == "T" for state in states)
