"""What operators see and may do: the names, who holds, who waits; and taking a lock away.

Contract: `inspect` and `evict` of `core/backend.py`. A look begins with a `sync`, so it is not
older than the question, and what a node's name says decides; what is in it is shown. What others
hide is left out of a list, and is an error to who asks for it by name. Partner: `naming.py`.
"""

from __future__ import annotations

import time

from holdfast.backends.common import holders
from holdfast.backends.zookeeper import requests
from holdfast.backends.zookeeper.ground import Ground, info_of
from holdfast.backends.zookeeper.naming import Contender, decoded, encoded, in_order
from holdfast.backends.zookeeper.refusals import UNANSWERED, NoAuth, NoNode
from holdfast.backends.zookeeper.requests import Stat
from holdfast.backends.zookeeper.session import Session
from holdfast.backends.zookeeper.trouble import explained
from holdfast.backends.zookeeper.wire import Reply
from holdfast.errors import Unavailable
from holdfast.types import ClaimInfo, LockInfo, Mode

__all__ = ["Overview"]


class Overview(Ground):
    async def inspect(self, prefix: str, exact: bool, deadline: float) -> list[LockInfo]:
        session = await self._some_session(deadline)
        names = [prefix]
        if not exact:
            nodes = await self._children(session, [self._base or "/"], deadline, exact=True)
            found = (decoded(node) for node in nodes[0])
            names = sorted(name for name in found if name is not None and name.startswith(prefix))
        parents = [f"{self._base}/{encoded(name)}" for name in names]
        children = await self._children(session, parents, deadline, exact)
        lines = [in_order(nodes) for nodes in children]
        infos: list[LockInfo] = []
        for name, parent, line in zip(names, parents, lines, strict=True):
            if line:
                info = await self._describe(session, name, parent, line, deadline, exact)
                if info is not None:
                    infos.append(info)
        return infos

    async def _describe(
        self,
        session: Session,
        name: str,
        parent: str,
        line: list[Contender],
        deadline: float,
        exact: bool,
    ) -> LockInfo | None:
        replies = session.ask(*(requests.get_data(f"{parent}/{claim.node}") for claim in line))
        await self._must_answer(replies, deadline, exact)
        if any(isinstance(reply.error, NoAuth) for reply in replies):
            return None
        hold: list[ClaimInfo] = []
        wait: list[ClaimInfo] = []
        for claim, reply, held in zip(line, replies, holders(line), strict=True):
            if reply.error is None:  # who left meanwhile is not shown
                (hold if held else wait).append(_info(claim, *reply.value))
        if not hold and not wait:
            return None
        writers = [holder.fence for holder in hold if holder.mode is Mode.EXCLUSIVE]
        return LockInfo(name, tuple(hold), tuple(wait), writers[0] if writers else None)

    async def evict(self, name: str, deadline: float) -> int:
        session = await self._some_session(deadline)
        parent = f"{self._base}/{encoded(name)}"
        (nodes,) = await self._children(session, [parent], deadline, exact=True)
        line = in_order(nodes)
        nodes = [claim.node for claim, held in zip(line, holders(line), strict=True) if held]
        if not nodes:
            return 0
        replies = session.ask(*(requests.delete(f"{parent}/{node}") for node in nodes))
        await self._must_answer(replies, deadline, exact=True)
        return sum(reply.error is None for reply in replies)

    async def _children(
        self, session: Session, parents: list[str], deadline: float, exact: bool
    ) -> list[list[str]]:
        if not parents:
            return []
        replies = session.ask(
            requests.sync(), *(requests.get_children(parent) for parent in parents)
        )[1:]
        await self._must_answer(replies, deadline, exact)
        return [[] if reply.error is not None else reply.value for reply in replies]

    async def _must_answer(self, replies: list[Reply], deadline: float, exact: bool) -> None:
        """All of them, if only that there is no such node; else the store is not available. Who
        looks at whatever there is does not see what others hide, and who asks for it is told."""
        harmless = (NoNode,) if exact else (NoNode, NoAuth)
        if not await self._answered(replies[-1], deadline):
            raise Unavailable(f"{self._where} did not answer in time")
        for reply in replies:
            if isinstance(reply.error, UNANSWERED):
                raise Unavailable(f"{self._where}: the connection was lost before the answer came")
            if reply.error is not None and not isinstance(reply.error, harmless):
                raise explained(self._where, reply.error)


def _info(claim: Contender, data: bytes, stat: Stat) -> ClaimInfo:
    return ClaimInfo(
        id=claim.guid[:8],
        mode=claim.mode,
        since=max(0.0, time.time() - stat.ctime / 1000),  # for people; nothing depends on it
        remaining=None,
        permits=claim.permits,
        fence=None if claim.mode is Mode.PERMITS else stat.czxid,
        info=info_of(data),
    )
