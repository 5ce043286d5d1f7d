"""A client that does to a Redis what Redisson's RLock does, step by step.

Contract: the keys, fields, channels and results of `RLock` (lock, unlock, forceUnlock, the
watchdog's renewal), with scripts of our own. It also waits as Redisson does: try, subscribe, try
again, then wait for a message or for the end of the lease, whichever is first.
"""

from __future__ import annotations

import time
import uuid

import redis

ACQUIRE = """
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return nil
end
return redis.call('PTTL', KEYS[1])
"""

UNLOCK = """
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return nil end
if redis.call('HINCRBY', KEYS[1], ARGV[2], -1) > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[2], '0')
return 1
"""

RENEW = """
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""

FORCE_UNLOCK = """
if redis.call('DEL', KEYS[1]) == 0 then return 0 end
redis.call('PUBLISH', KEYS[2], '0')
return 1
"""


class RLock:
    """`RedissonClient.getLock(name)`, of one thread of one client."""

    def __init__(self, client: redis.Redis, name: str, thread: int = 31) -> None:
        self._client = client
        self.name = name
        self.owner = f"{uuid.uuid4()}:{thread}"
        tagged = name if "{" in name else f"{{{name}}}"
        self.channel = f"redisson_lock__channel:{tagged}"

    def _run(self, script: str, lease: float) -> int | None:
        answer = self._client.eval(
            script, 2, self.name, self.channel, str(round(lease * 1000)), self.owner
        )
        assert answer is None or isinstance(answer, int)
        return answer

    def try_lock(self, lease: float = 30.0) -> int | None:
        """None: it is ours, once more; else how many milliseconds the holder has left."""
        return self._run(ACQUIRE, lease)

    def lock(self, timeout: float, lease: float = 30.0) -> bool:
        end = time.monotonic() + timeout
        if self.try_lock(lease) is None:
            return True
        with self._client.pubsub() as ear:  # type: ignore[no-untyped-call]
            ear.subscribe(self.channel)
            while True:
                left = self.try_lock(lease)
                if left is None:
                    return True
                pause = end - time.monotonic()
                if pause <= 0:
                    return False
                message_by = time.monotonic() + (min(pause, left / 1000) if left >= 0 else pause)
                while (rest := message_by - time.monotonic()) > 0:
                    message = ear.get_message(timeout=rest)
                    if message is not None and message["type"] == "message":
                        assert message["data"] in (b"0", "0")
                        break

    def unlock(self, lease: float = 30.0) -> int | None:
        """None: it was not ours; 0: still is, after one unlock less; 1: it is free."""
        return self._run(UNLOCK, lease)

    def renew(self, lease: float = 30.0) -> bool:
        return self._run(RENEW, lease) == 1

    def force_unlock(self) -> bool:
        return self._run(FORCE_UNLOCK, 30.0) == 1
