"""What both halves offer: a letter to all nodes at once, and a ballot that their answers decide.

Partners: `crew.py` blocks, `loops.py` suspends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.backends.redlock.ballot import Ballot
from holdfast.backends.redlock.letters import Letter
from holdfast.backends.redlock.nodes import Member, NodeSettings

__all__ = ["Council"]


class Council(Protocol):
    members: Sequence[Member]
    settings: NodeSettings

    async def ask(
        self,
        letter: Letter,
        ballot: Ballot,
        deadline: float,
        lane: int,
        places: Sequence[int] | None = None,
    ) -> None:
        """Until the ballot is decided, everybody (or everybody at `places`) has answered or failed,
        or the deadline."""
        ...

    async def settle(self) -> None:
        """Until what was said is acknowledged, or owed, if that is soon."""
        ...

    async def close(self) -> None: ...
