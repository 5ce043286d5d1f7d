"""The redis backend's strategy: a real redis-server behind a proxy that knows RESP.

Every test has a prefix of its own, so that one server serves them all. Faults on the way are the
proxy's; hooks that reach into the store use a connection of their own, past the proxy.
"""

from __future__ import annotations

import itertools
from typing import Any

from holdfast.backends.redis.keys import Keys
from holdfast.backends.redis.loops import LoopTransport
from holdfast.backends.redis.threads import ThreadTransport
from holdfast.testing import FaultProxy
from holdfast.testing.conformance import Strategy
from tests.servers import RedisServer

_numbers = itertools.count()


def about_locks(frame: bytes) -> bool:
    """A request that a lock or a cell depends on: scripts, not greetings."""
    return b"\r\nEVAL" in frame[:24]


class RedisStrategy(Strategy):
    name = "redis"
    short_ttl = 0.3
    claim_window = 1.0
    options = "window=1&heartbeat=0.3"
    server: RedisServer
    proxy: FaultProxy
    keys: Keys

    def start_server(self) -> None:
        self.server = RedisServer().start()
        self.proxy = FaultProxy(("127.0.0.1", self.server.port), framing="resp")

    def stop_server(self) -> None:
        self.proxy.close()
        self.server.stop()

    def url(self) -> str:
        prefix = f"t{next(_numbers)}"
        self.keys = Keys(prefix)
        return f"redis://{self.proxy.host}:{self.proxy.port}/0?prefix={prefix}&{self.options}"

    # -- on the way -------------------------------------------------------------------------------

    def heal(self) -> None:
        self.proxy.heal()
        self.server.resume()

    def sever_connections(self) -> None:
        self.proxy.sever()

    def hang(self) -> None:
        self.proxy.blackhole()

    def drop_next_reply(self) -> None:
        self.proxy.drop_reply(to=about_locks)

    def delay_next_request(self, seconds: float) -> None:
        self.proxy.delay_request(seconds, matching=about_locks)

    def delay_requests(self, seconds: float) -> None:
        self.proxy.delay(seconds, "to_server")

    def hold_requests(self) -> None:
        self.proxy.hold("to_server")

    def release_requests(self) -> None:
        self.proxy.release_held()

    def requests(self) -> int:
        return _count.requests

    # -- in the store -----------------------------------------------------------------------------

    def pause_server(self) -> None:
        self.server.pause()

    def resume_server(self) -> None:
        self.server.resume()

    def restart_server(self) -> None:
        self.server.restart()

    def expire_now(self, name: str) -> None:
        lock = self.keys.lock(name)
        now = self._clock()
        value = self.server.call("GET", lock)
        if isinstance(value, str):
            # x:token:expiry:... or c:mode:claimed:token:expiry:... (scripts/lines.lua)
            words = value.split(":")
            at = {"x": 2, "c": 4}.get(words[0])
            if at is not None and int(words[at]):
                words[at] = str(now)
                self.server.call("SET", lock, ":".join(words), "KEEPTTL")
        for owner in self._list("ZRANGE", f"{lock}:h", 0, -1):
            self.server.call("ZADD", f"{lock}:h", now, owner)

    def steal(self, name: str) -> None:
        lock = self.keys.lock(name)
        self.server.call("DEL", lock, *(f"{lock}:{letter}" for letter in "qdcht"))

    def leftovers(self) -> list[str]:
        left: list[str] = []
        for key in self._list("KEYS", f"{self.keys.prefix}:*"):
            if key.endswith(":v"):
                continue  # a cell
            if not key.endswith("}"):
                left.append(key)
                continue
            # It is kept for its last token; what is over is cleared away by who comes next.
            words = str(self.server.call("GET", key)).split(":")
            if words[0] == "f" or (words[0] == "x" and int(words[2]) <= self._clock()):
                continue
            over = words[0] == "c" and max(int(words[4]), int(words[6])) <= self._clock()
            if not (over and int(words[5]) == 0):
                left.append(f"{key}: {words[0]}")
        return left

    def _clock(self) -> int:
        seconds, micros = self._list("TIME")
        return int(seconds) * 1_000_000 + int(micros)

    def _list(self, *command: str | int) -> list[str]:
        reply: Any = self.server.call(*command)
        assert isinstance(reply, list)
        return [str(item) for item in reply]


class _Count:
    """How often a server was asked, by all clients of this process: a batch is one request."""

    def __init__(self) -> None:
        self.requests = 0
        for transport in (ThreadTransport, LoopTransport):
            self._watch(transport)

    def _watch(self, transport: Any) -> None:
        ask = transport.ask

        async def counted(*args: Any) -> Any:
            self.requests += 1
            return await ask(*args)

        transport.ask = counted
        quick = transport.quick
        if quick is not None:

            def counted_quick(*args: Any) -> Any:
                answer = quick(*args)
                self.requests += answer is not None
                return answer

            transport.quick = counted_quick


_count = _Count()
