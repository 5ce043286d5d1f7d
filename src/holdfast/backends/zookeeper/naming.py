"""How names become paths, claims become nodes, and nodes become a line: what others agree with.

Contract: kazoo's names. A lock is a node, a claim a child `<32 hex>__lock__<sequence>` of it
(`__rlock__` for readers), and the lowest sequence is first, so kazoo's Lock, ReadLock and WriteLock
and Go's client stand in the same line. Another dialect (Curator's) is another module like this one.
Permits are not among kazoo's; their node ends like a lock's, so that kazoo waits for them. Children
that end in a sequence and look like nobody we know count as exclusive.

Laws kept here: 7 (sequence order is the order of the nodes' czxids, which are the tokens), 10 (a
name becomes one path segment, injectively) and the compatibility rule.

Hazard: a sequence goes negative after 2 147 483 647; who is behind that point stays behind.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from holdfast.backends.common import name_of, spelled
from holdfast.types import Claim, Mode

__all__ = [
    "CELLS",
    "Contender",
    "Standing",
    "blockers",
    "decoded",
    "encoded",
    "guid_of",
    "in_order",
    "prefix_of",
    "standing",
]

CELLS = "%cells"
"""Where cells live, beside the locks: no name is spelled like this."""

# What ZooKeeper refuses in a path, beside what has a meaning in one (/) or here (%); and the first
# letter of what is its own: `.`, `..` and `zookeeper`.
REFUSED = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff/%]"
    r"|^\.(?=\.?\Z)|^z(?=ookeeper\Z)"
)


def encoded(name: str) -> str:
    """The one path segment that spells this name, as itself wherever ZooKeeper allows."""
    return spelled(name, REFUSED)


def decoded(segment: str) -> str | None:
    """The name that is spelled like this; None if none is."""
    return name_of(segment, REFUSED) or None


def guid_of(owner: str) -> str:
    """What identifies a claim's node. Everybody can read it, so it is not the owner (law 9)."""
    return hashlib.sha256(owner.encode()).hexdigest()[:32]


def prefix_of(claim: Claim) -> str:
    """A claim's node, without the sequence that the server adds."""
    guid = guid_of(claim.owner)
    if claim.mode is Mode.EXCLUSIVE:
        return f"{guid}__lock__"
    if claim.mode is Mode.SHARED:
        return f"{guid}__rlock__"
    return f"{guid}__permits_{claim.permits}_of_{claim.limit}__lock__"


class Contender(NamedTuple):
    """A claim as its node's name tells it."""

    node: str
    sequence: int
    mode: Mode
    permits: int = 1
    limit: int = 1

    @property
    def guid(self) -> str:
        return self.node[:32]


# As many digits as Python reads; who has more is nobody we know.
OURS = re.compile(r"(?:__permits_(\d{1,4300})_of_(\d{1,4300}))?__(r?)lock__(-?\d{9,10})$")
FOREIGN = re.compile(r"\D(\d{10})$")
WRAPPED = 1 << 31


def _contender(node: str) -> Contender | None:
    if len(node) == 50 and node.startswith("__lock__", 32):  # almost all of a long line
        sequence = node[40:]
        if sequence.isdecimal():
            return Contender(node, int(sequence), Mode.EXCLUSIVE)
    found = OURS.search(node)
    if found is None:
        foreign = FOREIGN.search(node)
        return Contender(node, int(foreign[1]), Mode.EXCLUSIVE) if foreign else None
    permits, limit, reader, number = found.groups()
    if permits:
        return Contender(node, int(number), Mode.PERMITS, int(permits), int(limit))
    return Contender(node, int(number), Mode.SHARED if reader else Mode.EXCLUSIVE)


def _sequence(contender: Contender) -> int:
    return contender.sequence


def in_order(nodes: Iterable[str]) -> list[Contender]:
    """The line: first come first."""
    line = [contender for contender in map(_contender, nodes) if contender is not None]
    line.sort(key=_sequence)
    if line and line[-1].sequence - line[0].sequence > WRAPPED:
        line.sort(key=lambda contender: contender.sequence % (2 * WRAPPED))
    return line


def blockers(line: Sequence[Contender], index: int) -> list[Contender]:
    """Empty: this claim is granted. Else claims ahead of it, as few and as near as can be, such
    that it cannot be granted while all of them stand: so it is enough to watch these, and the end
    of any of them is worth a look. (Of permits any may come back first: watching one predecessor
    would sleep through the others.)"""
    me = line[index]
    if me.mode is Mode.EXCLUSIVE:
        return list(line[index - 1 : index]) if index else []
    near: list[Contender] = []
    room = me.limit - me.permits
    for ahead in reversed(line[:index]):
        if ahead.mode is not me.mode:
            return [ahead]
        if me.mode is Mode.PERMITS and room >= 0:
            near.append(ahead)
            room -= ahead.permits
    return near if room < 0 else []


class Standing(NamedTuple):
    """Where a claim stands: how many are ahead, whom it must watch (nobody: it is granted), and
    who is first; by their nodes."""

    ahead: int
    blocking: Sequence[str]
    first: str


def standing(nodes: Sequence[str], node: str) -> Standing | None:
    """None: it is not among them. Every hand-over asks this once or twice of the whole line, so a
    line of exclusive claims, which most are, is not taken apart."""
    if set(map(_KIND, nodes)) == {"__lock__"} and set(map(len, nodes)) == {50}:
        mine = node[40:]
        if "0" <= mine < "2" and node in nodes:  # neither below zero nor about to wrap
            ahead = [other for other in nodes if other[40:] < mine]
            if not ahead:
                return Standing(0, (), node)
            nearest, first = max(ahead, key=_NUMBER), min(ahead, key=_NUMBER)
            if first[40].isdecimal():  # and not a sign
                return Standing(len(ahead), (nearest,), first)
    line = in_order(nodes)
    index = next((n for n, claim in enumerate(line) if claim.node == node), None)
    if index is None:
        return None
    return Standing(index, [claim.node for claim in blockers(line, index)], line[0].node)


_KIND, _NUMBER = itemgetter(slice(32, 40)), itemgetter(slice(40, None))
