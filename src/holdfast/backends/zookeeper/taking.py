"""Taking a lock: one round trip if it is free, a place in line if it is not. The recipe.

The uncontended path: create and list are sent back to back, so one round trip says that we hold. A
claim that has to wait watches the claims that keep it waiting (`blockers`) and looks again when one
of them has gone: a delete, an event and a list for each hand-over, however long the line.

Laws kept here: 1 (dated from before the create, or the sync of the look, that said so), 2 (what got
no answer is found by its GUID in its own session, after a sync; `session.py` says why that is
enough), 3 (a claim whose session has ended is buried: its owner never has nodes in two sessions; a
late attempt meets a tombstone, which can be in memory because all requests of an owner come from
here) and 7 (the token is the node's czxid). Putting a request on its session and writing down that
it was are one step for the port's other threads: a withdrawal is always sent after what it undoes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

from holdfast.backends.common import shown
from holdfast.backends.zookeeper import requests
from holdfast.backends.zookeeper.ground import CUT, LITTLE, SILENT, Ground, info_of
from holdfast.backends.zookeeper.naming import (
    Standing,
    encoded,
    guid_of,
    prefix_of,
    standing,
)
from holdfast.backends.zookeeper.refusals import UNANSWERED, NoAuth, NodeExists, NoNode
from holdfast.backends.zookeeper.session import Record
from holdfast.backends.zookeeper.trouble import explained, hidden
from holdfast.backends.zookeeper.wire import Reply
from holdfast.core.lease import valid_until
from holdfast.errors import HoldfastError, Unavailable
from holdfast.types import Buried, Busy, Claim, Grant, Mode, Unknown

__all__ = ["Taking"]

NEAR = 8
"""So many in line are told who holds, at the price of a request; the others how many are ahead."""

PARENTS = 10_000
"""So many locks' nodes are remembered to exist."""


class Taking(Ground):
    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        port = self._port
        session = self._pool.ready(claim.ttl) or await self._pool.session(claim.ttl, deadline)
        with port.mutex():
            sent = port.now()
            if self._graves.cover(claim.owner, sent):
                return Buried()
            record = self._records.get(claim.owner)
            if record is None:
                parent = f"{self._base}/{encoded(claim.name)}"
                record = Record(claim, guid_of(claim.owner), parent, session, sent)
                record.attended = 1
                self._records[claim.owner] = session.records[record.guid] = record
                replies = self._create(record)
            else:
                record.attended += 1
                replies = None
        try:
            if replies is None:
                return await self._again(record, queue, deadline)
            return await self._created(record, sent, replies, queue, deadline)
        finally:
            self._unattended(record)

    def _unattended(self, record: Record) -> None:
        record.attended -= 1
        if not record.held:
            record.term = self._port.now() + record.claim.ttl
        self._pool.expect(record.session.look_by(record))

    def _create(self, record: Record) -> list[Reply]:
        """The node and the line, in one trip; the lock's own node before, unless it is known."""
        claim, parent = record.claim, record.parent
        acl, data = self._place.acl, self._info.of(claim.info)
        node = f"{parent}/{prefix_of(claim)}"
        asked = [
            requests.create(node, data, acl, requests.EPHEMERAL_SEQUENTIAL),
            requests.get_children(parent),
        ]
        if parent not in self._parents:
            if self._containers:
                asked.insert(0, requests.create_container(parent, acl))
            else:
                asked.insert(0, requests.create(parent, b"", acl))
        return record.session.ask(*asked, record=record)

    def _create_again(self, record: Record) -> tuple[float, list[Reply]] | None:
        """The first one surely made no node. None: the claim was given up meanwhile."""
        with self._port.mutex():
            return None if record.withdrawn else (self._port.now(), self._create(record))

    async def _created(
        self, record: Record, sent: float, replies: list[Reply], queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        while True:
            created, listed = replies[-2:]
            if not await self._answered(listed, deadline):
                return SILENT
            error = created.error
            if error is None:
                break
            if isinstance(error, UNANSWERED):
                return CUT
            # NoNode: the lock's own node was not there, or has just been removed as it was empty.
            above = replies[0].error if len(replies) > 2 else None
            if isinstance(error, NoNode) and above is not None:
                error = above
            if not isinstance(error, (NoNode, NodeExists)):
                self._drop(record)
                raise explained(self._where, error)
            self._parents.pop(record.parent, None)
            if isinstance(above, NoNode) and not await self._make_base(record.session, deadline):
                return SILENT
            if self._port.now() >= deadline:
                return SILENT
            made = self._create_again(record)
            if made is None:
                return Buried()
            sent, replies = made
        self._remember(record.parent)
        record.session.heard(sent)
        if isinstance(listed.error, UNANSWERED):
            return CUT
        if isinstance(listed.error, NoNode):
            return self._vanished(record)
        if listed.error is not None:
            await self._refused(record, explained(self._where, listed.error), deadline)
        return await self._judge(record, listed.value, sent, queue, deadline)

    async def _refused(self, record: Record, error: HoldfastError, deadline: float) -> NoReturn:
        """There is a node, and we may not see when it is its turn: it must not stay. (If it cannot
        be deleted now, the sitter does it when its time is over.)"""
        record.withdrawn = True
        await self._remove(record, deadline)
        raise error

    def _remember(self, parent: str) -> None:
        parents = self._parents
        if parent not in parents:
            parents[parent] = None
            if len(parents) > PARENTS:
                parents.popitem(last=False)

    async def _again(
        self, record: Record, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        """The same claim asks again: it was woken, or has not heard what became of its create."""
        session = record.session
        if record.withdrawn or not session.usable:
            return Buried()
        if not await session.connected(deadline):
            raise Unavailable(f"{self._where} could not be reached in time")
        sent = self._port.now()
        synced, listed = session.ask(
            requests.sync(record.parent), requests.get_children(record.parent)
        )
        if not await self._answered(listed, deadline):
            return SILENT
        if synced.error is not None or isinstance(listed.error, UNANSWERED):
            return CUT
        session.heard(sent)
        if listed.error is not None and not isinstance(listed.error, NoNode):
            await self._refused(record, explained(self._where, listed.error), deadline)
        nodes: list[str] = [] if listed.error is not None else listed.value
        if record.path is None:
            found = await self._find(record, nodes, deadline)
            if isinstance(found, Unknown):
                return found
            if not found:
                made = self._create_again(record)
                return await self._created(record, *made, queue, deadline) if made else Buried()
        return await self._judge(record, nodes, sent, queue, deadline)

    async def _find(self, record: Record, nodes: Sequence[str], deadline: float) -> bool | Unknown:
        """The node of a create without an answer: by its GUID, and by whose session's it is."""
        for node in nodes:
            if node.startswith(record.guid):
                path = f"{record.parent}/{node}"
                (seen,) = record.session.ask(requests.exists(path))
                if not await self._answered(seen, deadline):
                    return SILENT
                if seen.error is not None:
                    return CUT
                stat = seen.value
                if stat is not None and stat.ephemeral_owner == record.session.id:
                    record.path, record.czxid = path, stat.czxid
                    return True
        return False

    async def _judge(
        self, record: Record, nodes: list[str], sent: float, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        assert record.path is not None
        node = record.path[len(record.parent) + 1 :]
        if len(nodes) == 1 and nodes[0] == node:
            return self._grant(record, sent)
        where = standing(nodes, node)
        if where is None:
            return self._vanished(record)
        if not where.blocking:
            return self._grant(record, sent)
        if queue:
            return await self._stand_in_line(record, where, deadline)
        (deleted, seen) = record.session.ask(
            requests.delete(record.path), requests.get_data(f"{record.parent}/{where.first}")
        )
        if not await self._answered(seen, deadline):
            return SILENT
        if isinstance(deleted.error, UNANSWERED):
            return CUT
        if deleted.error is not None and not isinstance(deleted.error, NoNode):
            await self._refused(record, explained(self._where, deleted.error), deadline)
        self._drop(record)
        return Busy(_shown(seen), where.ahead)

    def _grant(self, record: Record, sent: float) -> Grant | Buried:
        claim, session = record.claim, record.session
        with self._port.mutex():
            # Said before looking: the wire's thread, which no mutex stops, ends the session before
            # it looks who holds. So one of us sees the other, or both.
            record.held = True
            record.term = sent + claim.ttl
            if record.withdrawn or not session.usable:
                record.held = False
                return Buried()
        session.unwatch(record)
        return Grant(
            claim,
            valid_until(sent, claim.ttl),
            None if claim.mode is Mode.PERMITS else record.czxid,
            certain_until=session.certain_until(record),
        )

    def _vanished(self, record: Record) -> Buried:
        """Somebody deleted our node: whoever still wants the lock is somebody new."""
        self._drop(record)
        return Buried()

    async def _stand_in_line(
        self, record: Record, where: Standing, deadline: float
    ) -> Busy | Unknown:
        """Watch who is in the way. Their data comes along, and says who holds."""
        session, parent = record.session, record.parent
        first = record.event is None
        if record.event is None:
            record.event = self._port.event()
        record.event.clear()
        paths = tuple(f"{parent}/{node}" for node in where.blocking)
        session.watch(record, paths)
        asked = [requests.get_data(path, session.wire.watched) for path in paths]
        near = where.ahead < NEAR
        if first and near and where.first != where.blocking[-1]:
            asked.append(requests.get_data(f"{parent}/{where.first}"))
        replies = session.ask(*asked)
        if not await self._answered(replies[-1], deadline):
            return SILENT
        for reply in replies[: len(paths)]:
            if isinstance(reply.error, NoNode):
                record.event.set()
            elif isinstance(reply.error, NoAuth):
                await self._refused(record, hidden(self._where), deadline)
            elif reply.error is not None:
                return CUT
        if record.withdrawn or not session.usable:
            record.event.set()
        return Busy(_shown(replies[-1]) if near else "", where.ahead)

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        """The session keeps the place. What ends the wait is an event: one of those in the way has
        gone, and here is the line; or the connection was lost, or the claim withdrawn."""
        record = self._records.get(claim.owner)
        if record is None or record.event is None or record.withdrawn:
            await self._port.sleep(LITTLE)
            return None
        record.attended += 1
        try:
            while await record.event.wait(None if deadline == math.inf else deadline):
                look, record.look = record.look, None
                if look is None or look.error is not None or record.withdrawn:
                    break
                answer = await self._judge(record, look.value, look.dated, True, deadline)
                if not isinstance(answer, Busy):
                    return answer if isinstance(answer, Grant) else None
        finally:
            self._unattended(record)
        return None


def _shown(reply: Reply) -> str:
    """Who it is, for a message."""
    if reply.error is not None or not reply.value:
        return ""
    info = info_of(reply.value[0])
    return shown(info) if "host" in info else info.get("label", "")
