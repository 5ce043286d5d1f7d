"""Renewal: one `sync` and one list of its nodes for each session, however many leases.

Laws kept here: 1 (dated from before the sync, which is the contact that `session.py` is about) and
6 (a renewal never shortens, and brings nothing back: who ran out, or is not on the list, is lost).
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.zookeeper import requests
from holdfast.backends.zookeeper.ground import CUT, LITTLE, NOT_OURS, SILENT, Ground
from holdfast.backends.zookeeper.refusals import UNANSWERED
from holdfast.backends.zookeeper.session import Record, Session
from holdfast.backends.zookeeper.wire import Reply
from holdfast.core.lease import valid_until
from holdfast.types import Grant, Lost, Renewed, Unknown

__all__ = ["Renewal"]


Asked = tuple[float, Reply, Reply]
"""When, and what answers the sync and the list."""


class Renewal(Ground):
    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        """One sync and one list of all its nodes for each session, however many leases."""
        records = [self._records.get(grant.claim.owner) for grant in grants]
        sessions = {id(record.session): record.session for record in records if record is not None}
        # All are asked before any is waited for: one that is silent must not use up the others'
        # time.
        asked = {
            key: self._ask(session)
            for key, session in sessions.items()
            if session.usable and session.wire.up
        }
        seen = {
            key: await self._listed(session, asked.get(key), deadline)
            for key, session in sessions.items()
        }
        results: list[Renewed | Lost | Unknown] = []
        for grant, record in zip(grants, records, strict=True):
            listing = None if record is None else seen[id(record.session)]
            if isinstance(listing, Unknown):
                results.append(listing)
            elif record is None or listing is None or not self._extend(record, grant, *listing):
                results.append(Lost(record.session.over or NOT_OURS if record else NOT_OURS))
            else:
                results.append(Renewed(valid_until(listing[0], grant.claim.ttl)))
        return results

    def _extend(self, record: Record, grant: Grant, sent: float, paths: set[str]) -> bool:
        with self._port.mutex():
            held = record.held and self._port.now() < record.term
            if held and record.path in paths:
                record.term = max(record.term, sent + grant.claim.ttl)
                return True
        if held:
            self._drop(record)
        return False

    def _ask(self, session: Session) -> Asked:
        sent = self._port.now()
        synced, listed = session.ask(requests.sync(), requests.ephemerals(self._base or "/"))
        return sent, synced, listed

    async def _listed(
        self, session: Session, asked: Asked | None, deadline: float
    ) -> tuple[float, set[str]] | Unknown | None:
        """When we asked, and all nodes of the session; None: it is over."""
        while True:
            if asked is None:
                if session.usable and not await session.connected(deadline) and session.usable:
                    return SILENT
                if not session.usable:
                    return None
                asked = self._ask(session)
            sent, synced, listed = asked
            if not await self._answered(listed, deadline):
                session.doubt()
                return SILENT
            # Without the sync it is only what this server knows, which the leader may not.
            if synced.error is None and not isinstance(listed.error, UNANSWERED):
                break
            if self._port.now() >= deadline:
                return CUT
            await self._port.sleep(LITTLE)
            asked = None
        session.heard(sent)
        if listed.error is not None:
            return await self._listed_one_by_one(session, sent, deadline)
        paths = set(listed.value)
        self._sweep(session, paths)
        return sent, paths

    async def _listed_one_by_one(
        self, session: Session, sent: float, deadline: float
    ) -> tuple[float, set[str]] | Unknown:
        """For servers before 3.6, which do not list a session's nodes."""
        paths = [record.path for record in list(session.records.values()) if record.path]
        if not paths:
            return sent, set()
        replies = session.ask(*(requests.exists(path) for path in paths))
        if not await self._answered(replies[-1], deadline):
            return SILENT
        if any(reply.error is not None for reply in replies):
            return CUT
        return sent, {
            path for path, reply in zip(paths, replies, strict=True) if reply.value is not None
        }

    def _sweep(self, session: Session, paths: set[str]) -> None:
        """A node of ours that belongs to no claim would stand for as long as the session does."""
        for path in paths:
            guid = path.rpartition("/")[2][:32]
            if guid not in session.records and path.startswith(f"{self._base}/"):
                session.wire.send((requests.delete(path), Reply()))
