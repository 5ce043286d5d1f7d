"""Claims as nodes: attempt, wait, withdraw, renew, release. The recipe, without its traps.

The uncontended path: create and list are sent back to back, so one round trip says that we hold;
release is one delete. A claim that has to wait watches the claims that keep it waiting (`blockers`)
and looks again when one of them has gone: a delete, an event and a list for each hand-over, however
long the line.

Laws kept here: 1 (dated from before the create, or the sync of the look, that said so), 2 (what got
no answer is found by its GUID in its own session, after a sync; see `session.py` for why that is
enough), 3 (a claim whose session has ended is buried: its owner never has nodes in two sessions; a
late attempt meets a tombstone, which can be in memory because all requests of an owner come from
here), 7 (the token is the node's czxid). Putting a request on its session and writing down that it
was are one step for the port's other threads, so a withdrawal is always sent after what it undoes.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from kazoo import exceptions
from kazoo.protocol.serialization import (
    Create,
    Create2,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Sync,
)

from holdfast.backends.local import Tombstones, shown
from holdfast.backends.zookeeper.naming import (
    Contender,
    blockers,
    encoded,
    guid_of,
    in_order,
    prefix_of,
)
from holdfast.backends.zookeeper.pool import Pool
from holdfast.backends.zookeeper.session import Record, Session
from holdfast.backends.zookeeper.trouble import UNANSWERED, explained
from holdfast.backends.zookeeper.wire import CreateContainer, GetEphemerals, Place, Reply
from holdfast.core.backend import Signals
from holdfast.core.lease import valid_until
from holdfast.core.port import Port
from holdfast.errors import Unavailable
from holdfast.types import (
    AlreadyLost,
    Buried,
    Busy,
    Claim,
    Grant,
    Lost,
    Mode,
    Released,
    Renewed,
    Unknown,
)

__all__ = ["Claims", "info_of"]

EPHEMERAL_SEQUENTIAL = 3
CONTAINER = 4
PARENTS = 10_000
"""So many locks' nodes are remembered to exist."""

LITTLE = 0.01
SILENT = Unknown("the server did not answer in time")
CUT = Unknown("the connection was lost before the answer came")
NOT_OURS = "its node is gone: its time ran out, or somebody deleted it"


def info_of(data: bytes | None) -> Mapping[str, str]:
    """What a node says about its claim; kazoo's say who they are in plain text."""
    text = (data or b"").decode(errors="replace")
    try:
        info = json.loads(text)
    except ValueError:
        info = None
    if isinstance(info, dict):
        return {str(key): str(value) for key, value in info.items()}
    return {"label": text} if text else {}


class Claims:
    """The part of the backend that the core's acquire and keeper talk to."""

    def __init__(self, place: Place, where: str, base: str, containers: bool) -> None:
        self._place = place
        self._where = where
        self._base = base
        self._containers = containers

    def open(self, port: Port, signals: Signals) -> None:
        self._port = port
        self._pool = Pool(port, signals, self._place, self._where, self._expire)
        self._records: dict[str, Record] = {}
        self._graves = Tombstones()
        self._parents: OrderedDict[str, None] = OrderedDict()
        self._info: tuple[Mapping[str, str], bytes] = ({}, b"{}")
        self._incarnation = port.incarnation()

    async def close(self) -> None:
        if self._incarnation == self._port.incarnation():  # law 8
            await self._pool.close()

    # -- attempt ----------------------------------------------------------------------------------

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        port = self._port
        session = self._pool.ready(claim.ttl) or await self._pool.session(claim.ttl, deadline)
        with port.mutex():
            sent = port.now()
            if self._graves.graves and self._graves.cover(claim.owner, sent):
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
            return await self._created(record, replies, sent, queue, deadline)
        finally:
            self._unattended(record)

    def _unattended(self, record: Record) -> None:
        record.attended -= 1
        if not record.held:
            record.term = self._port.now() + record.claim.ttl
        self._pool.expect(record.term)

    def _create(self, record: Record) -> list[Reply]:
        """The node and the line, in one trip; the lock's own node before, unless it is known."""
        claim, parent = record.claim, record.parent
        info, data = self._info
        if claim.info is not info:  # the same object for every claim of one lock
            data = json.dumps(dict(claim.info), ensure_ascii=False).encode()
            self._info = claim.info, data
        acl = self._place.acl
        requests = [
            Create2(f"{parent}/{prefix_of(claim)}", data, acl, EPHEMERAL_SEQUENTIAL),
            GetChildren(parent, None),
        ]
        if parent not in self._parents:
            requests.insert(0, self._make_parent(parent))
        return record.session.ask(*requests)

    def _make_parent(self, parent: str) -> object:
        if self._containers:
            return CreateContainer(parent, b"", self._place.acl, CONTAINER)
        return Create(parent, b"", self._place.acl, 0)

    async def _created(
        self, record: Record, replies: list[Reply], sent: float, queue: bool, deadline: float
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
            if not isinstance(error, exceptions.NoNodeError):
                self._drop(record)
                raise explained(self._where, error)
            # The lock's node was not there, or went away as it was empty: there was no claim.
            self._parents.pop(record.parent, None)
            if len(replies) > 2 and not await self._make_base(record.session, deadline):
                return SILENT
            with self._port.mutex():
                if record.withdrawn:
                    return Buried()
                sent = self._port.now()
                replies = self._create(record)
        path, stat = created.value
        record.path, record.czxid = path, stat.czxid
        self._remember(record.parent)
        record.session.heard(sent)
        if listed.error is not None:
            return CUT if isinstance(listed.error, UNANSWERED) else self._vanished(record)
        return await self._judge(record, listed.value, sent, queue, deadline)

    def _remember(self, parent: str) -> None:
        parents = self._parents
        if parent not in parents:
            parents[parent] = None
            if len(parents) > PARENTS:
                parents.popitem(last=False)

    async def _make_base(self, session: Session, deadline: float) -> bool:
        """The path of the URL, which may be several nodes deep."""
        parts = self._base.split("/")[1:]
        if not parts:
            return True
        paths = ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]
        replies = session.ask(*(Create(path, b"", self._place.acl, 0) for path in paths))
        if not await self._answered(replies[-1], deadline):
            return False
        error = replies[-1].error
        if error is None or isinstance(error, exceptions.NodeExistsError):
            return True
        if isinstance(error, UNANSWERED):
            return False
        raise explained(self._where, error)

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
        _, listed = session.ask(Sync(record.parent), GetChildren(record.parent, None))
        if not await self._answered(listed, deadline):
            return SILENT
        if isinstance(listed.error, UNANSWERED):
            return CUT
        session.heard(sent)
        nodes: list[str] = [] if listed.error is not None else listed.value
        if record.path is None:
            found = await self._find(record, nodes, deadline)
            if isinstance(found, Unknown):
                return found
            if not found:
                with self._port.mutex():
                    if record.withdrawn:
                        return Buried()
                    sent = self._port.now()
                    replies = self._create(record)
                return await self._created(record, replies, sent, queue, deadline)
        return await self._judge(record, nodes, sent, queue, deadline)

    async def _find(self, record: Record, nodes: Sequence[str], deadline: float) -> bool | Unknown:
        """The node of a create without an answer: by its GUID, and by whose session's it is."""
        for node in nodes:
            if node.startswith(record.guid):
                path = f"{record.parent}/{node}"
                (seen,) = record.session.ask(Exists(path, None))
                if not await self._answered(seen, deadline):
                    return SILENT
                if seen.error is not None:
                    return CUT
                stat = seen.value
                if stat is not None and stat.ephemeralOwner == record.session.id:
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
        line = in_order(nodes)
        index = next((n for n, claim in enumerate(line) if claim.node == node), None)
        if index is None:
            return self._vanished(record)
        blocking = blockers(line, index)
        if not blocking:
            return self._grant(record, sent)
        if queue:
            return await self._stand_in_line(record, line, index, blocking, deadline)
        (deleted, seen) = record.session.ask(
            Delete(record.path, -1), GetData(f"{record.parent}/{line[0].node}", None)
        )
        if not await self._answered(seen, deadline):
            return SILENT
        if deleted.error is not None and not isinstance(deleted.error, exceptions.NoNodeError):
            return CUT
        self._drop(record)
        return Busy(_shown(seen), index)

    def _grant(self, record: Record, sent: float) -> Grant | Buried:
        claim, session = record.claim, record.session
        with self._port.mutex():
            if record.withdrawn or not session.usable:
                return Buried()
            record.held = True
            record.term = sent + claim.ttl
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
        self,
        record: Record,
        line: Sequence[Contender],
        index: int,
        blocking: Sequence[Contender],
        deadline: float,
    ) -> Busy | Unknown:
        """Watch who is in the way. Their data comes along, and says who holds."""
        session, parent = record.session, record.parent
        first = record.event is None
        if record.event is None:
            record.event = self._port.event()
        record.event.clear()
        paths = tuple(f"{parent}/{ahead.node}" for ahead in blocking)
        session.watch(record, paths)
        requests = [GetData(path, session.wire.watched) for path in paths]
        if first and line[0] is not blocking[-1]:
            requests.append(GetData(f"{parent}/{line[0].node}", None))
        replies = session.ask(*requests)
        if not await self._answered(replies[-1], deadline):
            return SILENT
        for reply in replies[: len(paths)]:
            if isinstance(reply.error, exceptions.NoNodeError):
                record.event.set()
            elif reply.error is not None:
                return CUT
        if record.withdrawn or not session.usable:
            record.event.set()
        return Busy(_shown(replies[-1]), index)

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> Grant | None:
        """The session keeps the place. What ends the wait is an event: one of those in the way has
        gone, the connection was lost, the claim was withdrawn. All of them are worth a look."""
        record = self._records.get(claim.owner)
        if record is None or record.event is None or record.withdrawn:
            await self._port.sleep(LITTLE)
            return None
        record.attended += 1
        try:
            await record.event.wait(None if deadline == math.inf else deadline)
        finally:
            self._unattended(record)
        return None

    # -- the end of a claim -----------------------------------------------------------------------

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        with self._port.mutex():
            if tombstone:
                now = self._port.now()
                self._graves.forget(now)
                self._graves.bury(claim.owner, now + claim.ttl)
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
                now = self._port.now()
                self._graves.bury(claim.owner, now + claim.ttl)
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
            now = self._port.now()
            if record.attended or now < record.term:
                return True
            record.withdrawn = True
            record.held = False
        return not isinstance(await self._remove(record, deadline), Unknown)

    async def _remove(self, record: Record, deadline: float) -> bool | Unknown:
        """Delete the node, again and again until that is confirmed or the session is gone; whether
        it was there."""
        session = record.session
        unsure = False
        while True:
            if not session.usable:
                await session.ended_event.wait(deadline)
            if session.gone:
                self._drop(record)
                return False
            if not session.usable or not await session.connected(deadline):
                return SILENT
            path = record.path
            if path is None:
                _, listed = session.ask(
                    Sync(record.parent), GetChildren(record.parent, None), spare=2
                )
                if not await self._answered(listed, deadline):
                    return SILENT
                if isinstance(listed.error, UNANSWERED):
                    continue
                nodes: list[str] = [] if listed.error is not None else listed.value
                found = [node for node in nodes if node.startswith(record.guid)]
                if not found:
                    self._drop(record)
                    return False
                path = f"{record.parent}/{found[0]}"
            sent = self._port.now()
            (deleted,) = session.ask(Delete(path, -1))
            if not await self._answered(deleted, deadline):
                return SILENT
            error = deleted.error
            if error is None or isinstance(error, exceptions.NoNodeError):
                session.heard(sent)
                self._drop(record)
                return error is None or unsure
            if not isinstance(error, UNANSWERED):
                raise explained(self._where, error)
            unsure = True

    def _drop(self, record: Record) -> None:
        session = record.session
        self._records.pop(record.claim.owner, None)
        session.records.pop(record.guid, None)
        session.unwatch(record)
        record.withdrawn = True
        record.nudge()

    # -- renewal ----------------------------------------------------------------------------------

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        """One sync and one list of all its nodes for each session, however many leases."""
        records = [self._records.get(grant.claim.owner) for grant in grants]
        sessions = {id(record.session): record.session for record in records if record is not None}
        seen = {key: await self._listed(session, deadline) for key, session in sessions.items()}
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

    async def _listed(
        self, session: Session, deadline: float
    ) -> tuple[float, set[str]] | Unknown | None:
        """When we asked, and all nodes of the session; None: it is over."""
        if session.usable and not await session.connected(deadline) and session.usable:
            return SILENT
        if not session.usable:
            return None
        sent = self._port.now()
        synced, listed = session.ask(Sync("/"), GetEphemerals(self._base or "/", None), spare=2)
        if not await self._answered(listed, deadline):
            session.doubt()
            return SILENT
        if isinstance(listed.error, UNANSWERED):
            return CUT if session.usable else None
        if synced.error is None:
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
        replies = session.ask(*(Exists(path, None) for path in paths))
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
                session.wire.send((Delete(path, -1), Reply()))

    async def _answered(self, reply: Reply, deadline: float) -> bool:
        if not reply.done and reply.event is not None:
            await reply.event.wait(deadline)
        return reply.done


def _shown(reply: Reply) -> str:
    """Who it is, for a message."""
    if reply.error is not None or not reply.value:
        return ""
    info = info_of(reply.value[0])
    return shown(info) if "host" in info else info.get("label", "")
