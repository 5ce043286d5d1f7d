"""The lab's own redis-servers: on free loopback ports, with temporary data, ended by their pids.

Contract: a server that was started is ended by `close`, and by the kernel if the lab is killed; its
files go with it. Nothing is ever done to a server that was named by --redis except with the lab's
own keys: levels that kill a server use one of these. Partner: `scene.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TypeVar

from holdfast.cli.lab.resp import NoRedis, Redis, RedisError
from holdfast.cli.outcome import FAILED, Ended
from holdfast.cli.troupe import uninterrupted
from holdfast.testing import FaultProxy

__all__ = ["HOST", "Masters", "Replicated", "Server", "find_program", "version"]

T = TypeVar("T", "Server", FaultProxy)

HOST = "127.0.0.1"
PATIENCE = 15.0
"""For a start; a server that needs longer does not start."""
TRIES = 5
"""Somebody may be quicker at a port that was free."""


NEED = (
    "the lab needs redis-server, and there is none on PATH. Install it (Debian, Ubuntu: apt-get "
    "install redis-server), or name a running one: holdfast lab --redis redis://host:6379/0"
)


def find_program(need: str = NEED) -> str:
    # Debian keeps daemons out of a user's PATH.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    program = shutil.which("redis-server", path=path)
    if program is None:
        raise Ended(FAILED, need)
    return program


def version(url: str) -> str:
    """Of a server that answers; `OSError` or `RedisError` if it does not, or is no Redis."""
    with Redis(url, timeout=5.0) as redis:
        found = re.search(r"^redis_version:(\S+)", str(redis.call("INFO", "server")), re.M)
        if found is None:  # whatever says back what it hears speaks Redis's language, too
            raise NoRedis("what answers there does not say which version of Redis it is")
        return found[1]


class Server:
    """One redis-server that forgets everything when it ends."""

    def __init__(self, *settings: str) -> None:
        self._program = find_program()
        self._settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-lab-")
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def _start(self) -> None:
        deadline = time.monotonic() + PATIENCE
        for _ in range(TRIES):
            self.port = _free_port()
            self._launch()
            if self._answers(deadline):
                return
            self.kill()
        raise Ended(FAILED, f"redis-server does not start. The last line of its log: {self._log()}")

    def _launch(self) -> None:
        settings = {
            "port": str(self.port),
            "bind": HOST,
            "dir": self._folder.name,
            "logfile": str(Path(self._folder.name) / "log"),
            "save": "",
            "appendonly": "no",
            "shutdown-timeout": "0",
            "repl-diskless-sync-delay": "0",
        }
        options = [word for name, value in settings.items() for word in (f"--{name}", value)]
        with uninterrupted():  # a process that was started must be known
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "holdfast.cli.lab.launch", str(os.getpid())),
                    *(self._program, *options, *self._settings),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the lab alone
            )

    def _answers(self, deadline: float) -> bool:
        assert self._process is not None
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with Redis(self.url) as redis:
                    # It may be somebody else's who was quicker at the port.
                    if f"process_id:{self._process.pid}\r" in str(redis.call("INFO", "server")):
                        return True
            except (OSError, RedisError):
                pass
            time.sleep(0.005)
        return False

    def _log(self) -> str:
        try:
            lines = (Path(self._folder.name) / "log").read_text().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "it left no log"

    def kill(self) -> None:
        """SIGKILL, as when a machine is lost."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def restart(self) -> None:
        """At the same port, and having forgotten everything."""
        self.kill()
        self._launch()
        if not self._answers(time.monotonic() + PATIENCE):
            raise Ended(FAILED, f"redis-server does not come back: {self._log()}")

    def close(self) -> None:
        with uninterrupted():
            self.kill()
            self._folder.cleanup()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Replicated:
    """A master, a replica that follows it through a proxy, and a spare that will follow next."""

    def __init__(self) -> None:
        self._open: list[Server | FaultProxy] = []
        try:
            self.master = self._add(Server())
            self.link = self._add(FaultProxy(self.master.address))
            self.replica = self._add(Server("--replicaof", HOST, str(self.link.port)))
            self.spare = self._add(Server())
            _until_followed(self.master)
        except BaseException:
            self.close()
            raise

    def _add(self, thing: T) -> T:
        self._open.append(thing)
        return thing

    def cut(self) -> None:
        """From now on nothing reaches the replica; everything before has. The master notices
        nothing."""
        _until_followed(self.master)
        self.link.hold("to_client")

    def fail_over(self) -> None:
        """The master is lost; its replica is promoted, and the spare follows it."""
        self.master.kill()
        with Redis(self.replica.url) as redis:
            redis.call("REPLICAOF", "NO", "ONE")
        with Redis(self.spare.url) as redis:
            redis.call("REPLICAOF", HOST, self.replica.port)
        _until_followed(self.replica)

    def close(self) -> None:
        for thing in reversed(self._open):
            thing.close()


class Masters:
    """Three masters that know nothing of each other."""

    def __init__(self) -> None:
        self.nodes: list[Server] = []
        try:
            for _ in range(3):
                self.nodes.append(Server())
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return "redlock://" + ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def age(self) -> float:
        """Seconds that the youngest of them says it is up."""
        ages: list[float] = []
        for node in self.nodes:
            with Redis(node.url) as redis:
                found = re.search(
                    r"^uptime_in_seconds:(\d+)", str(redis.call("INFO", "server")), re.M
                )
            ages.append(float(found[1]) if found else 0.0)
        return min(ages)

    def close(self) -> None:
        for node in self.nodes:
            node.close()


def _until_followed(master: Server) -> None:
    """Until a replica has what the master has by now, and the master knows it.

    Twice: a new replica's first word may come before the stream flows (seen on 7.0: it confirms
    what was in its snapshot, and then nothing for a second). WAIT is for its connection's writes.
    """
    with Redis(master.url, timeout=2 * PATIENCE) as redis:
        for _ in range(2):
            redis.call("SET", "lab-mark", 1, "EX", 60)
            if redis.call("WAIT", 1, int(PATIENCE * 1000)) != 1:
                raise Ended(FAILED, f"a replica was not in step within {PATIENCE:g} s")
