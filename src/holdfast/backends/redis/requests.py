"""Spells requests: everything of a command that follows the script's name, as bytes.

Contract: what stays the same from one acquire to the next is packed once: a name's keys, and the
shape of its last claim. Partner: `scripts/*.lua`, whose headers say what stands where.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.backends.common import info_text
from holdfast.backends.redis.keys import Keys, slot_of
from holdfast.backends.redis.wire import pack_word
from holdfast.types import Claim, Mode

__all__ = ["LETTER_OF", "MODE_OF", "LineRequests", "Requests", "microseconds"]

LETTER_OF = {Mode.EXCLUSIVE: "x", Mode.SHARED: "s", Mode.PERMITS: "p"}
MODE_OF = {letter: mode for mode, letter in LETTER_OF.items()}

MOST = 4096
"""So many names are remembered; beyond, they are spelled anew."""


def microseconds(seconds: float) -> str:
    return str(round(seconds * 1_000_000))


class Shape(NamedTuple):
    """The end of an attempt, and what it was made from. Never changed: threads share it."""

    info: Mapping[str, str]
    key: tuple[Any, ...]
    tail: bytes


class Spelling:
    """One name: its keys and slot, and the shape of its last attempt."""

    __slots__ = ("keys", "shape", "slot")

    def __init__(self, keys: bytes, slot: int) -> None:
        self.keys = keys
        self.slot = slot
        self.shape: Shape | None = None


class Requests:
    """What every dialect asks."""

    def __init__(self, keys: Keys, memory: float) -> None:
        self.keys = keys
        self._memory = microseconds(memory)
        self._last_words = b""  # of those who leave
        self._spellings: dict[str, Spelling] = {}

    def spell(self, name: str) -> Spelling:
        spelling = self._spellings.get(name)
        if spelling is None:
            if len(self._spellings) >= MOST:
                self._spellings.clear()
            spelling = Spelling(self.keys.packed(name), slot_of(self.keys.lock(name)))
            self._spellings[name] = spelling
        return spelling

    def renew(self, claim: Claim) -> tuple[bytes, int]:
        spelling = self.spell(claim.name)
        ttl = pack_word(microseconds(claim.ttl))
        memory = pack_word(self._memory)
        return b"".join((spelling.keys, pack_word(claim.owner), ttl, memory)), spelling.slot

    def leave(self, claim: Claim, tombstone: bool) -> tuple[bytes, int]:
        spelling = self._spellings.get(claim.name) or self.spell(claim.name)
        owner = claim.owner
        grave = pack_word(microseconds(claim.ttl)) if tombstone else b"$1\r\n0\r\n"
        return b"%b$%d\r\n%b\r\n%b%b" % (
            spelling.keys, len(owner), owner.encode(), grave, self._last_words,
        ), spelling.slot  # fmt: skip

    def evict(self, name: str) -> tuple[bytes, int]:
        spelling = self.spell(name)
        return spelling.keys + pack_word(self._memory), spelling.slot

    def reap(self, name: str, owner: str, stamp: int) -> tuple[bytes, int]:
        spelling = self.spell(name)
        words = owner, str(stamp), self._memory
        return spelling.keys + b"".join(map(pack_word, words)), spelling.slot

    def overview(self, name: str) -> tuple[bytes, int]:
        spelling = self.spell(name)
        return spelling.keys, spelling.slot


class LineRequests(Requests):
    """And what a store is asked that keeps lines."""

    def __init__(self, keys: Keys, channel: str, window: float, memory: float) -> None:
        super().__init__(keys, memory)
        self._channel = pack_word(channel)
        self._window = microseconds(window)
        self._least = math.ceil(memory * 1000)
        self._last_words = pack_word(self._memory) + pack_word(str(self._least))

    def attempt(self, claim: Claim, queue: bool, hearing: str) -> tuple[bytes, int]:
        spelling = self._spellings.get(claim.name) or self.spell(claim.name)
        owner, shape = claim.owner, spelling.shape
        key = claim.mode, claim.ttl, claim.fair, claim.permits, claim.limit, queue, hearing
        if shape is None or shape.info is not claim.info or shape.key != key:
            shape = spelling.shape = Shape(claim.info, key, self._tail(claim, queue, hearing))
        return b"%b$%d\r\n%b\r\n%b" % (
            spelling.keys, len(owner), owner.encode(), shape.tail,
        ), spelling.slot  # fmt: skip

    def _tail(self, claim: Claim, queue: bool, hearing: str) -> bytes:
        kept = max(self._least, math.ceil(claim.ttl * 1000))
        rest = (
            claim.permits, claim.limit, int(claim.fair), int(queue), self._window, hearing,
            self._memory,
        )  # fmt: skip
        words = LETTER_OF[claim.mode], microseconds(claim.ttl), info_text(claim.info), str(kept)
        tail = b"".join(map(pack_word, words)) + self._channel
        return tail + pack_word(":".join(map(str, rest)))

    def together(self, claims: Sequence[Claim]) -> tuple[bytes, int]:
        """All of them at once, where one server has them; their ttl and info are the same."""
        first = claims[0]
        kept = max(self._least, math.ceil(first.ttl * 1000))
        words = [
            *(self.keys.lock(claim.name) for claim in claims),
            *(microseconds(first.ttl), info_text(first.info), str(kept)),
            *(claim.owner for claim in claims),
        ]
        return b"".join(map(pack_word, words)), self.spell(first.name).slot

    def look(self, claim: Claim, hearing: str) -> tuple[bytes, int]:
        spelling = self.spell(claim.name)
        ttl = pack_word(microseconds(claim.ttl))
        return b"".join((
            spelling.keys, pack_word(claim.owner), ttl, pack_word(self._window), self._channel,
            pack_word(hearing), pack_word(self._memory),
        )), spelling.slot  # fmt: skip
