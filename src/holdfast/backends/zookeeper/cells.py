"""Cells: one persistent node each, whose version is its mzxid: it grows over deletion, too.

Contract: `core/backend.py`. A node's own version number starts anew when it is made again, so
comparing it alone could take a new cell for the old one. Every deletion therefore also changes the
folder of cells, and every write checks, in the same transaction, that the folder is as it was when
the cell was read. The folder stays; a cell is deleted, unless a fence must be remembered.

Time: a ttl counts on the leader's wall clock, from the node's mtime on. What time it is there is
known from the last write that we made, or asked by making and deleting a node.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kazoo import exceptions
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Create2,
    Delete,
    Exists,
    GetData,
    SetData,
    Transaction,
)

from holdfast.backends.zookeeper.claims import CUT, EPHEMERAL_SEQUENTIAL, SILENT, Claims
from holdfast.backends.zookeeper.naming import CELLS, encoded
from holdfast.backends.zookeeper.session import Record, Session
from holdfast.backends.zookeeper.trouble import UNANSWERED, explained
from holdfast.backends.zookeeper.wire import Reply
from holdfast.errors import Unavailable
from holdfast.types import Cell, CellConflict, Claim, Unknown

__all__ = ["Cells"]

HEADER = struct.Struct("!BBqq")  # format, flags, fence, ttl in microseconds
FORMAT = 1
PRESENT, FENCED, ENDS = 1, 2, 4
ANCHOR = 60.0
"""Seconds for which a reading of the server's clock is good: it drifts by a fraction."""

TTL_OF_A_LOOK = 30.0
"""Whose session is used when no lease is concerned."""


class _Seen(NamedTuple):
    """A cell as it was read. `epoch` is the folder's version, `version` the node's, -1 for none."""

    cell: Cell | None
    fence: int | None
    epoch: int
    version: int
    ends_in: float | None = None


class Cells(Claims):
    _anchor: tuple[float, float] | None = None  # the server's time, and ours when it was that

    def _cell_path(self, name: str) -> str:
        return f"{self._base}/{CELLS}/{encoded(name)}"

    async def _some_session(self, deadline: float) -> Session:
        return self._pool.any() or await self._pool.session(TTL_OF_A_LOOK, deadline)

    def _noted(self, milliseconds: int, sent: float) -> None:
        """The server wrote something at that time of its clock, after `sent` and before now."""
        self._anchor = milliseconds / 1000, (sent + self._port.now()) / 2

    async def _server_now(self, session: Session, deadline: float) -> float | Unknown:
        anchor, now = self._anchor, self._port.now()
        if anchor is None or now - anchor[1] > ANCHOR:
            node = Create2(
                f"{self._base}/{CELLS}/%clock-", b"", self._place.acl, EPHEMERAL_SEQUENTIAL
            )
            (made,) = session.ask(node)
            if not await self._answered(made, deadline):
                return SILENT
            if made.error is not None:
                return CUT
            path, stat = made.value
            session.wire.send((Delete(path, -1), Reply()))
            self._noted(stat.ctime, now)
            anchor = self._anchor
            assert anchor is not None
        return anchor[0] + self._port.now() - anchor[1]

    async def _see(
        self, session: Session, name: str, deadline: float, record: Record | None = None
    ) -> _Seen | Unknown:
        """The cell; with a record, which is nudged by the next change."""
        path = self._cell_path(name)
        watcher = session.wire.watched if record is not None else None
        requests = [Exists(f"{self._base}/{CELLS}", None), GetData(path, watcher)]
        if record is not None:
            session.watch(record, (path,))
            requests.insert(1, Exists(path, watcher))
        replies = session.ask(*requests)
        folder, got = replies[0], replies[-1]
        if not await self._answered(got, deadline):
            return SILENT
        if folder.error is not None or isinstance(got.error, UNANSWERED):
            return CUT
        epoch = -1 if folder.value is None else folder.value.version
        if isinstance(got.error, exceptions.NoNodeError):
            return _Seen(None, None, epoch, -1)
        if got.error is not None:
            raise explained(self._where, got.error)
        data, stat = got.value
        _, flags, fence, ttl = HEADER.unpack_from(data)
        known = fence if flags & FENCED else None
        if not flags & PRESENT:
            return _Seen(None, known, epoch, stat.version)
        cell = Cell(bytes(data[HEADER.size :]), stat.mzxid)
        if not flags & ENDS:
            return _Seen(cell, known, epoch, stat.version)
        now = await self._server_now(session, deadline)
        if isinstance(now, Unknown):
            return now
        left = stat.mtime / 1000 + ttl / 1e6 - now
        if left > 0:
            return _Seen(cell, known, epoch, stat.version, left)
        seen = _Seen(None, known, epoch, stat.version)
        if known is None:  # nobody else takes it away
            session.wire.send((self._deletion(path, seen), Reply()))
        return seen

    def _deletion(self, path: str, seen: _Seen) -> Transaction:
        """Changing it first says which version the deletion has."""
        folder = f"{self._base}/{CELLS}"
        return Transaction(
            [
                SetData(folder, b"", seen.epoch),
                SetData(path, b"", seen.version),
                Delete(path, -1),
            ]
        )

    async def cell_read(self, name: str, deadline: float) -> Cell | None:
        session = await self._some_session(deadline)
        seen = await self._see(session, name, deadline)
        if isinstance(seen, Unknown):
            raise Unavailable(f"{self._where}: {seen.reason}")
        return seen.cell

    async def cell_write(
        self,
        name: str,
        value: bytes | None,
        *,
        expect: int | None,
        fence: int | None,
        ttl: float | None,
        deadline: float,
    ) -> Cell | CellConflict | Unknown:
        session = await self._some_session(deadline)
        path = self._cell_path(name)
        while True:
            seen = await self._see(session, name, deadline)
            if isinstance(seen, Unknown):
                raise Unavailable(f"{self._where}: {seen.reason}")  # nothing was written yet
            current = seen.cell
            if expect is not None and expect != (0 if current is None else current.version):
                return CellConflict(current, "its version is another")
            if fence is not None and seen.fence is not None and fence < seen.fence:
                return CellConflict(current, "a newer fencing token has written before")
            fences = [token for token in (fence, seen.fence) if token is not None]
            highest = max(fences, default=None)
            sent = self._port.now()
            (done,) = session.ask(self._writing(path, value, highest, ttl, seen))
            if not await self._answered(done, deadline):
                return SILENT
            if isinstance(done.error, UNANSWERED):
                return CUT
            error = done.error
            results = done.value if error is None else []
            error = error or next((r for r in results if isinstance(r, Exception)), None)
            if error is None:
                stat = results[-1] if value is not None or highest is not None else results[1]
                session.heard(sent)
                self._noted(stat.mtime, sent)
                return Cell(value or b"", stat.mzxid)
            if not await self._make_cells(session, seen, done, deadline):
                return SILENT

    def _writing(
        self, path: str, value: bytes | None, fence: int | None, ttl: float | None, seen: _Seen
    ) -> object:
        """One transaction, whose last result is the node's new state."""
        flags = (value is not None) * PRESENT | (fence is not None) * FENCED
        flags |= (ttl is not None) * ENDS
        data = HEADER.pack(FORMAT, flags, fence or 0, int((ttl or 0) * 1e6)) + (value or b"")
        check = CheckVersion(f"{self._base}/{CELLS}", seen.epoch)
        if seen.version < 0:
            # Made and changed: the change is what tells the version.
            make = [Create(path, data, self._place.acl, 0), SetData(path, data, 0)]
            if value is None and fence is None:
                folder = f"{self._base}/{CELLS}"
                return Transaction(
                    [SetData(folder, b"", seen.epoch), *make[:1], SetData(path, b"", 0),
                     Delete(path, -1)]
                )  # fmt: skip
            return Transaction([check, *make])
        if value is None and fence is None:
            return self._deletion(path, seen)
        return Transaction([check, SetData(path, data, seen.version)])

    async def _make_cells(
        self, session: Session, seen: _Seen, done: Reply, deadline: float
    ) -> bool:
        """After a transaction that failed: make what it lacked, or just try again, as somebody
        else was faster. False when there is no time left."""
        for error in [done.error, *(done.value or ())]:
            refused = isinstance(error, Exception) and not isinstance(
                error,
                exceptions.RolledBackError
                | exceptions.RuntimeInconsistency
                | exceptions.NoNodeError
                | exceptions.NodeExistsError
                | exceptions.BadVersionError,
            )
            if refused:
                raise explained(self._where, error)
        if seen.epoch < 0:
            if not await self._make_base(session, deadline):
                return False
            folder = Create(f"{self._base}/{CELLS}", b"", self._place.acl, 0)
            (made,) = session.ask(folder)
            if not await self._answered(made, deadline):
                return False
        return self._port.now() < deadline

    async def cell_wait(self, name: str, version: int, deadline: float) -> Cell | None:
        port = self._port
        event = port.event()
        while True:
            session = await self._some_session(deadline)
            record = Record(Claim(name, ""), "", "", session, port.now())
            record.event = event
            event.clear()
            key = f"cell {id(record)}"
            session.records[key] = record
            record.attended = 1
            try:
                seen = await self._see(session, name, deadline, record)
                if isinstance(seen, Unknown):
                    if port.now() >= deadline:
                        raise Unavailable(f"{self._where}: {seen.reason}")
                    continue
                if (seen.cell.version if seen.cell else 0) != version or port.now() >= deadline:
                    return seen.cell
                limit = deadline
                if seen.ends_in is not None:
                    limit = min(limit, port.now() + seen.ends_in + 0.001)
                await event.wait(limit)
            finally:
                session.unwatch(record)
                session.records.pop(key, None)
