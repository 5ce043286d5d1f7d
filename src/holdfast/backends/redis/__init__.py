"""Locks in Redis: one script for each step, a call to the one whose turn it is."""

from holdfast.backends.redis.url import RedisBackend

__all__ = ["RedisBackend"]
