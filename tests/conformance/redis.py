"""The redis backend's strategy: a real redis-server behind a proxy that knows RESP.

Every test has a prefix of its own, so that one server serves them all. Faults on the way are the
proxy's; hooks that reach into the store use a connection of their own, past the proxy.
"""

from __future__ import annotations

import itertools
from typing import Any

import redis

from holdfast.backends.redis.keys import Keys, LiteralKeys
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
        if self.server.call("HEXISTS", lock, "e"):
            self.server.call("HSET", lock, "e", now)
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
            flat = self._list("HGETALL", key)
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            # It is kept for its last token; what is over is cleared away by who comes next.
            fields.pop("f", None)
            if float(fields.get("g", 0)) <= self._clock():
                fields.pop("g", None)
            if float(fields.get("e", "inf")) <= self._clock():
                fields = {name: text for name, text in fields.items() if name not in "moeaiu"}
            if fields:
                left.append(f"{key}: {' '.join(fields)}")
        return left

    def _clock(self) -> int:
        seconds, micros = self._list("TIME")
        return int(seconds) * 1_000_000 + int(micros)

    def _list(self, *command: str | int) -> list[str]:
        reply: Any = self.server.call(*command)
        assert isinstance(reply, list)
        return [str(item) for item in reply]


class LiteralStrategy(RedisStrategy):
    """Locks whose keys are their names: every test has a database of its own."""

    dialect: str
    claim_window = 0.0
    options = "heartbeat=0.3&poll=0.05"
    db: redis.Redis

    def start_server(self) -> None:
        self.server = RedisServer(settings={"databases": "10000"}).start()
        self.proxy = FaultProxy(("127.0.0.1", self.server.port), framing="resp")

    def url(self) -> str:
        number = next(_numbers)
        self.keys = self.literal = LiteralKeys(f"t{number}", False)
        self.db = redis.Redis(port=self.server.port, db=number, decode_responses=True)
        where = f"redis://{self.proxy.host}:{self.proxy.port}/{number}"
        return f"{where}?dialect={self.dialect}&prefix={self.keys.prefix}&{self.options}"

    def expire_now(self, name: str) -> None:
        with self.db as db:
            db.pexpire(name, 0)

    def steal(self, name: str) -> None:
        with self.db as db:
            db.delete(name, self.literal.beside(name, "s"), self.literal.beside(name, "t"))

    def leftovers(self) -> list[str]:
        left: list[str] = []
        with self.db as db:
            for key in db.keys("*"):
                ttl = db.ttl(key)
                if key.endswith(":v") or ttl == -2:
                    continue  # a cell; or it has just ended
                assert ttl != -1, f"{key} stays for ever"
                fields = set(db.hkeys(key)) if key.endswith(":s") else {"?"}
                if fields - {"f"} and not (fields == {"f", "g"} and self._over(db, key)):
                    left.append(f"{key}: {' '.join(fields)}")
        return left

    def _over(self, db: redis.Redis, key: str) -> bool:
        return int(db.hget(key, "g") or 0) <= self._clock()


class PlainStrategy(LiteralStrategy):
    name = "redis-plain"
    dialect = "plain"


class RedissonStrategy(LiteralStrategy):
    name = "redis-redisson"
    dialect = "redisson"


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


_count = _Count()
