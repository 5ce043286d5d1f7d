"""ZooKeeper: one server, or an ensemble that elects a leader.

Contract: a server answers a ping when it serves requests, so a member of an ensemble needs its
quorum (`ruok` is answered without one). `command_of_four("mntr")` asks it anything else; `shell()`
is the official client, a JVM of its own, for set-up. Partner: `base.py`.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Sequence
from typing import Any

from tests.servers.base import Group, Process, ServerError, wait_for_other
from tests.servers.home import HOST, Home
from tests.servers.install import need

# The manifest of the first names all others but those that write the log and speak TLS.
_CLASS_PATH = ":".join(
    f"/usr/share/java/{jar}.jar"
    for jar in ("zookeeper", "slf4j-simple", "netty-codec", "netty-resolver")
)
# Short-lived JVMs: start fast, stay small, compile little.
_JVM = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Xshare:auto"]


class ZooKeeperServer(Process):
    """One server; alone unless it is made by `ZooKeeperEnsemble`. `tick` is in milliseconds,
    `settings` go to its configuration, `properties` to its JVM."""

    kind = "zookeeper"
    families = ("java", "zookeeper")
    version_command = ("java", "-cp", _CLASS_PATH, "org.apache.zookeeper.version.VersionInfoMain")

    def __init__(
        self,
        home: Home | None = None,
        name: str | None = None,
        *,
        tick: int = 200,
        sync_limit: int = 10,
        durable: bool = False,
        settings: dict[str, str] | None = None,
        properties: dict[str, str] | None = None,
    ) -> None:
        super().__init__(home, name)
        self._properties = {"znode.container.checkIntervalMs": "500", **(properties or {})}
        self.quorum_port = self.home.reserve_port()
        self.election_port = self.home.reserve_port()
        self.members: Sequence[ZooKeeperServer] = [self]
        self.settings = {
            "tickTime": str(tick),
            "initLimit": "50",
            "syncLimit": str(sync_limit),
            "minSessionTimeout": str(2 * tick),
            "maxSessionTimeout": "60000",  # by default 20 ticks: too short for ordinary clients
            "maxClientCnxns": "0",
            "4lw.commands.whitelist": "*",
            "admin.enableServer": "false",
            "forceSync": "yes" if durable else "no",
            "preAllocSize": "1024",
            **(settings or {}),
        }

    @property
    def url(self) -> str:
        return f"zookeeper://{HOST}:{self.port}"

    def command(self) -> list[str]:
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        properties = [f"-D{key}={value}" for key, value in self._properties.items()]
        config = str(self.directory / "zoo.cfg")
        return [need("java"), *_JVM, *properties, "-cp", _CLASS_PATH, main, config]

    def configure(self) -> None:
        settings = {
            "dataDir": str(self.data),
            "clientPort": str(self.port),
            "clientPortAddress": HOST,
            **self.settings,
        }
        if len(self.members) > 1:
            for n, node in enumerate(self.members, 1):
                settings[f"server.{n}"] = f"{HOST}:{node.quorum_port}:{node.election_port}"
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self.directory / "zoo.cfg").write_text(text)

    def prepare(self) -> None:
        (self.data / "myid").write_text(f"{self.members.index(self) + 1}\n")

    def ping(self, timeout: float = 1.0) -> bool:
        return self.mode(timeout) is not None

    def mode(self, timeout: float = 1.0) -> str | None:
        """`standalone`, `leader` or `follower`; None when it serves nobody."""
        try:
            found = re.search(r"^Mode: (\w+)$", self.command_of_four("srvr", timeout), re.MULTILINE)
        except OSError:
            return None
        return found.group(1) if found else None

    def command_of_four(self, word: str, timeout: float = 1.0) -> str:
        """One of ZooKeeper's four-letter commands: srvr, mntr, dump, cons, ..."""
        with socket.create_connection((HOST, self.port), timeout) as link:
            link.sendall(word.encode())
            with link.makefile("rb") as answer:
                return answer.read().decode()

    def shell(self, *words: str, timeout: float = 30.0) -> str:
        """One command of the official client (create, get, ...): what it printed."""
        main = "org.apache.zookeeper.ZooKeeperMain"
        where = ["-server", f"{HOST}:{self.port}"]
        done = subprocess.run(
            [need("java"), *_JVM, "-cp", _CLASS_PATH, main, *where, *words],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError(f"zookeeper shell {words[0]}: {done.stderr.splitlines()[-1:]}")
        return done.stdout


class ZooKeeperEnsemble(Group[ZooKeeperServer]):
    """Three servers by default."""

    kind = "zookeeper-ensemble"
    families = ZooKeeperServer.families
    version_command = ZooKeeperServer.version_command

    def __init__(self, *, size: int = 3, **options: Any) -> None:
        """`options` are those of `ZooKeeperServer`."""
        self.home = Home(self.kind)
        self.nodes = [
            ZooKeeperServer(self.home, f"zookeeper-{n}", **options) for n in range(1, size + 1)
        ]
        for node in self.nodes:
            node.members = self.nodes

    @property
    def url(self) -> str:
        return "zookeeper://" + ",".join(f"{host}:{port}" for host, port in self.addresses)

    def leader(self) -> ZooKeeperServer | None:
        """The server in mode `leader`; None while there is none."""
        return next((node for node in self.nodes if node.mode() == "leader"), None)

    def wait_leader(
        self, *, other_than: ZooKeeperServer | None = None, timeout: float = 60.0
    ) -> ZooKeeperServer:
        """Wait until there is a leader, after an election another one than before."""
        return wait_for_other(self.leader, other_than, "a ZooKeeper leader", timeout)
