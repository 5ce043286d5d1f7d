"""Faults as small rules; partner of `proxy.py`, which shows them every frame that passes.

A rule looks at a parcel (a frame on its way) and puts marks on it; the proxy delivers accordingly.
Laws: marks commute, so faults can be combined in any order; a rule never touches a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from holdfast.testing.framing import Frame, Way

Direction: TypeAlias = Literal["to_server", "to_client", "both"]
Match: TypeAlias = bytes | Callable[[bytes], bool] | None  # bytes: the frame contains them


@dataclass(slots=True, eq=False)
class Parcel:
    """A frame on its way, with what rules need to know of it and the marks they have put on it."""

    link: Hashable
    way: Way
    frame: Frame
    exchange: int  # a request and the reply to it have the same number
    due: float
    end: Literal["", "eof", "reset"] = ""  # what follows the data
    lost: bool = False
    piece: int = 0  # bytes per packet; 0: all at once
    gap: float = 0.0  # seconds between pieces
    holders: list[Rule] = field(default_factory=list["Rule"])
    data: memoryview = field(init=False)  # what is still to be sent

    def __post_init__(self) -> None:
        self.data = memoryview(self.frame.data)


def matches(frame: Frame, matching: Match) -> bool:
    """Whether a test that waits for `matching` means this frame; None means each beginning."""
    if frame.kind == "aside" or matching is None:
        return frame.kind == "begin"
    return matching in frame.data if isinstance(matching, bytes) else matching(frame.data)


@dataclass(eq=False)
class Rule:
    """A fault in one direction or both, on one connection or (None) all."""

    direction: Direction
    only: Hashable | None

    def covers(self, parcel: Parcel) -> bool:
        return self.direction in ("both", parcel.way) and self.only in (None, parcel.link)

    def mark(self, parcel: Parcel) -> None:
        raise NotImplementedError


@dataclass(eq=False)
class Delay(Rule):
    seconds: float

    def mark(self, parcel: Parcel) -> None:
        parcel.due += self.seconds


@dataclass(eq=False)
class Split(Rule):
    piece: int
    gap: float

    def mark(self, parcel: Parcel) -> None:
        parcel.piece, parcel.gap = self.piece, self.gap


@dataclass(eq=False)
class Hold(Rule):
    matching: Match

    def mark(self, parcel: Parcel) -> None:
        if self.matching is None or matches(parcel.frame, self.matching):
            parcel.holders.append(self)


class Lose(Rule):
    def mark(self, parcel: Parcel) -> None:
        if parcel.end:  # TCP repeats an end until it arrives: it waits for the path to heal
            parcel.holders.append(self)
        else:
            parcel.lost = True


@dataclass(eq=False)
class Pick(Rule):
    """Acts on every frame of the n-th matching request or reply, and of the `times - 1` after it.

    `matching` is asked about frames in the direction `watch`. Where that is the other direction,
    the reply *to* the n-th matching request is picked.
    """

    watch: Way
    n: int
    times: int
    matching: Match
    act: Callable[[Parcel], None]
    seen: int = 0
    picked: dict[tuple[Hashable, int], bool] = field(
        default_factory=dict[tuple[Hashable, int], bool]
    )

    def covers(self, parcel: Parcel) -> bool:
        return self.only in (None, parcel.link)

    def mark(self, parcel: Parcel) -> None:
        key = parcel.link, parcel.exchange
        undecided = self.seen < self.n + self.times - 1 and key not in self.picked
        if undecided and parcel.way == self.watch and matches(parcel.frame, self.matching):
            self.seen += 1
            self.picked[key] = self.seen >= self.n
        if parcel.way == self.direction and parcel.frame.kind != "aside" and self.picked.get(key):
            self.act(parcel)


def swallow(parcel: Parcel) -> None:
    parcel.lost = True


def late(seconds: float) -> Callable[[Parcel], None]:
    """Delivered so much later."""

    def put_off(parcel: Parcel) -> None:
        parcel.due += seconds

    return put_off


def cut_after(size: int) -> Callable[[Parcel], None]:
    """Only the first `size` bytes of the frame, then a reset."""

    def cut(parcel: Parcel) -> None:
        parcel.data, parcel.end = parcel.data[:size], "reset"

    return cut
