"""The redis backend's strategy: a real redis-server behind a proxy that knows RESP.

Every test has a prefix of its own, so that one server serves them all. Faults on the way are the
proxy's; hooks that reach into the store use a connection of their own, past the proxy. Clients are
the user of docs/backends/redis-acl.txt, who may do what that file says and nothing else.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, ClassVar

import redis

from holdfast.backends.redis.keys import Keys, LiteralKeys
from holdfast.backends.redis.loops import LoopTransport
from holdfast.backends.redis.threads import ThreadTransport
from holdfast.core.backend import Backend
from holdfast.core.presence import Detectable
from holdfast.core.vouching import Vouched
from holdfast.testing import FaultProxy
from holdfast.testing.conformance import Strategy
from tests.servers import RedisServer

_numbers = itertools.count()

PAGES = Path(__file__).parents[2] / "docs" / "backends"
ACL = PAGES.joinpath("redis-acl.txt").read_text().split()[1:]
"""The user's name, and what it may do: the words of ACL SETUSER."""

DIALECTS_ACL = PAGES.joinpath("redis-dialects-acl.txt").read_text().split()[1:]

PASSWORD = "p%w/d:@"
ENCODED = "p%25w%2Fd%3A%40"


def add_user(server: RedisServer) -> None:
    server.call("ACL", "SETUSER", *(word.replace("PASSWORD", PASSWORD) for word in ACL))


def about_locks(frame: bytes) -> bool:
    """A request that a lock or a cell depends on: scripts, not greetings."""
    return b"\r\nEVAL" in frame[:24]


# What a lock's string says is written down in scripts/lines.lua.
_EXPIRE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local value = redis.call('GET', KEYS[1])
local at = value and ({ x = 10, c = 12 })[string.sub(value, 1, 1)]
if at and struct.unpack('<d', value, at) > 0 then
  local new = string.sub(value, 1, at - 1) .. struct.pack('<d', now) .. string.sub(value, at + 8)
  redis.call('SET', KEYS[1], new, 'KEEPTTL')
end
for _, owner in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  redis.call('ZADD', KEYS[2], string.format('%.0f', now), owner)
end
"""
_OVER = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local value = redis.call('GET', KEYS[1])
local kind = string.sub(value, 1, 1)
if kind == 'f' then return 1 end
if kind == 'x' then return struct.unpack('<d', value, 10) <= now and 1 or 0 end
local _, expiry, number, grave = struct.unpack('<dddd', value, 4)
return expiry <= now and number == 0 and grave <= now and 1 or 0
"""


class RedisStrategy(Strategy):
    name = "redis"
    short_ttl = 0.3
    claim_window = 1.0
    options = "window=1&heartbeat=0.3"
    settings: ClassVar[dict[str, str]] = {}
    acl: ClassVar[list[str]] = ACL
    server: RedisServer
    proxy: FaultProxy
    keys: Keys

    def start_server(self) -> None:
        # In its configuration, so that a server that was restarted knows it, too.
        user = " ".join(word.replace("PASSWORD", PASSWORD) for word in self.acl)
        self.server = RedisServer(settings={**self.settings, "user": user}).start()
        self.proxy = FaultProxy(("127.0.0.1", self.server.port), framing="resp")

    def stop_server(self) -> None:
        self.proxy.close()
        self.server.stop()

    def url(self) -> str:
        login = f"{ACL[0]}:{ENCODED}"
        return f"redis://{login}@{self.proxy.host}:{self.proxy.port}/0?{self.fresh()}"

    def fresh(self) -> str:
        """The options of a URL with a prefix that nobody has used."""
        self.keys = Keys(f"holdfast:{next(_numbers)}")
        return f"prefix={self.keys.prefix}&{self.options}"

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
        self._call(lock, "EVAL", _EXPIRE, 2, lock, f"{lock}:h")

    def steal(self, name: str) -> None:
        lock = self.keys.lock(name)
        self._call(lock, "DEL", lock, *(f"{lock}:{letter}" for letter in "qdcht"))

    def leftovers(self) -> list[str]:
        left: list[str] = []
        for key in self._keys():
            if key.endswith(":v"):
                continue  # a cell
            if not key.endswith("}"):
                left.append(key)
                continue
            # It is kept for its last token; what is over is cleared away by who comes next.
            if not self._call(key, "EVAL", _OVER, 1, key):
                left.append(f"{key}: {self._call(key, 'GET', key)}")
        return left

    def _keys(self) -> list[str]:
        return self._list("", "KEYS", f"{self.keys.prefix}:*")

    def _call(self, key: str, *command: str | int) -> Any:
        """A command at whoever keeps this key."""
        return self.server.call(*command)

    def _list(self, key: str, *command: str | int) -> list[str]:
        reply = self._call(key, *command)
        assert isinstance(reply, list)
        return [str(item) for item in reply]


class PresentStrategy(RedisStrategy):
    """Clients that the crash detector may watch, with a grace longer than any pause here."""

    name = "redis-present"
    options = f"{RedisStrategy.options}&crash_grace=30"

    def backend(self, url: str) -> Backend:
        inner = super().backend(url.replace("&crash_grace=30", ""))
        assert isinstance(inner, Detectable)
        return Vouched(inner, f"{next(_numbers)}/30", 30.0)


class LiteralStrategy(RedisStrategy):
    """Locks whose keys are their names: every test has a database of its own."""

    dialect: str
    claim_window = 0.0
    options = "heartbeat=0.3&poll=0.05"
    settings: ClassVar[dict[str, str]] = {"databases": "10000"}
    acl: ClassVar[list[str]] = DIALECTS_ACL
    db: redis.Redis

    def url(self) -> str:
        number = next(_numbers)
        self.keys = self.literal = LiteralKeys(f"holdfast:{number}", False)
        self.db = redis.Redis(port=self.server.port, db=number, decode_responses=True)
        where = f"redis://{self.acl[0]}:{ENCODED}@{self.proxy.host}:{self.proxy.port}/{number}"
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
        seconds, microseconds = db.time()
        return int(db.hget(key, "g") or 0) <= seconds * 1_000_000 + microseconds


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
        quick = transport.quick
        if quick is not None:

            def counted_quick(*args: Any) -> Any:
                answer = quick(*args)
                self.requests += answer is not None
                return answer

            transport.quick = counted_quick


_count = _Count()
