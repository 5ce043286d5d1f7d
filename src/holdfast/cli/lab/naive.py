"""What all naive forms share: ask, and if it is taken, ask again a little later.

Contract: a level's own class says how to ask once and how to give back; what goes wrong is there.
Partners: `levels/`.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from holdfast.cli.lab.resp import Redis, Reply

__all__ = ["COMPARE_AND_DELETE", "NaiveLock"]

COMPARE_AND_DELETE = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)


class NaiveLock(ABC):
    held = True  # nothing ever tells the holder
    on_lost: Callable[[], None] | None = None  # and nobody calls this
    fence: int | None = None  # and there is nothing a resource could check

    def __init__(self, redis: Redis, key: str, me: str, ttl: float) -> None:
        self.redis = redis
        self.key = key
        self.owner = f"{me}-{secrets.token_hex(4)}"
        self.ttl = ttl
        self.milliseconds = int(ttl * 1000)

    @abstractmethod
    def attempt(self) -> bool: ...

    @abstractmethod
    def release(self) -> bool | None: ...

    def acquire(self, patience: float) -> bool:
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            try:
                if self.attempt():
                    return True
            except TimeoutError:
                pass  # no answer: ask again
            time.sleep(0.02)  # polling: that is what there is without a line to wait in
        return False

    def set_if_absent(self) -> Reply:
        """SET with NX and PX: taken and given an end in one step."""
        return self.redis.call("SET", self.key, self.owner, "NX", "PX", self.milliseconds)
