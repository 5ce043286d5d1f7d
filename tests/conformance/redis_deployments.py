"""The redis backend's other deployments as strategies: TLS (RESP3), unix socket, Sentinel, Cluster.

No proxy is in the way, so these have no faults of the network: `faults/test_redis_*.py` has those
that are a deployment's own. The rules are the same scripts everywhere; here it is shown that every
deployment runs them.
"""

from __future__ import annotations

import itertools
from typing import Any

from holdfast.testing.conformance import NotApplicable
from tests.conformance.redis import RedisStrategy
from tests.servers import RedisCluster, RedisSentinel, RedisServer
from tests.servers.home import Home
from tests.servers.tls import Certificates, tls_server

__all__ = ["ClusterStrategy", "SentinelStrategy", "TlsStrategy", "UnixStrategy"]


class _Direct(RedisStrategy):
    def heal(self) -> None:
        pass

    def _cannot(self, hook: str) -> Any:
        raise NotApplicable(f"no proxy in the way: {hook} is tested on a standalone server")

    def sever_connections(self) -> None:
        self._cannot("sever_connections")

    def hang(self) -> None:
        self._cannot("hang")

    def drop_next_reply(self) -> None:
        self._cannot("drop_next_reply")

    def delay_next_request(self, seconds: float) -> None:
        self._cannot("delay_next_request")

    def delay_requests(self, seconds: float) -> None:
        self._cannot("delay_requests")

    def hold_requests(self) -> None:
        self._cannot("hold_requests")

    def restart_server(self) -> None:
        self._cannot("restart_server")

    def stop_server(self) -> None:
        self.server.stop()


class TlsStrategy(_Direct):
    """TLS with client certificates, RESP3, and a database of its own."""

    name = "redis-tls"

    def start_server(self) -> None:
        self._home = Home(self.name)
        self.certificates = Certificates(self._home.path)
        self.server, self._port = tls_server(self.certificates)
        self.server.start()

    def stop_server(self) -> None:
        super().stop_server()
        self._home.close()

    def url(self) -> str:
        files = self.certificates
        return (
            f"rediss://127.0.0.1:{self._port}/3?protocol=3&tls_ca={files.ca}"
            f"&tls_cert={files.client}&tls_key={files.client_key}&{self.fresh()}"
        )

    def _call(self, key: str, *command: str | int) -> Any:
        script = "redis.call('SELECT', 3); return redis.call(unpack(ARGV))"
        return self.server.call("EVAL", script, 0, *command)


class UnixStrategy(_Direct):
    name = "redis-unix"

    def start_server(self) -> None:
        # A path of a socket has 107 bytes at most: not in the server's own folder.
        self._home = Home(self.name)
        self._path = self._home.path / "r.sock"
        self.server = RedisServer(settings={"unixsocket": str(self._path)}).start()

    def stop_server(self) -> None:
        super().stop_server()
        self._home.close()

    def url(self) -> str:
        return f"redis+unix://{self._path}?{self.fresh()}"


class SentinelStrategy(_Direct):
    name = "redis-sentinel"

    def start_server(self) -> None:
        self.servers = RedisSentinel().start()
        self.server = self.servers.wait_master()

    def stop_server(self) -> None:
        self.servers.stop()

    def url(self) -> str:
        return f"{self.servers.url}?replicas=1&replica_timeout=1&{self.fresh()}"


class ClusterStrategy(_Direct):
    name = "redis-cluster"

    def start_server(self) -> None:
        self.servers = RedisCluster().start()

    def stop_server(self) -> None:
        self.servers.stop()

    def url(self) -> str:
        return f"{self.servers.url}?{self.fresh()}"

    def _keys(self) -> list[str]:
        masters = (node for node in self.servers.nodes if node.is_master())
        found: list[Any] = [node.call("KEYS", f"{self.keys.prefix}:*") for node in masters]
        return [str(key) for key in itertools.chain.from_iterable(found)]

    def _call(self, key: str, *command: str | int) -> Any:
        return self.servers.owner_of(key).call(*command)
