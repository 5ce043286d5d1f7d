"""A key in Redis that refuses stale tokens: comparing, writing and noting in one script.

Contract: `client` is any client with redis-py's `eval` (redis-py itself, its cluster client,
valkey-py, fakeredis). The token is in a key beside, in the same slot; readers read the key itself,
as before. Hazards: Lua's numbers are doubles, so tokens are compared as text, by length and then by
digits; whoever writes without the gate is not seen by it; and what Redis forgets (an eviction, a
failover), the gate forgets: see docs/how-to/protect-the-resource-with-fencing.md.
Partner: `fencing/aio.py`, the same with `await`.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import Misconfigured
from holdfast.fencing.tokens import Token, stale, token_of

__all__ = ["Key", "RedisKey"]

# KEYS: the key, its token's. ARGV: token, milliseconds to keep it (0: for ever), command, arguments
# of the command after the key. A command that fails leaves the token as it was.
SCRIPT = """\
local seen = redis.call('GET', KEYS[2])
local token = ARGV[1]
if seen and (#seen > #token or (#seen == #token and seen > token)) then
  return {0, seen}
end
local answer
if ARGV[3] then
  answer = redis.call(ARGV[3], KEYS[1], unpack(ARGV, 4))
end
if ARGV[2] == '0' then
  redis.call('SET', KEYS[2], token)
else
  redis.call('SET', KEYS[2], token, 'PX', ARGV[2])
end
return {1, answer}
"""


class Key:
    """What is said to Redis, and what its answer means; nothing is sent here."""

    def __init__(
        self, key: str | bytes, fence_key: str | bytes | None, forget_after: float | None
    ) -> None:
        self.key = key
        self.fence_key = beside(key) if fence_key is None else fence_key
        self._keep = _milliseconds("forget_after", forget_after)

    def request(self, token: int, command: tuple[Any, ...]) -> tuple[Any, ...]:
        return (SCRIPT, 2, self.key, self.fence_key, str(token), self._keep, *command)

    def judge(self, token: int, answer: Any) -> Any:
        passed, *rest = answer
        if not passed:
            raise stale(f"Redis key {_shown(self.key)!r}", token, int(rest[0]))
        return rest[0] if rest else None

    def set(self, value: Any, ttl: float | None) -> tuple[Any, ...]:
        if ttl is None:
            return ("SET", value)
        return ("SET", value, "PX", _milliseconds("ttl", ttl))


class RedisKey:
    """One key, and its gate. `fence_key` is where its token is kept (`{KEY}:fence` if not said);
    `forget_after` lets the token expire so many seconds after the last write: longer than any
    writer can be late, or not at all."""

    def __init__(
        self,
        client: Any,
        key: str | bytes,
        *,
        fence_key: str | bytes | None = None,
        forget_after: float | None = None,
    ) -> None:
        self._client = client
        self._key = Key(key, fence_key, forget_after)

    def set(self, lease: Token, value: str | bytes | int | float, ttl: float | None = None) -> None:
        """SET, for `ttl` seconds or for ever; `StaleFence` if a newer token has written before."""
        self.call(lease, *self._key.set(value, ttl))

    def delete(self, lease: Token) -> bool:
        """DEL; whether there was something. The token is kept."""
        return bool(self.call(lease, "DEL"))

    def call(self, lease: Token, command: str, *arguments: str | bytes | int | float) -> Any:
        """Any command that writes this one key and names it first: `call(lease, "HSET", "balance",
        150)`. Returns Redis' answer as the client passes it on from a script."""
        token = token_of(lease)
        return self._key.judge(
            token, self._client.eval(*self._key.request(token, (command, *arguments)))
        )

    def check(self, lease: Token) -> None:
        """Compare and note, and write nothing: older tokens are refused from now on."""
        token = token_of(lease)
        self._key.judge(token, self._client.eval(*self._key.request(token, ())))

    def highest(self) -> int:
        """The highest token that was seen; 0 before the first."""
        return int(self._client.get(self._key.fence_key) or 0)


def beside(key: str | bytes) -> str | bytes:
    """A key in the same slot of a cluster: of the same hash tag, or with the key as its tag."""
    text = key if isinstance(key, str) else key.decode("latin-1")
    start = text.find("{")
    end = text.find("}", start + 1) if start >= 0 else -1
    if start == 0 and end == len(text) - 1 > 1:
        name = f"{text}::fence"  # with one colon it would be that of the key without braces
    elif end > start + 1:
        name = f"{text}:fence"
    elif "}" not in text:
        name = f"{{{text}}}:fence"
    else:
        raise Misconfigured(
            f"no key beside {_shown(key)!r} is surely in the same slot of a cluster, because of "
            "its braces: say fence_key="
        )
    return name if isinstance(key, str) else name.encode("latin-1")


def _milliseconds(option: str, seconds: float | None) -> int:
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not 0.001 <= seconds <= 1e11:
        raise Misconfigured(f"{option}={seconds!r:.80}: seconds, a millisecond at least, or None")
    return round(seconds * 1000)


def _shown(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
