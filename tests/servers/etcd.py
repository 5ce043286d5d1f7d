"""etcd: one member, or several that elect a leader.

Contract: a member answers a ping when it can serve a linearizable read, so it needs its quorum.
`api()` is the JSON gateway of the v3 API, for set-up and fault injection without a client package.
`restart(wipe=True)` of one member of several replaces the member, as an operator would.
Partner: `base.py`.
"""

from __future__ import annotations

import http.client
import json
import platform
from typing import Any

from tests.servers.base import Group, Process, ServerError, wait_for_other
from tests.servers.home import HOST, Home
from tests.servers.install import need


class EtcdServer(Process):
    """One etcd member; alone unless it is made by `EtcdCluster`. Times are milliseconds."""

    kind = "etcd"
    families = ("etcd",)
    version_command = ("etcd", "--version")

    def __init__(
        self,
        home: Home | None = None,
        name: str | None = None,
        *,
        heartbeat: int = 20,
        election: int = 200,
        settings: dict[str, str] | None = None,
    ) -> None:
        super().__init__(home, name)
        self.peer_port = self.home.reserve_port()
        self.members: list[EtcdServer] = [self]
        self.joins = False  # does it join a cluster that exists?
        self._settings = {
            "heartbeat-interval": str(heartbeat),
            "election-timeout": str(election),
            **(settings or {}),
        }

    @property
    def url(self) -> str:
        return f"etcd://{HOST}:{self.port}"

    @property
    def peer_url(self) -> str:
        return f"http://{HOST}:{self.peer_port}"

    def command(self) -> list[str]:
        settings = {
            "name": self.name,
            "data-dir": str(self.data),
            "listen-client-urls": f"http://{HOST}:{self.port}",
            "advertise-client-urls": f"http://{HOST}:{self.port}",
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": ",".join(f"{node.name}={node.peer_url}" for node in self.members),
            "initial-cluster-state": "existing" if self.joins else "new",
            "logger": "zap",
            "log-outputs": "stderr",
            "strict-reconfig-check": "false",  # else no member is replaced for 5 quiet seconds
            **self._settings,
        }
        start = [need("etcd"), *(f"--{key}={value}" for key, value in settings.items())]
        if platform.machine() in {"x86_64", "AMD64"}:
            return start
        # etcd 3.4 wants to be told that we know how little it is tested there.
        return ["env", f"ETCD_UNSUPPORTED_ARCH={_go_arch()}", *start]

    def ping(self, timeout: float = 1.0) -> bool:
        try:
            health = self._request("GET", "/health", None, timeout)
        except (OSError, http.client.HTTPException, ServerError):
            return False
        return health.get("health") in {"true", True}

    def api(self, path: str, body: dict[str, Any] | None = None, timeout: float = 20.0) -> Any:
        """POST to the gateway, e.g. api("/v3/kv/range", {"key": base64}); int64 come as strings."""
        return self._request("POST", path, body or {}, timeout)

    def member_id(self) -> str:
        status = self.api("/v3/maintenance/status", timeout=1.0)
        return str(status["header"]["member_id"])

    def is_leader(self) -> bool:
        try:
            status = self.api("/v3/maintenance/status", timeout=1.0)
        except (OSError, http.client.HTTPException, ServerError):
            return False
        return bool(status.get("leader") == status["header"]["member_id"])

    def restart(self, *, wipe: bool = False) -> None:
        others = [node for node in self.members if node is not self and node.alive]
        if wipe and others:
            # A member that came back without its log would break raft's promises, and etcd panics.
            self.terminate()
            self._replace_member(others[0])
            self.joins = True
        super().restart(wipe=wipe)

    def _replace_member(self, through: EtcdServer) -> None:
        for member in through.api("/v3/cluster/member/list")["members"]:
            if self.peer_url in member["peerURLs"]:
                through.api("/v3/cluster/member/remove", {"ID": member["ID"]})
        through.api("/v3/cluster/member/add", {"peerURLs": [self.peer_url]})

    def _request(self, method: str, path: str, body: object, timeout: float) -> Any:
        link = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        try:
            link.request(method, path, None if body is None else json.dumps(body))
            answer = link.getresponse()
            text = answer.read().decode()
        finally:
            link.close()
        if answer.status != 200 and method == "POST":
            raise ServerError(f"etcd answered {answer.status} to {path}: {text}")
        return json.loads(text)


class EtcdCluster(Group[EtcdServer]):
    """Three members by default."""

    kind = "etcd-cluster"
    families = EtcdServer.families
    version_command = EtcdServer.version_command

    def __init__(
        self,
        *,
        size: int = 3,
        heartbeat: int = 50,
        election: int = 500,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.home = Home(self.kind)
        self.nodes = [
            EtcdServer(
                self.home, f"etcd-{n}", heartbeat=heartbeat, election=election, settings=settings
            )
            for n in range(size)
        ]
        for node in self.nodes:
            node.members = self.nodes

    @property
    def url(self) -> str:
        return "etcd://" + ",".join(f"{host}:{port}" for host, port in self.addresses)

    def leader(self) -> EtcdServer | None:
        """The member that calls itself leader; None while there is none."""
        return next((node for node in self.nodes if node.alive and node.is_leader()), None)

    def wait_leader(
        self, *, other_than: EtcdServer | None = None, timeout: float = 60.0
    ) -> EtcdServer:
        """Wait until there is a leader, after an election another one than before."""
        return wait_for_other(self.leader, other_than, "an etcd leader", timeout)

    def _launch_all(self, *, wipe: bool) -> None:
        if wipe:
            for node in self.nodes:
                node.joins = False
        super()._launch_all(wipe=wipe)


def _go_arch() -> str:
    return {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
