"""The attendant's connection: heartbeats and questions for all waiters of a client, and calls.

Contract: `attendant.Ear`. Used by one thread or task, but for `wake`. Partner: `postgres/ear.py`,
which can hear.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.sql.dialect import Dialect, Hearing
from holdfast.backends.sql.session import Session
from holdfast.backends.sql.words import Words

__all__ = ["SessionEar"]


class SessionEar:
    def __init__(
        self,
        session: Session,
        dialect: Dialect,
        words: Words,
        hearing: Hearing,
        calls: bool,
        cells: bool,
    ) -> None:
        self.calls = calls
        self._cells = cells
        self._session = session
        self._dialect = dialect
        self._words = words
        self._hearing = hearing

    async def attend(self, cells: bool, deadline: float) -> None:
        if self.calls and cells and not self._cells:
            self._cells = True
            text = self._dialect.listen(self._words.cells_channel)
            await self._session.run(text, (), deadline)

    async def beat(self, owners: Sequence[bytes], deadline: float) -> bool:
        values = self._dialect.packed(owners)
        result = await self._session.run(self._words.beat(len(owners)), values, deadline)
        return result.changed == len(owners)

    async def still(self, owners: Sequence[bytes], deadline: float) -> set[bytes]:
        values = self._dialect.packed(owners)
        result = await self._session.run(self._words.still(len(owners)), values, deadline)
        return {row[0] for row in result.rows}

    async def listen(self, until: float) -> list[str] | None:
        return await self._hearing.listen(until)

    def wake(self) -> None:
        self._hearing.wake()

    def close(self) -> None:
        self._hearing.close()
        self._session.close()
