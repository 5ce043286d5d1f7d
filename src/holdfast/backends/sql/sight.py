"""What differs between the databases in how a session is seen by others.

Contract: texts, and how to read the answers; `presence.py` decides. Partners: `mysql/presence.py`,
`postgres/presence.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.backends.sql.session import Session, Statement

__all__ = ["Sight"]


class Sight(Protocol):
    """How a database shows which sessions are there."""

    @property
    def everybody(self) -> bool:
        """Whether a look lists all links; else it is asked about presences that are known."""
        ...

    @property
    def presence(self) -> str:
        """The presence that the column `info` names, as bytes; NULL if it names none."""
        ...

    async def show(self, session: Session, name: str, trusted: bool, deadline: float) -> None:
        """From now on the session bears this name. Raises `Misconfigured` where the database cannot
        see us for ourselves, unless the user is `trusted` to know better (`pooler=session`)."""
        ...

    def ping(self, name: str) -> Statement: ...

    def wrong(self, session: Session, row: Sequence[Any]) -> str:
        """What a ping has brought to light; empty if all is well."""
        ...

    def look(self, presences: Sequence[str]) -> Statement:
        """Who is there; as one statement, or a snapshot of earlier might answer."""
        ...

    def seen(
        self, presences: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> tuple[Hashable, Mapping[str, Any]]:
        """What it brought: the server, None if it is a replica, and who is there."""
        ...
