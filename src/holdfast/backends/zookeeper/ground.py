"""What all parts of the backend stand on: sessions, records of claims, and the wait for an answer.

Contract: a `Record` is kept for every claim from before its node is asked for until it is known to
be gone. Partners: `taking.py`, `ending.py`, `renewal.py`, `cells.py`, `overview.py`, which are the
calls of the protocol, one theme each; `backend.py` puts them together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping

from holdfast.backends import common
from holdfast.backends.common import Tombstones, Written
from holdfast.backends.zookeeper import requests
from holdfast.backends.zookeeper.place import Place
from holdfast.backends.zookeeper.pool import Pool
from holdfast.backends.zookeeper.refusals import UNANSWERED, NoAuth, NodeExists, NoNode
from holdfast.backends.zookeeper.session import Record, Session
from holdfast.backends.zookeeper.trouble import explained
from holdfast.backends.zookeeper.wire import Reply
from holdfast.core.backend import Signals
from holdfast.core.port import Port
from holdfast.types import Unknown

__all__ = ["CUT", "LITTLE", "NOT_OURS", "SILENT", "Ground", "info_of"]

TTL_OF_A_LOOK = 30.0
"""Whose session is used when no lease is concerned."""

LITTLE = 0.005
"""Seconds to wait before asking again, where an answer was lost with its connection: the news that
there is none comes a moment later."""

SILENT = Unknown("the server did not answer in time")
CUT = Unknown("the connection was lost before the answer came")
NOT_OURS = "its node is gone: its time ran out, or somebody deleted it"


def info_of(data: bytes | None) -> Mapping[str, str]:
    """What a node says about its claim; kazoo's say who they are in plain text."""
    info = common.info_of(data or b"")
    return info or ({"label": data.decode(errors="replace")} if data else {})


class Ground(ABC):
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
        self._parents: OrderedDict[str, None] = OrderedDict()  # locks' nodes that were seen lately
        self._info = Written(str.encode)
        self._incarnation = port.incarnation()

    async def close(self) -> None:
        if self._incarnation == self._port.incarnation():  # law 8
            await self._pool.close()

    @abstractmethod
    async def _expire(self, record: Record, deadline: float) -> bool:
        """The sitter's: its time ran out and nobody renewed it (`ending.py`)."""

    @abstractmethod
    async def _remove(self, record: Record, deadline: float) -> bool | Unknown:
        """Delete the node of a claim that was withdrawn (`ending.py`)."""

    async def _some_session(self, deadline: float) -> Session:
        return self._pool.any() or await self._pool.session(TTL_OF_A_LOOK, deadline)

    async def _answered(self, reply: Reply, deadline: float) -> bool:
        if not reply.done and reply.event is not None:
            await reply.event.wait(deadline)
            if not reply.done:
                self._pool.expect(self._port.now())  # the sitter looks whether to leave this server
        return reply.done

    def _drop(self, record: Record) -> None:
        session = record.session
        self._records.pop(record.claim.owner, None)
        session.records.pop(record.guid, None)
        session.unwatch(record)
        record.withdrawn = True
        record.nudge()

    async def _make_base(self, session: Session, deadline: float) -> bool:
        """The path of the URL, which may be several nodes deep."""
        parts = self._base.split("/")[1:]
        if not parts:
            return True
        paths = ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]
        replies = session.ask(*(requests.create(path, b"", self._place.acl) for path in paths))
        if not await self._answered(replies[-1], deadline):
            return False
        error = replies[-1].error
        if error is None or isinstance(error, NodeExists):
            return True
        if isinstance(error, UNANSWERED):
            return False
        if isinstance(error, NoNode):  # as the one above it was refused
            refused = (reply.error for reply in replies if isinstance(reply.error, NoAuth))
            error = next(refused, error)
        raise explained(self._where, error)
