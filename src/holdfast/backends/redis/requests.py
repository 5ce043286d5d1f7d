"""Spells requests: everything of a command that follows the script's name, as bytes.

Contract: what stays the same from one acquire to the next is packed once: a name's keys, and the
shape of its last claim. Partner: `scripts/*.lua`, whose headers say what stands where.
"""

from __future__ import annotations

import json

from holdfast.backends.redis.keys import Keys, slot_of
from holdfast.backends.redis.wire import pack_word
from holdfast.types import Claim, Mode

__all__ = [
    "LETTER_OF",
    "MODE_OF",
    "LineRequests",
    "Requests",
    "Spelling",
    "microseconds",
    "packed_info",
]

LETTER_OF = {Mode.EXCLUSIVE: "x", Mode.SHARED: "s", Mode.PERMITS: "p"}
MODE_OF = {letter: mode for mode, letter in LETTER_OF.items()}

MOST = 4096
"""So many names are remembered; beyond, they are spelled anew."""


def microseconds(seconds: float) -> str:
    return str(round(seconds * 1_000_000))


def packed_info(claim: Claim) -> bytes:
    return pack_word(json.dumps(dict(claim.info), separators=(",", ":")))


class Shape:
    """The end of an attempt, and what it was made from. Never changed: threads share it."""

    __slots__ = ("fair", "hearing", "info", "limit", "mode", "permits", "queue", "tail", "ttl")

    def __init__(self, claim: Claim, queue: bool, hearing: str, tail: bytes) -> None:
        self.mode, self.permits, self.limit = claim.mode, claim.permits, claim.limit
        self.ttl, self.fair, self.info = claim.ttl, claim.fair, claim.info
        self.queue, self.hearing, self.tail = queue, hearing, tail


class Spelling:
    """One name: its keys and slot, and the shape of its last attempt."""

    __slots__ = ("keys", "shape", "slot")

    def __init__(self, keys: bytes, slot: int) -> None:
        self.keys = keys
        self.slot = slot
        self.shape: Shape | None = None


class Requests:
    """What is asked alike in every dialect."""

    def __init__(self, keys: Keys, memory: float) -> None:
        self.keys = keys
        self._memory = pack_word(microseconds(memory))
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
        return b"".join((spelling.keys, pack_word(claim.owner), ttl, self._memory)), spelling.slot

    def leave(self, claim: Claim, tombstone: bool) -> tuple[bytes, int]:
        spelling = self._spellings.get(claim.name) or self.spell(claim.name)
        owner = claim.owner
        grave = pack_word(microseconds(claim.ttl)) if tombstone else b"$1\r\n0\r\n"
        return b"%b$%d\r\n%b\r\n%b%b" % (
            spelling.keys, len(owner), owner.encode(), grave, self._memory,
        ), spelling.slot  # fmt: skip

    def evict(self, name: str) -> tuple[bytes, int]:
        spelling = self.spell(name)
        return spelling.keys + self._memory, spelling.slot

    def overview(self, name: str) -> tuple[bytes, int]:
        spelling = self.spell(name)
        return spelling.keys, spelling.slot


class LineRequests(Requests):
    """And of a store that keeps lines."""

    def __init__(self, keys: Keys, channel: str, window: float, memory: float) -> None:
        super().__init__(keys, memory)
        self._channel = pack_word(channel)
        self._window = pack_word(microseconds(window))

    def attempt(self, claim: Claim, queue: bool, hearing: str) -> tuple[bytes, int]:
        spelling = self._spellings.get(claim.name) or self.spell(claim.name)
        owner, shape = claim.owner, spelling.shape
        if (
            shape is None
            or shape.info is not claim.info
            or shape.queue is not queue
            or shape.hearing != hearing
            or shape.mode is not claim.mode
            or shape.ttl != claim.ttl
            or shape.fair is not claim.fair
            or shape.permits != claim.permits
            or shape.limit != claim.limit
        ):
            shape = spelling.shape = self._shape(claim, queue, hearing)
        return b"%b$%d\r\n%b\r\n%b" % (
            spelling.keys, len(owner), owner.encode(), shape.tail,
        ), spelling.slot  # fmt: skip

    def _shape(self, claim: Claim, queue: bool, hearing: str) -> Shape:
        words = (
            LETTER_OF[claim.mode], str(claim.permits), str(claim.limit), microseconds(claim.ttl),
            "1" if claim.fair else "0", "1" if queue else "0",
        )  # fmt: skip
        info = packed_info(claim)
        tail = b"".join(map(pack_word, words)) + self._window + self._channel
        return Shape(claim, queue, hearing, tail + pack_word(hearing) + info + self._memory)

    def look(self, claim: Claim, hearing: str) -> tuple[bytes, int]:
        spelling = self.spell(claim.name)
        ttl = pack_word(microseconds(claim.ttl))
        return b"".join((
            spelling.keys, pack_word(claim.owner), ttl, self._window, self._channel,
            pack_word(hearing), self._memory,
        )), spelling.slot  # fmt: skip
