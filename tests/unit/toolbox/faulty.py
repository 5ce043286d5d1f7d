"""A client whose answers are lost at will."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import holdfast
from holdfast.types import Cell, CellConflict, Unknown

Answer = Cell | CellConflict | Unknown


class Faulty:
    """In front of a client's cells: what it wrote, and what becomes of the answers."""

    def __init__(self, locks: holdfast.Locks) -> None:
        backend: Any = locks._engine().backend
        self._write = backend.cell_write
        self.written: list[dict[str, Any]] = []
        self.losing = 0  # so many answers, of requests that are applied
        self.refusing = 0  # so many requests, of which nobody hears
        self.then: Callable[[], None] = lambda: None  # before the caller learns of a loss
        backend.cell_write = self.write

    async def write(self, name: str, value: bytes | None, **how: Any) -> Answer:
        if value is not None:
            self.written.append({"name": name, "value": value, **how})
        if self.refusing:
            self.refusing -= 1
            self.then()
            return Unknown("refused")
        answer: Answer = await self._write(name, value, **how)
        if self.losing:
            self.losing -= 1
            self.then()
            return Unknown("lost")
        return answer
