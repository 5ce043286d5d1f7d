"""Ballots: what the nodes said, and when that decides the matter.

Contract: pure; no clock is read and nobody is asked here. A ballot is decided as soon as no further
answer can change what is decided by it: who asks need not wait for the others.
Partners: `crew.py` and `loops.py` fill ballots; `backend.py` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from holdfast.backends.redis.wire import NotSent, ReplyError, trouble
from holdfast.errors import HoldfastError, Misconfigured, Unavailable

__all__ = [
    "Ballot",
    "Batch",
    "Commit",
    "Everybody",
    "Heard",
    "Nobody",
    "Tally",
    "Votes",
    "explain",
    "hopeless",
    "quorum_of",
]


def quorum_of(nodes: int) -> int:
    """Of the nodes that were configured, not of those that are up (R34)."""
    return nodes // 2 + 1


class Ballot:
    """How far asking all nodes has come."""

    def __init__(self, nodes: int, asked: int | None = None) -> None:
        self.nodes = nodes
        self.quorum = quorum_of(nodes)
        self.open = nodes if asked is None else asked  # who has not answered yet
        self.failures: dict[int, Exception] = {}

    @property
    def decided(self) -> bool:
        raise NotImplementedError

    def hear(self, place: int, replies: list[Any]) -> None:
        """What a node answered: one reply to each part of the letter."""
        self.open -= 1
        for reply in replies:
            if isinstance(reply, ReplyError):
                self.failures[place] = reply
                return
        self.count(place, replies)

    def count(self, place: int, replies: list[Any]) -> None:
        raise NotImplementedError

    def fail(self, place: int, error: Exception) -> None:
        """There will be no answer."""
        self.open -= 1
        self.failures[place] = error

    @property
    def unsent(self) -> bool:
        """Whether those who did not answer were surely not reached."""
        return all(isinstance(error, NotSent | ReplyError) for error in self.failures.values())

    def hopeless(self, names: list[str]) -> Misconfigured | None:
        return hopeless(self.failures, names)


class Nobody(Ballot):
    """For letters whose answers are not waited for."""

    @property
    def decided(self) -> bool:
        return True

    def count(self, place: int, replies: list[Any]) -> None:
        pass


class Everybody(Ballot):
    """As many answers as can be had."""

    def __init__(self, nodes: int, asked: int | None = None) -> None:
        super().__init__(nodes, asked)
        self.answers: dict[int, list[Any]] = {}

    @property
    def decided(self) -> bool:
        return self.open == 0

    def count(self, place: int, replies: list[Any]) -> None:
        self.answers[place] = replies

    def lack(self, names: list[str]) -> HoldfastError | None:
        """What to raise if no quorum has answered."""
        if len(self.answers) >= self.quorum:
            return None
        return self.hopeless(names) or Unavailable(
            f"only {len(self.answers)} of {self.nodes} nodes answered, and {self.quorum} are "
            f"needed ({explain(self.failures, names)})"
        )


class Votes(Ballot):
    """An attempt: who votes for us, and for whom the others."""

    def __init__(self, nodes: int, counts: Callable[[int], bool]) -> None:
        super().__init__(nodes)
        self._counts = counts
        self.voters: list[int] = []  # who votes for us, and counts
        self.shy: list[int] = []  # would, but are quarantined
        self.busy = self.buried = 0
        self.largest = 0  # the largest token that was written where we have a vote
        self.latest = 0  # the latest clock among them
        self.holders: dict[bytes, int] = {}
        self.remaining = -1.0  # ms until the last of the others' votes ends; -1: not known
        self.info = b""

    @property
    def decided(self) -> bool:
        """Won; or cannot be won, and it is known whether that is because others hold it."""
        if self.yes >= self.quorum:
            return True
        return self.yes + self.open < self.quorum and (self.answered or not self.open)

    @property
    def answered(self) -> bool:
        """A quorum was there to vote, and has: somebody else is in the way, if we have not won."""
        return self.yes + self.busy >= self.quorum

    @property
    def yes(self) -> int:
        return len(self.voters)

    @property
    def won(self) -> bool:
        return self.yes >= self.quorum

    def count(self, place: int, replies: list[Any]) -> None:
        reply = replies[0]
        if isinstance(reply, int):
            if reply < 0:
                self.buried += 1
            else:
                self._agrees(place)
        elif reply[0] == 1:
            self._agrees(place)
            _, token, clock = reply
            self.largest = max(self.largest, token)
            self.latest = max(self.latest, clock)
        else:
            _, left, holder, self.info = reply
            self.busy += 1
            self.holders[holder] = self.holders.get(holder, 0) + 1
            self.remaining = max(self.remaining, left)

    def _agrees(self, place: int) -> None:
        if self._counts(place):
            self.voters.append(place)
        else:
            self.shy.append(place)

    @property
    def token(self) -> int:
        """Larger than any that a quorum knows, and than any that a quorum forgot, provided that
        its clocks are later than they were then."""
        return max(self.largest + 1, self.latest)

    @property
    def taken(self) -> bool:
        """Whether one holder has so many votes that nobody else can have a quorum."""
        return any(votes > self.nodes - self.quorum for votes in self.holders.values())


class Tally(Ballot):
    """Whether a claim that should have a quorum of votes has it: a release, a renewal."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self.ours = self.not_ours = 0

    @property
    def decided(self) -> bool:
        return self.held or self.lost

    @property
    def held(self) -> bool:
        return self.ours >= self.quorum

    @property
    def lost(self) -> bool:
        """A quorum says that it is not ours."""
        return self.not_ours >= self.quorum

    @property
    def answered(self) -> bool:
        return self.ours + self.not_ours >= self.quorum

    def count(self, place: int, replies: list[Any]) -> None:
        if replies[-1] == 1:
            self.ours += 1
        else:
            self.not_ours += 1


class Commit(Tally):
    """Whether a quorum has written our token down, because it is still ours there. **Hazard**: only
    those count whose votes the token was chosen from. Another one may have voted later, knowing a
    token that we have not seen, or having forgotten one (both found by the model search)."""

    def __init__(self, nodes: int, voters: Container[int]) -> None:
        super().__init__(nodes)
        self._voters = voters

    def count(self, place: int, replies: list[Any]) -> None:
        if place in self._voters:
            super().count(place, replies)

    @property
    def decided(self) -> bool:
        return self.held or self.ours + self.open < self.quorum


class Heard(Tally):
    """A withdrawal: a quorum that has heard it is enough, whatever each had of it."""

    @property
    def decided(self) -> bool:
        return self.answered


class Batch(Ballot):
    """Renewals: a tally for each claim. **Hazard**: who is quarantined does not count here either.
    It may have voted for somebody else before it forgot that and was told of us; and that one may
    be granted the lock by it yet."""

    def __init__(self, nodes: int, claims: int, counts: Callable[[int], bool]) -> None:
        super().__init__(nodes)
        self._counts = counts
        self.tallies = [Tally(nodes) for _ in range(claims)]
        self.forgot: list[list[int]] = [[] for _ in range(claims)]

    @property
    def decided(self) -> bool:
        """When all have answered: those who forgot are to be told, and may be the last."""
        return self.open == 0

    def count(self, place: int, replies: list[Any]) -> None:
        counts = self._counts(place)
        for tally, forgot, reply in zip(self.tallies, self.forgot, replies, strict=True):
            if reply != 1:
                forgot.append(place)
            elif not counts:
                continue
            tally.count(place, [reply])


def hopeless(failures: dict[int, Exception], names: list[str]) -> Misconfigured | None:
    """Why no quorum will ever answer, if so many nodes are misconfigured. Where there are
    fewer, it is the others that are away, and they may come back."""
    wrong: list[Misconfigured] = []
    for place, error in failures.items():
        meant = trouble(error, names[place]) if isinstance(error, ReplyError) else error
        if isinstance(meant, Misconfigured):
            wrong.append(meant)
    return wrong[0] if len(wrong) > len(names) - quorum_of(len(names)) else None


def explain(failures: dict[int, Exception], names: list[str]) -> str:
    """Who did not answer, and why, for a message."""
    return "; ".join(f"{names[place]}: {error}" for place, error in sorted(failures.items()))
