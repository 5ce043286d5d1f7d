"""Names and keys: the one place that knows how a lock is spelled in Redis.

Contract: pure, and injective both ways: whatever a listing brings is a name again, or none of ours.
A lock's keys are `PREFIX:{NAME}` and `PREFIX:{NAME}:` with a letter. The braces make a cluster keep
them in one slot. In the name `%`, `{` and `}` are written as %25, %7B and %7D, so that the first
closing brace is ours and no two names share a key. Channels are `PREFIX:call:` with a random id.
Where others must understand a lock, its key is the name itself: `LiteralKeys`. Partners:
`requests.py` and `redlock/letters.py`, which ask about them.
"""

from __future__ import annotations

import binascii
import re

from holdfast.backends.common import name_of, spelled
from holdfast.backends.redis.wire import pack_word
from holdfast.errors import Misconfigured

__all__ = ["LETTERS", "Keys", "LiteralKeys", "glob", "slot_of"]

LETTERS = ("q", "d", "c", "h", "t")  # queue, entries, clients, holders, graves: see lines.lua
SLOTS = 16384

MARKS = re.compile("[%{}]")


class Keys:
    """How one client spells names."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def lock(self, name: str) -> str:
        return f"{self.prefix}:{{{spelled(name, MARKS)}}}"

    def packed(self, name: str) -> bytes:
        """All of a lock's keys, as words of a command."""
        lock = self.lock(name)
        return b"".join(map(pack_word, (lock, *(f"{lock}:{letter}" for letter in LETTERS))))

    def cell(self, name: str) -> str:
        return f"{Keys.lock(self, name)}:v"

    def cell_channel(self, name: str) -> str:
        return f"{self.prefix}:cell:{{{spelled(name, MARKS)}}}"

    def pattern(self, prefix: str) -> str:
        """For SCAN: the locks whose names begin so."""
        return f"{glob(self.prefix)}:{{{glob(spelled(prefix, MARKS))}*}}"

    def name(self, key: bytes) -> str | None:
        """The name of a lock's first key; None if it is somebody else's."""
        try:
            text = key.decode()
        except UnicodeDecodeError:
            return None
        start = f"{self.prefix}:{{"
        if not text.startswith(start) or not text.endswith("}"):
            return None
        return name_of(text[len(start) : -1], MARKS)


class LiteralKeys(Keys):
    """A lock's key is its name. Beside it are `PREFIX:{NAME}:s` and `:t` (see literal.lua), or
    `PREFIX::NAME:s` for a name with an opening brace, whose own braces then decide the slot."""

    def __init__(self, prefix: str, sharded: bool) -> None:
        super().__init__(prefix)
        self._sharded = sharded

    def lock(self, name: str) -> str:
        return name

    def beside(self, name: str, letter: str) -> str:
        tagged = f":{name}" if "{" in name else f"{{{name}}}"
        return f"{self.prefix}:{tagged}:{letter}"

    def packed(self, name: str) -> bytes:
        beside = self.beside(name, "s")
        if name.startswith(f"{self.prefix}:"):
            raise Misconfigured(
                f"the lock {name!r} would be a key among holdfast's own, which begin with "
                f"{self.prefix}: in this Redis; choose another name, or another prefix="
            )
        if self._sharded and slot_of(beside) != slot_of(name):
            raise Misconfigured(
                f"the lock {name!r} cannot be used in a Redis Cluster, because its braces are not "
                "a pair with something between: no other key can be kept in its slot"
            )
        return b"".join(map(pack_word, (name, beside, self.beside(name, "t"))))

    def pattern(self, prefix: str) -> str:
        return f"{glob(self.prefix)}:*:s"

    def name(self, key: bytes) -> str | None:
        start = f"{self.prefix}:"
        try:
            text = key.decode().removeprefix(start).removesuffix(":s")
        except UnicodeDecodeError:
            return None
        name = text[1:] if text.startswith(":") else text[1:-1]
        return name if name and self.beside(name, "s").encode() == key else None


def glob(text: str) -> str:
    """As a pattern that matches only itself."""
    return re.sub(r"([*?\[\]\\^-])", r"\\\1", text)


def slot_of(key: str) -> int:
    """The cluster's slot of a key: that of what stands in its first braces, if anything does."""
    tag = key.partition("{")[2].partition("}")
    counts = tag[0] if tag[0] and tag[1] else key
    return binascii.crc_hqx(counts.encode(), 0) % SLOTS
