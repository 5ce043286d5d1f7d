"""Letters: what all nodes are asked at once, and how it is spelled.

Contract: the same words go to every node, but for one thing. **Hazard**: an attempt that a node has
not answered may still be on its way to it, and a farewell that took another connection could
overtake it: the vote would then be given to nobody, for a ttl. So each attempt leaves a receipt. A
farewell that follows it on the same connection, or when it was answered, is a plain one; any other
one leaves a tombstone, which the late attempt honours (law 3). The other way round, a farewell that
is late could take away a vote that was asked for again; so an owner has a new name in every round.
Partner: `scripts/*.lua`, whose headers say what stands where.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.backends.common import Written
from holdfast.backends.redis.keys import Keys
from holdfast.backends.redis.lua import Script
from holdfast.backends.redis.wire import pack_word
from holdfast.backends.redlock.nodes import Debt
from holdfast.types import Claim, Grant

__all__ = ["Farewell", "Letter", "Receipt", "Sheet", "Writer"]

HOME = "holdfast.backends.redlock"

ATTEMPT = Script("attempt", 4, 4, home=HOME)
COMMIT = Script("commit", 2, 3, home=HOME)
LEAVE = Script("leave", 2, 3, home=HOME)
RENEW = Script("renew", 2, 3, home=HOME)
EVICT = Script("evict", 1, 1, home=HOME)
REAP = Script("reap", 1, 4, home=HOME)
OVERVIEW = Script("overview", 2, 0, home=HOME)

MOST = 4096
"""So many names are remembered; beyond, they are spelled anew."""

NEVER = 0
"""When a vote ends that was not seen."""

NO_GRAVE = b"$1\r\n0\r\n"
QUIET = b"$0\r\n\r\n"


_rounds = itertools.count()
"""Never the same twice, also if a sheet was thrown away and its claim is asked for again."""


class Receipt(Protocol):
    """That something was sent to a node, on a certain connection."""

    @property
    def line(self) -> object: ...

    @property
    def answered(self) -> bool: ...


class Sheet:
    """One claim, as the nodes see it: its owner's name in this round, and what was sent to whom."""

    __slots__ = (
        "claim", "grant", "heard", "held", "installing", "left", "looks", "owner", "receipts",
    )  # fmt: skip

    def __init__(self, claim: Claim, nodes: int) -> None:
        self.claim = claim
        self.owner = f"{claim.owner}.{next(_rounds)}"
        self.receipts: list[Receipt | None] = [None] * nodes  # the latest attempt at each node
        self.held = False  # it was granted, or may have been
        self.grant: Grant | None = None
        self.installing = False  # attempts may be under way although it holds
        self.left = False
        self.heard = -1  # the releases that were heard of when it looked last
        self.looks = 0  # how often it has looked since

    def next_round(self) -> None:
        """What was sent until now is about somebody else from now on."""
        self.owner = f"{self.claim.owner}.{next(_rounds)}"
        self.receipts = [None] * len(self.receipts)


class Receipts(Protocol):
    """Where the receipts of a letter go, by the places of the nodes."""

    def __setitem__(self, place: int, receipt: Receipt, /) -> None: ...


class Shared:
    """Of one letter about several claims."""

    def __init__(self, sheets: Sequence[Sheet]) -> None:
        self._sheets = sheets

    def __setitem__(self, place: int, receipt: Receipt, /) -> None:
        for sheet in self._sheets:
            sheet.receipts[place] = receipt


class Letter:
    """Scripts, run at each node."""

    __slots__ = ("count", "data", "heard", "parts", "receipts")

    def __init__(self, *parts: tuple[Script, bytes], receipts: Receipts | None = None) -> None:
        self.parts = parts
        self.count = len(parts)
        script, rest = parts[0] if parts else (None, b"")
        if len(parts) == 1 and script is not None:
            self.data = script.head + rest
        else:
            self.data = b"".join([script.head + rest for script, rest in parts])
        self.receipts = receipts  # where receipts go, if they are wanted
        self.heard = True  # somebody waits for the answers

    def unheard(self) -> Letter:
        """Nobody waits to hear that a node does not know the script: it is told in full."""
        self.heard = False
        return self

    def words(self, place: int, line: object) -> bytes:
        """What is said to this node, on this connection."""
        return self.data if self.heard else self.spelled_out(place, line)

    def spelled_out(self, place: int, line: object) -> bytes:
        """The same for a node that does not know the scripts."""
        return b"".join([script.full + rest for script, rest in self.parts])

    def debt(self, place: int) -> Debt | None:
        """What is owed to this node as long as it has not answered."""
        return None


class Farewell(Letter):
    """Leave: plain where nothing can come later, else with a tombstone."""

    __slots__ = ("_debt", "_firm", "_sent")

    def __init__(
        self, plain: bytes, firm: bytes, sent: list[Receipt | None] | None, debt: Debt
    ) -> None:
        super().__init__((LEAVE, plain))
        self._firm = firm
        self._sent = sent
        self._debt = debt

    def words(self, place: int, line: object) -> bytes:
        if self.heard and self._overtakes(place, line):
            return LEAVE.head + self._firm
        return super().words(place, line)

    def spelled_out(self, place: int, line: object) -> bytes:
        if self._overtakes(place, line):
            return LEAVE.full + self._firm
        return super().spelled_out(place, line)

    def _overtakes(self, place: int, line: object) -> bool:
        receipt = self._sent[place] if self._sent is not None else None
        return receipt is not None and receipt.line is not line and not receipt.answered

    def debt(self, place: int) -> Debt | None:
        """Nothing, if no attempt was ever sent there."""
        if self._sent is not None and self._sent[place] is None:
            return None
        return self._debt


class Name:
    """How a name is spelled."""

    __slots__ = ("channel", "grave", "keys", "lock")

    def __init__(self, keys: Keys, name: str, channel: str) -> None:
        lock = keys.lock(name)
        self.lock = pack_word(lock)
        self.keys = self.lock + pack_word(f"{lock}:f")
        self.grave = f"{lock}:t:"
        self.channel = pack_word(channel)


class Reaping(Letter):
    """Reap: all nodes are asked about the same votes, each with what was seen at that node."""

    __slots__ = ("_exactly", "_votes")

    def __init__(self, votes: list[tuple[Name, bytes, Mapping[int, int]]], exactly: bytes) -> None:
        super().__init__()
        self.count = len(votes)
        self._votes = votes
        self._exactly = exactly

    def words(self, place: int, line: object) -> bytes:
        return self._said(REAP.head, place)

    def spelled_out(self, place: int, line: object) -> bytes:
        return self._said(REAP.full, place)

    def _said(self, begin: bytes, place: int) -> bytes:
        return b"".join([
            begin + name.lock + owner + pack_word(b"%d" % ends.get(place, NEVER)) + self._exactly
            + name.channel
            for name, owner, ends in self._votes
        ])  # fmt: skip


class Writer:
    """Spells the requests of one client."""

    def __init__(self, prefix: str, fencing: bool, memory: float) -> None:
        self.keys = Keys(prefix)
        self._prefix = prefix
        self._fencing = pack_word("1" if fencing else "0")
        self._memory = memory
        self._names: dict[str, Name] = {}
        self._info: Written[bytes] = Written(pack_word)

    def channel(self, name: str) -> str:
        """Where releases are announced."""
        return f"{self._prefix}:free:{name}"

    def attempt(self, sheet: Sheet) -> Letter:
        return Letter((ATTEMPT, self._attempt(sheet)), receipts=sheet.receipts)

    def commit(self, sheet: Sheet, token: int) -> Letter:
        return Letter((COMMIT, self._commit(sheet, token)))

    def install(self, sheets: Sequence[Sheet]) -> Letter:
        """For a node that has forgotten them, or never heard of them."""
        parts: list[tuple[Script, bytes]] = []
        for sheet in sheets:
            parts.append((ATTEMPT, self._attempt(sheet)))
            if sheet.grant is not None and sheet.grant.fence is not None:
                parts.append((COMMIT, self._commit(sheet, sheet.grant.fence)))
        return Letter(*parts, receipts=Shared(sheets)).unheard()

    def leave(self, sheet: Sheet, until: float, *, tombstone: bool, sent: bool = True) -> Farewell:
        """`sent`: only nodes that an attempt was sent to are owed it."""
        claim, name = sheet.claim, self._name(sheet.claim.name)
        owner, end = pack_word(sheet.owner), name.channel if sheet.held else QUIET
        grave = claim.owner if tombstone else sheet.owner
        begin = name.lock + pack_word(name.grave + grave) + owner
        firm = begin + _milliseconds(claim.ttl) + end
        plain = firm if tombstone else begin + NO_GRAVE + end
        debt = Debt(sheet.owner, until, LEAVE.full, firm)
        return Farewell(plain, firm, sheet.receipts if sent else None, debt)

    def renew(self, sheets: Sequence[Sheet], grants: Sequence[Grant]) -> Letter:
        pairs = zip(sheets, grants, strict=True)
        return Letter(*((RENEW, self._renew(sheet, grant.claim)) for sheet, grant in pairs))

    def evict(self, name: str) -> Letter:
        spelled = self._name(name)
        return Letter((EVICT, spelled.lock + spelled.channel))

    def reap(self, votes: Sequence[tuple[str, str, Mapping[int, int]]], exactly: int) -> Letter:
        """Names, owners, and when their votes end, by places; to so many milliseconds."""
        return Reaping([
            (self._name(name), pack_word(owner), ends) for name, owner, ends in votes
        ], pack_word(b"%d" % exactly))  # fmt: skip

    def overview(self, names: list[str]) -> Letter:
        return Letter(*((OVERVIEW, self._name(name).keys) for name in names))

    def _attempt(self, sheet: Sheet) -> bytes:
        claim, name = sheet.claim, self._name(sheet.claim.name)
        return b"".join((
            name.keys, pack_word(name.grave + sheet.owner), pack_word(name.grave + claim.owner),
            pack_word(sheet.owner), _milliseconds(claim.ttl), self._info.of(claim.info),
            self._fencing,
        ))  # fmt: skip

    def _commit(self, sheet: Sheet, token: int) -> bytes:
        keys, span = self._name(sheet.claim.name).keys, self._span(sheet.claim)
        return keys + pack_word(sheet.owner) + pack_word(str(token)) + span

    def _renew(self, sheet: Sheet, claim: Claim) -> bytes:
        keys, span = self._name(claim.name).keys, self._span(claim)
        return keys + pack_word(sheet.owner) + _milliseconds(claim.ttl) + span

    def _span(self, claim: Claim) -> bytes:
        """A token is remembered until then, though the lease may last its whole ttl first."""
        return _milliseconds(self._memory + claim.ttl)

    def _name(self, name: str) -> Name:
        found = self._names.get(name)
        if found is None:
            if len(self._names) >= MOST:
                self._names.clear()
            found = self._names[name] = Name(self.keys, name, self.channel(name))
        return found


def _milliseconds(seconds: float) -> bytes:
    return pack_word(b"%d" % math.ceil(seconds * 1000))
