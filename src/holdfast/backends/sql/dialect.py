"""What differs between the databases: texts and the meaning of error codes, nothing else.

Contract: plain values. A strategy asks its dialect for the text of a step and decides everything
itself. Partners: `mysql/dialect.py`, `postgres/dialect.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from holdfast.backends.sql.session import Session
from holdfast.backends.sql.speech import Speech

__all__ = ["Connect", "Dialect", "Driver"]

Connect: TypeAlias = Callable[[float], Awaitable[Session]]
"""Makes a session that is logged in and greeted, by the deadline; raises `Trouble`."""


class Dialect(Protocol):
    @property
    def name(self) -> str:
        """ "mysql" or "postgresql"."""
        ...


class Driver(Protocol):
    """How a database is reached."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def where(self) -> str:
        """For messages: the URL without its password."""
        ...

    def advisory(self, values: dict[str, Any]) -> Speech: ...

    def for_update(self, values: dict[str, Any]) -> Speech: ...

    def connector(self, asynchronous: bool) -> Connect: ...
