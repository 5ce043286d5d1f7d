"""The redlock backend's strategy: three real masters, each behind a proxy that knows RESP.

A fault strikes all nodes alike, so that the store as a whole is as broken as a single one would be:
what a minority of broken nodes does is in `faults/test_redlock*.py`. Quarantine is off, since the
suite has no time to sit it out. Every test has a prefix of its own. Clients are the user of
docs/backends/redlock-acl.txt, who may do what that file says and nothing else.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

from holdfast.backends.redis.keys import Keys
from holdfast.backends.redlock.crew import ThreadCouncil
from holdfast.backends.redlock.loops import LoopCouncil
from holdfast.testing import FaultProxy
from holdfast.testing.conformance import Strategy
from tests.conformance.redis import ENCODED, PAGES, PASSWORD, about_locks
from tests.servers import RedisMasters, RedisServer

_numbers = itertools.count()

ACL = PAGES.joinpath("redlock-acl.txt").read_text().split()[1:]
"""The user's name, and what it may do: the words of ACL SETUSER."""


class RedlockStrategy(Strategy):
    name = "redlock"
    short_ttl = 0.3
    # A node has so long because the suite slows the way to all of them down.
    options = "quarantine=off&max_ttl=1000&node_timeout=2&heartbeat=0.3&poll=0.05"
    nodes: ClassVar[int] = 3
    masters: RedisMasters
    servers: list[RedisServer]
    proxies: list[FaultProxy]
    keys: Keys

    def start_server(self) -> None:
        user = " ".join(word.replace("PASSWORD", PASSWORD) for word in ACL)
        self.masters = RedisMasters(count=self.nodes, settings={"user": user}).start()
        self.servers = self.masters.nodes
        self.proxies = [
            FaultProxy(("127.0.0.1", server.port), framing="resp") for server in self.servers
        ]

    def stop_server(self) -> None:
        for proxy in self.proxies:
            proxy.close()
        self.masters.stop()

    def url(self) -> str:
        hosts = ",".join(f"{proxy.host}:{proxy.port}" for proxy in self.proxies)
        self.keys = Keys(f"holdfast:{next(_numbers)}")
        return f"redlock://{ACL[0]}:{ENCODED}@{hosts}/0?prefix={self.keys.prefix}&{self.options}"

    # -- on the way -------------------------------------------------------------------------------

    def heal(self) -> None:
        for proxy, server in zip(self.proxies, self.servers, strict=True):
            proxy.heal()
            server.resume()

    def sever_connections(self) -> None:
        for proxy in self.proxies:
            proxy.sever()

    def hang(self) -> None:
        for proxy in self.proxies:
            proxy.blackhole()

    def drop_next_reply(self) -> None:
        for proxy in self.proxies:
            proxy.drop_reply(to=about_locks)

    def delay_next_request(self, seconds: float) -> None:
        for proxy in self.proxies:
            proxy.delay_request(seconds, matching=about_locks)

    def delay_requests(self, seconds: float) -> None:
        for proxy in self.proxies:
            proxy.delay(seconds, "to_server")

    def hold_requests(self) -> None:
        for proxy in self.proxies:
            proxy.hold("to_server")

    def release_requests(self) -> None:
        for proxy in self.proxies:
            proxy.release_held()

    def requests(self) -> int:
        return _count.requests

    # -- in the store -----------------------------------------------------------------------------

    def pause_server(self) -> None:
        for server in self.servers:
            server.pause()

    def resume_server(self) -> None:
        for server in self.servers:
            server.resume()

    def restart_server(self) -> None:
        for server in self.servers:
            server.restart()

    def expire_now(self, name: str) -> None:
        for server in self.servers:
            server.call("PEXPIRE", self.keys.lock(name), 0)

    def steal(self, name: str) -> None:
        lock = self.keys.lock(name)
        for server in self.servers:
            server.call("DEL", lock, f"{lock}:f")

    def leftovers(self) -> list[str]:
        left: list[str] = []
        for server in self.servers:
            keys = server.call("KEYS", f"{self.keys.prefix}:*")
            assert isinstance(keys, list)
            for key in keys:
                ttl = server.call("PTTL", str(key))
                assert ttl != -1, f"{key} stays for ever"
                if not str(key).endswith("}:f") and ttl != -2:
                    left.append(f"{key} at {server.port}")
        return left


class _Count:
    """How often all nodes were asked at once, by all clients of this process."""

    def __init__(self) -> None:
        self.requests = 0
        for council in (ThreadCouncil, LoopCouncil):
            self._watch(council)

    def _watch(self, council: Any) -> None:
        ask = council.ask

        async def counted(*args: Any) -> Any:
            self.requests += 1
            return await ask(*args)

        council.ask = counted


_count = _Count()
