"""Names and keys: the one place that knows how a lock is spelled in Redis.

A lock's keys are `PREFIX:{NAME}` and `PREFIX:{NAME}:` with a letter. The braces make a cluster keep
them in one slot. In the name `%`, `{` and `}` are written as %25, %7B and %7D, so that the first
closing brace is ours and no two names share a key. Channels are `PREFIX:call:` with a random id.
"""

from __future__ import annotations

import binascii
import re

from holdfast.backends.redis.wire import pack_word

__all__ = ["Keys", "glob", "slot_of"]

LETTERS = ("q", "d", "c", "h", "t")  # queue, entries, clients, holders, graves: see lines.lua
SLOTS = 16384

_ESCAPES = {"%": "%25", "{": "%7B", "}": "%7D"}
_UNESCAPES = {text: mark for mark, text in _ESCAPES.items()}


def _escape(name: str) -> str:
    return re.sub(r"[%{}]", lambda found: _ESCAPES[found.group()], name)


class Keys:
    """How one client spells names."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def lock(self, name: str) -> str:
        return f"{self.prefix}:{{{_escape(name)}}}"

    def packed(self, name: str) -> bytes:
        """All of a lock's keys, as words of a command."""
        lock = self.lock(name)
        return b"".join(map(pack_word, (lock, *(f"{lock}:{letter}" for letter in LETTERS))))

    def cell(self, name: str) -> str:
        return f"{self.lock(name)}:v"

    def cell_channel(self, name: str) -> str:
        return f"{self.prefix}:cell:{{{_escape(name)}}}"

    def pattern(self, prefix: str) -> str:
        """For SCAN: the locks whose names begin so."""
        return f"{glob(self.prefix)}:{{{glob(_escape(prefix))}*}}"

    def name(self, key: bytes) -> str | None:
        """The name of a lock's first key; None if it is somebody else's."""
        try:
            text = key.decode()
        except UnicodeDecodeError:
            return None
        start = f"{self.prefix}:{{"
        if not text.startswith(start) or not text.endswith("}"):
            return None
        escaped = text[len(start) : -1]
        return re.sub("%25|%7B|%7D", lambda found: _UNESCAPES[found.group()], escaped)


def glob(text: str) -> str:
    """As a pattern that matches only itself."""
    return re.sub(r"([*?\[\]\\^-])", r"\\\1", text)


def slot_of(key: str) -> int:
    """The cluster's slot of a key with braces."""
    tag = key.partition("{")[2].partition("}")[0]
    return binascii.crc_hqx(tag.encode(), 0) % SLOTS
