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

from holdfast.backends.common import conflict
from holdfast.backends.zookeeper import requests
from holdfast.backends.zookeeper.ground import CUT, LITTLE, SILENT, Ground
from holdfast.backends.zookeeper.naming import CELLS, encoded
from holdfast.backends.zookeeper.refusals import (
    BAD_VERSION,
    NO_NODE,
    NODE_EXISTS,
    UNANSWERED,
    NodeExists,
    NoLogin,
    NoNode,
    error_of,
)
from holdfast.backends.zookeeper.requests import Request, Stat
from holdfast.backends.zookeeper.session import Record, Session
from holdfast.backends.zookeeper.trouble import explained
from holdfast.backends.zookeeper.wire import Reply
from holdfast.errors import Misconfigured, Unavailable
from holdfast.types import Cell, CellConflict, Claim, Unknown

__all__ = ["Cells"]

HEADER = struct.Struct("!BBqq")  # format, flags, fence, ttl in microseconds
FORMAT = 1
PRESENT, FENCED, ENDS = 1, 2, 4
ANCHOR = 60.0
"""Seconds for which a reading of the server's clock is good: it drifts by a fraction."""


class _Seen(NamedTuple):
    """A cell as it was read. `epoch` is the folder's version, `version` the node's, -1 for none (or
    for a folder that was not looked at: then any will do)."""

    cell: Cell | None
    fence: int | None
    epoch: int
    version: int
    ends_in: float | None = None


class Cells(Ground):
    _anchor: tuple[float, float] | None = None  # the server's time, and ours when it was that

    def _cell_path(self, name: str) -> str:
        return f"{self._base}/{CELLS}/{encoded(name)}"

    def _noted(self, milliseconds: int, sent: float) -> None:
        """The server wrote something at that time of its clock, after `sent` and before now."""
        self._anchor = milliseconds / 1000, (sent + self._port.now()) / 2

    async def _server_now(self, session: Session, deadline: float) -> float | Unknown:
        anchor, now = self._anchor, self._port.now()
        if anchor is None or now - anchor[1] > ANCHOR:
            path = f"{self._base}/{CELLS}/%clock-{session.id:x}"
            made, deleted = session.ask(  # back to back: whatever is lost, none is left
                requests.create(path, b"", self._place.acl, requests.EPHEMERAL),
                requests.delete(path),
            )
            if not await self._answered(deleted, deadline):
                return SILENT
            if made.error is not None:
                return self._unsure(made.error)
            self._noted(made.value[1].ctime, now)
            anchor = self._anchor
            assert anchor is not None
        return anchor[0] + self._port.now() - anchor[1]

    def _unsure(self, error: Exception) -> Unknown:
        """No answer, or one that is another the next time; a refusal is raised."""
        if isinstance(error, (*UNANSWERED, NoNode, NodeExists)):
            return CUT
        raise explained(self._where, error)

    async def _see(
        self, session: Session, name: str, deadline: float, record: Record | None = None
    ) -> _Seen | Unknown:
        """The cell; with a record, which is nudged by the next change."""
        path = self._cell_path(name)
        # After a sync, or a server that lags behind would tell what was true before: somebody who
        # has just taken a lock reads here what its last holder wrote.
        if record is not None:  # who waits does not write, and needs no epoch
            session.watch(record, (path,))
            second = requests.exists(path, session.wire.watched)
        else:
            second = requests.exists(f"{self._base}/{CELLS}")
        synced, stated, got = session.ask(requests.sync(), second, requests.get_data(path))
        if not await self._answered(got, deadline):
            return SILENT
        if isinstance(got.error, NoLogin):
            raise explained(self._where, got.error)
        if synced.error or stated.error or isinstance(got.error, UNANSWERED):
            return CUT
        folder: Stat | None = stated.value if record is None else None
        epoch = -1 if folder is None else folder.version
        if isinstance(got.error, NoNode):
            return _Seen(None, None, epoch, -1)
        if got.error is not None:
            raise explained(self._where, got.error)
        data, stat = got.value
        if len(data) < HEADER.size or data[0] != FORMAT:
            raise Misconfigured(
                f"{self._where}: what is at {path} was not written by this version of holdfast. "
                "Use another path, or delete that node if nobody needs it"
            )
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

    def _deletion(self, path: str, seen: _Seen) -> Request:
        """Changing the node first says which version the deletion has."""
        return requests.multi(
            requests.set_data(f"{self._base}/{CELLS}", b"", seen.epoch),
            requests.set_data(path, b"", seen.version),
            requests.delete(path),
        )

    async def cell_read(self, name: str, deadline: float) -> Cell | None:
        _, seen = await self._read(name, deadline)
        return seen.cell

    async def _read(self, name: str, deadline: float) -> tuple[Session, _Seen]:
        """Until there is an answer: reading again is harmless."""
        while True:
            session = await self._some_session(deadline)
            seen = await self._see(session, name, deadline)
            if not isinstance(seen, Unknown):
                return session, seen
            if self._port.now() >= deadline:
                raise Unavailable(f"{self._where}: {seen.reason}")
            await self._port.sleep(LITTLE)

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
        path = self._cell_path(name)
        while True:
            session, seen = await self._read(name, deadline)
            refused = conflict(seen.cell, seen.fence, expect, fence)
            if refused is not None:
                return refused
            highest = seen.fence if fence is None else fence  # no lower one got here
            sent = self._port.now()
            (done,) = session.ask(self._writing(path, value, highest, ttl, seen))
            if not await self._answered(done, deadline):
                return SILENT
            if isinstance(done.error, UNANSWERED):
                return CUT
            if done.error is not None:
                raise explained(self._where, done.error)
            outcome: Stat | int = next(
                result for result in reversed(done.value) if result is not None
            )
            if isinstance(outcome, Stat):
                session.heard(sent)
                self._noted(outcome.mtime, sent)
                return Cell(value or b"", outcome.mzxid)
            if outcome not in (NO_NODE, NODE_EXISTS, BAD_VERSION):
                raise explained(self._where, error_of(outcome))
            if seen.epoch < 0 and not await self._make_folder(session, deadline):
                raise Unavailable(f"{self._where} did not answer in time")
            if self._port.now() >= deadline:
                raise Unavailable(f"{self._where}: others were faster, again and again")

    def _writing(
        self, path: str, value: bytes | None, fence: int | None, ttl: float | None, seen: _Seen
    ) -> Request:
        """One transaction. The last state that it tells is that of the cell."""
        if value is None and fence is None:
            if seen.version >= 0:
                return self._deletion(path, seen)
            return requests.multi(requests.set_data(f"{self._base}/{CELLS}", b"", seen.epoch))
        flags = (value is not None) * PRESENT | (fence is not None) * FENCED
        flags |= (ttl is not None) * ENDS
        data = HEADER.pack(FORMAT, flags, fence or 0, int((ttl or 0) * 1e6)) + (value or b"")
        check = requests.check(f"{self._base}/{CELLS}", seen.epoch)
        if seen.version >= 0:
            return requests.multi(check, requests.set_data(path, data, seen.version))
        make = requests.create(path, b"", self._place.acl)
        return requests.multi(check, make, requests.set_data(path, data, 0))

    async def _make_folder(self, session: Session, deadline: float) -> bool:
        (made,) = session.ask(requests.create(f"{self._base}/{CELLS}", b"", self._place.acl))
        if not await self._answered(made, deadline):
            return False
        if isinstance(made.error, NoNode):  # only then: who may create in the path that is there
            return await self._make_base(session, deadline)  # may not beside it. We come again
        if made.error is not None:
            self._unsure(made.error)
        return True

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
                    await port.sleep(LITTLE)
                    continue
                if (seen.cell.version if seen.cell else 0) != version or port.now() >= deadline:
                    return seen.cell
                limit = deadline
                if seen.ends_in is not None:
                    limit = min(limit, port.now() + seen.ends_in + 0.001)
                await event.wait(limit)
                if port.now() >= deadline and not event.is_set():
                    return seen.cell
            finally:
                session.unwatch(record)
                session.records.pop(key, None)
