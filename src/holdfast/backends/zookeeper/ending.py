"""Giving up a claim: one delete, again and again until it is confirmed or the session is gone.

Laws kept here: 3 (what is deleted is what this owner has, found by its GUID if the create got no
answer; a claim of a session that was condemned is gone when the session is, and not before), 4
(every call returns by its deadline; what is then unknown, the keeper asks again) and 5 (a node's
name has its owner's hash, and nobody else is given that name).
"""

from __future__ import annotations

from holdfast.backends.zookeeper import requests
from holdfast.backends.zookeeper.ground import LITTLE, NOT_OURS, SILENT, Ground
from holdfast.backends.zookeeper.refusals import UNANSWERED, NoNode
from holdfast.backends.zookeeper.session import Record
from holdfast.backends.zookeeper.trouble import explained
from holdfast.types import AlreadyLost, Claim, Grant, Released, Unknown

__all__ = ["Ending"]


class Ending(Ground):
    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        with self._port.mutex():
            if tombstone:
                self._graves.bury(claim, self._port.now())
            record = self._records.get(claim.owner)
            if record is None:
                return Released()
            record.withdrawn = True
            record.held = False
        record.nudge()
        answer = await self._remove(record, deadline)
        return answer if isinstance(answer, Unknown) else Released()

    async def release(
        self, grant: Grant, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        claim = grant.claim
        with self._port.mutex():
            if tombstone:
                self._graves.bury(claim, self._port.now())
            record = self._records.get(claim.owner)
            if record is None:
                return AlreadyLost(NOT_OURS)
            held = record.held and record.session.usable and self._port.now() < record.term
            record.withdrawn = True
            record.held = False
        answer = await self._remove(record, deadline)
        if isinstance(answer, Unknown):
            return answer
        return Released() if held and answer else AlreadyLost(record.session.over or NOT_OURS)

    async def _expire(self, record: Record, deadline: float) -> bool:
        """The sitter's: its time ran out and nobody renewed it."""
        with self._port.mutex():
            early = self._port.now() < record.term and not record.session.gone
            if record.attended or early:
                return True
            record.withdrawn = True
            record.held = False
        return not isinstance(await self._remove(record, deadline), Unknown)

    async def _remove(self, record: Record, deadline: float) -> bool | Unknown:
        """Delete the node, again and again until that is confirmed or the session is gone; whether
        it was there until we did. (Another claim may end a session whose connection is lost and
        that nobody relies on any more, while a release waits for it: that releases, too. But what
        the server ended, while nobody vouched for it any more, was not ours to give back: a delete
        without an answer says nothing then.)"""
        session = record.session
        vouched = self._port.now() < session.deadline
        unsure = False
        while True:
            answers = session.usable and await session.connected(deadline)
            if not session.usable:  # it may have ended meanwhile, which is an answer
                await session.ended_event.wait(deadline)
            if session.gone:
                self._drop(record)
                return session.left or (unsure and vouched)
            if not answers:
                return SILENT
            path = record.path
            if path is None:
                synced, listed = session.ask(
                    requests.sync(record.parent), requests.get_children(record.parent)
                )
                if not await self._answered(listed, deadline):
                    return SILENT
                if synced.error is not None or isinstance(listed.error, UNANSWERED):
                    if self._port.now() >= deadline:
                        return SILENT
                    await self._port.sleep(LITTLE)
                    continue
                if listed.error is not None and not isinstance(listed.error, NoNode):
                    return Unknown(str(explained(self._where, listed.error)))
                nodes: list[str] = [] if listed.error is not None else listed.value
                found = [node for node in nodes if node.startswith(record.guid)]
                if not found:
                    self._drop(record)
                    return False
                path = f"{record.parent}/{found[0]}"
            sent = self._port.now()
            (deleted,) = session.ask(requests.delete(path))
            if not await self._answered(deleted, deadline):
                return SILENT
            error = deleted.error
            if error is None or isinstance(error, NoNode):
                session.heard(sent)
                self._drop(record)
                return error is None or unsure
            if not isinstance(error, UNANSWERED):
                return Unknown(str(explained(self._where, error)))
            unsure = True
            await self._port.sleep(LITTLE)
