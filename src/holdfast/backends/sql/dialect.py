"""What differs between the databases: texts and the meaning of error codes, nothing else.

Contract: plain values, and how a database is reached and heard. A strategy asks its dialect for the
text of a step and decides everything itself. Partners: `mysql/dialect.py`, `postgres/dialect.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from holdfast.backends.sql.session import Session, Statement, Value
from holdfast.backends.sql.sight import Sight
from holdfast.backends.sql.speech import RowSpeech, Speech
from holdfast.core.port import Port

__all__ = ["Connect", "Dialect", "Driver", "Hearing", "Silence", "Types"]

Connect: TypeAlias = Callable[[float], Awaitable[Session]]
"""Makes a session that is logged in and greeted, by the deadline; raises `Trouble`."""


class Types(NamedTuple):
    """Of columns."""

    name: str  # up to 1024 bytes, compared bytewise
    owner: str
    info: str
    value: str  # of a cell
    serial: str  # numbers in the order of insertion


class Dialect(Protocol):
    # -- what the tables are made of --------------------------------------------------------------

    types: Types
    index_inside: bool
    """Whether an index is declared inside its table."""
    table_options: str

    def quote(self, identifier: str) -> str: ...

    def making(self, texts: Sequence[str]) -> Sequence[str]:
        """What executes these definitions, though others do the same at this moment."""
        ...

    # -- parts of statements ----------------------------------------------------------------------

    now: str
    """Microseconds since 1970, in UTC, when the statement began; no time zone can touch it."""
    returning: bool
    """Whether a statement tells by RETURNING; else by LAST_INSERT_ID(expression)."""
    insert_new: str
    if_new: str
    """Around an INSERT that does nothing, and counts 0, if the key is there already."""
    from_nothing: str
    notify: str
    """A statement with a channel and a payload that calls one client; empty: there is none."""

    def listen(self, channel: str) -> str:
        """What has a session hear what is said to a channel, where `notify` says anything."""
        ...

    def among(self, column: str, number: int) -> str:
        """That a column of bytes has one of so many values, which `packed` makes parameters of."""
        ...

    def packed(self, values: Sequence[bytes]) -> Sequence[Value]: ...

    def renewal(self, locks: str, number: int) -> str:
        """Extends so many holds, by their ttl, if they last; by a microsecond at least, so that no
        two renewals leave the same expiry. Parameters: `packed` names, `packed`
        owners. Returns the owners of what it extended if it `returning` is, else their number."""
        ...

    # -- sessions ---------------------------------------------------------------------------------

    setup: Sequence[str]
    """Said at the beginning of a session of a table strategy."""

    begin: str
    """Begins a transaction, READ COMMITTED."""
    setup_pooled: Sequence[str]
    """Said inside each transaction where a session is not ours for longer."""

    def patience(self, seconds: int) -> Statement:
        """How long a statement may wait for a row."""
        ...

    @property
    def sight(self) -> Sight:
        """How sessions are seen by others."""
        ...

    # -- errors -----------------------------------------------------------------------------------

    no_table: frozenset[str]
    denied: frozenset[str]
    altered: frozenset[str]
    """A column is missing, or of another type."""


class Driver(Protocol):
    """How a database is reached."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def where(self) -> str:
        """For messages: the URL without its password."""
        ...

    def advisory(self, values: dict[str, Any]) -> Speech: ...

    def for_update(self, values: dict[str, Any]) -> RowSpeech: ...

    def connector(self, asynchronous: bool) -> Connect: ...

    def hearing(self, session: Session, port: Port) -> Hearing:
        """How calls to this session are heard, or that there are none."""
        ...


class Hearing(Protocol):
    async def listen(self, until: float) -> list[str] | None:
        """What was called until then, at the latest; None where nothing is ever called."""
        ...

    def wake(self) -> None:
        """Have `listen` return. From any thread; never waits."""

    def close(self) -> None: ...


class Silence:
    """Where nobody can call."""

    def __init__(self, port: Port) -> None:
        self._event = port.event()

    async def listen(self, until: float) -> list[str] | None:
        await self._event.wait(until)
        self._event.clear()
        return None

    def wake(self) -> None:
        self._event.set()

    def close(self) -> None:
        pass
