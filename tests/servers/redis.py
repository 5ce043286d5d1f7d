"""Redis: one server, and independent masters for Redlock.

Contract: `call()` is a complete client for set-up and fault injection: one command, one reply, one
connection, no package needed. Without `persist=True` a Redis forgets everything on restart, which
is how most people run it as a lock store. Partners: `redis_sentinel.py`, `redis_cluster.py`.
"""

from __future__ import annotations

import re
import socket
from typing import BinaryIO, TypeAlias

from tests.servers.base import Group, Process
from tests.servers.clock import WallClock
from tests.servers.home import HOST, Home
from tests.servers.install import need

Reply: TypeAlias = "str | int | list[Reply] | None"


class RedisError(Exception):
    """Redis answered with an error; the text begins with its code (MOVED, NOAUTH, ...)."""


class RedisServer(Process):
    """One redis-server. `settings` are lines of redis.conf, e.g. {"maxmemory": "10mb"}; with
    `own_clock` its wall clock can be set: `server.clock.shift = 3600`."""

    kind = "redis"
    families = ("redis",)
    version_command = ("redis-server", "--version")

    def __init__(
        self,
        home: Home | None = None,
        name: str | None = None,
        *,
        persist: bool = False,
        durable: bool = False,
        settings: dict[str, str] | None = None,
        own_clock: bool = False,
    ) -> None:
        super().__init__(home, name)
        self.clock = WallClock(self.home.path) if own_clock else None
        self._settings = {
            "save": '""',
            "appendonly": "yes" if persist else "no",
            # The reply waits for write(2) either way: a killed server keeps what it acknowledged.
            "appendfsync": "always" if durable else "no",
            "shutdown-timeout": "0",  # else SIGTERM waits 10 s for a paused replica
            "repl-diskless-sync-delay": "0",
            "repl-diskless-load": "on-empty-db",
            "enable-debug-command": "yes",
            **(settings or {}),
        }

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def command(self) -> list[str]:
        return [need("redis-server"), str(self.directory / "redis.conf")]

    def environment(self) -> dict[str, str]:
        return self.clock.environment if self.clock else {}

    def configure(self) -> None:
        conf = self.directory / "redis.conf"
        # Written once: a server that failed over rewrites its own file, and must find it again.
        if not conf.exists():
            base = {"port": str(self.port), "bind": HOST, "dir": str(self.data)}
            lines = [f"{key} {value}\n" for key, value in {**base, **self._settings}.items()]
            conf.write_text("".join(lines))

    def ping(self, timeout: float = 1.0) -> bool:
        try:
            return self.call("PING", timeout=timeout) == "PONG"
        except RedisError as error:
            return str(error).startswith("NOAUTH")  # it is there, and has a password
        except OSError:
            return False

    def call(self, *command: str | int, timeout: float = 20.0) -> Reply:
        """One command on a connection of its own."""
        with socket.create_connection((HOST, self.port), timeout) as link:
            link.sendall(_encode(command))
            with link.makefile("rb") as replies:
                return _read_reply(replies)

    def info(self, section: str, timeout: float = 20.0) -> dict[str, str]:
        text = self.call("INFO", section, timeout=timeout)
        assert isinstance(text, str)
        return dict(re.findall(r"^([^#:\s]+):(.*?)\r?$", text, re.MULTILINE))

    def is_master(self) -> bool:
        """Does it say so itself? False also when it does not answer."""
        try:
            return self.info("replication", timeout=2.0)["role"] == "master"
        except OSError:
            return False

    def linked(self) -> bool:
        """Is it a replica in step with its master?"""
        try:
            return self.info("replication", timeout=2.0).get("master_link_status") == "up"
        except OSError:
            return False


class RedisMasters(Group[RedisServer]):
    """Masters that know nothing of each other: what Redlock runs on."""

    kind = "redis-masters"
    families = RedisServer.families
    version_command = RedisServer.version_command

    def __init__(
        self,
        *,
        count: int = 5,
        persist: bool = False,
        durable: bool = False,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.home = Home(self.kind)
        self.nodes = [
            RedisServer(
                self.home, f"redis-{n}", persist=persist, durable=durable, settings=settings
            )
            for n in range(count)
        ]

    @property
    def url(self) -> str:
        return "redlock://" + ",".join(f"{host}:{port}" for host, port in self.addresses)


def _encode(command: tuple[str | int, ...]) -> bytes:
    words = [str(word).encode() for word in command]
    return b"".join(
        [b"*%d\r\n" % len(words), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)]
    )


def _read_reply(replies: BinaryIO) -> Reply:
    line = replies.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("Redis closed the connection inside a reply")
    mark, text = chr(line[0]), line[1:-2].decode()
    if mark == "-":
        raise RedisError(text)
    if mark == "+":
        return text
    if mark == ":":
        return int(text)
    size = int(text)
    if size < 0:
        return None
    if mark == "*":
        return [_read_reply(replies) for _ in range(size)]
    return replies.read(size + 2)[:-2].decode(errors="replace")
