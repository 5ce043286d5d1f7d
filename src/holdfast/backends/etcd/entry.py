"""An entry: what a client knows of one claim that the store may have a key of.

Contract: no I/O and no decisions. An entry is there from before its key is asked for until nothing
of it can be left; whoever changes it has the claim, or is its keeper. Partners: `book.py`, where
entries are kept; `taking.py` and `keeping.py`, which write in them.
"""

from __future__ import annotations

from holdfast.backends.etcd.sessions import Session
from holdfast.core.port import Event
from holdfast.types import Claim

__all__ = ["Blocker", "Entry"]


class Blocker:
    """What stands in a claim's way: one key; or, of permits, so many that must come back from
    those ahead (`missing`), whichever. Good from `revision` on."""

    __slots__ = ("key", "missing", "revision")

    def __init__(self, revision: int, key: bytes = b"", missing: int = 0) -> None:
        self.revision = revision
        self.key = key
        self.missing = missing

    def same(self, other: Blocker) -> bool:
        return self.key == other.key and self.missing == other.missing


class Entry:
    __slots__ = (
        "blocker",
        "claim",
        "event",
        "gone",
        "held",
        "key",
        "line",
        "pending",
        "revision",
        "session",
        "since",
        "tomb",
        "until",
    )

    def __init__(self, claim: Claim, line: bytes, key: bytes, tomb: bytes, event: Event) -> None:
        self.claim = claim
        self.line = line
        self.key = key
        self.tomb = tomb
        self.event = event  # set: look again
        self.session: Session | None = None
        self.pending = 0  # requests that put the key and were never answered
        self.revision = 0  # of the key's creation; 0: it is not known to be there
        self.blocker: Blocker | None = None
        self.held = False
        self.since = 0.0  # when the request was sent that showed that it holds
        self.until = 0.0
        self.gone = False  # withdrawn: who still waits for it need not
