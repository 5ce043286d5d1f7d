"""`zk://`: which servers a URL means, what it promises, and what operators see.

Contract: `core/backend.py`. Opening contacts nobody. Partners: `claims.py`, the recipe; `naming.py`,
what nodes are called; `session.py`, how long they live; `cells.py`, the values beside the locks.
"""

from __future__ import annotations

import time
from typing import Any

from kazoo import exceptions
from kazoo.protocol.serialization import Delete, GetChildren, GetData, Sync
from kazoo.protocol.states import ZnodeStat
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from holdfast.backends.url import Option, Url
from holdfast.backends.zookeeper.cells import Cells
from holdfast.backends.zookeeper.claims import info_of
from holdfast.backends.zookeeper.naming import Contender, decoded, encoded, granted, in_order
from holdfast.backends.zookeeper.session import Session
from holdfast.backends.zookeeper.trouble import UNANSWERED, explained
from holdfast.backends.zookeeper.wire import Place, Reply
from holdfast.errors import Misconfigured, Unavailable
from holdfast.types import Capabilities, ClaimInfo, LockInfo, Mode

__all__ = ["ZooKeeperBackend"]

PORT, TLS_PORT = 2181, 2281

ACLS: dict[str, Any] = {
    "open": tuple(OPEN_ACL_UNSAFE),
    "creator": (*CREATOR_ALL_ACL, *READ_ACL_UNSAFE),
    "private": tuple(CREATOR_ALL_ACL),
}


class ZooKeeperBackend(Cells):
    """`zk://[user:password@]host[:port],.../path`: locks are the children of `/path`."""

    options: tuple[Option, ...] = (
        Option(
            "acl",
            "",
            "who may take, release and evict: `open` (everybody; the default without a user), "
            "`creator` (only this user, others may look; the default with one), `private`",
            choices=("open", "creator", "private"),
        ),
        Option(
            "auth",
            "digest",
            "how user and password are presented: ZooKeeper's own `digest`, or by SASL",
            choices=("digest", "sasl"),
        ),
        Option(
            "parents",
            "container",
            "what a lock's own node is: a `container`, which the server removes when it is empty, "
            "or `persistent`, as kazoo makes it, which stays",
            choices=("container", "persistent"),
        ),
        Option("tls", False, "encrypt the connection (port 2281 unless the URL names one)"),
        Option("ca", "", "file with the certificates to trust; the system's if not given"),
        Option("cert", "", "file with the client's own certificate"),
        Option("key", "", "file with the client's own key"),
        Option("verify_host", True, "whether the server's certificate must name the host"),
    )
    capabilities = Capabilities(
        modes=frozenset(Mode),
        fairness="fifo",
        fencing=frozenset({Mode.EXCLUSIVE, Mode.SHARED}),
        crash_release="session",
        failover="nothing that a quorum has acknowledged",
    )

    @classmethod
    def from_url(cls, url: Url) -> ZooKeeperBackend:
        values = url.options(cls.options, {})
        if not url.hosts:
            raise Misconfigured("zk:// needs a host: zk://localhost:2181")
        tls = bool(values["tls"])
        port = TLS_PORT if tls else PORT
        hosts = ",".join(
            f"{f'[{host}]' if ':' in host else host}:{number or port}" for host, number in url.hosts
        )
        acl = values["acl"] or ("creator" if url.user else "open")
        if acl != "open" and not url.user and not values["cert"]:
            raise Misconfigured(f"?acl={acl} needs to know whose: put a user into the URL")
        place = Place(hosts, ACLS[acl], **_login(url, values), tls=_tls(values) if tls else {})
        base = "/" + "/".join(encoded(part) for part in url.path.split("/") if part)
        return cls(place, str(url), base.rstrip("/"), values["parents"] == "container")

    # -- what operators see -----------------------------------------------------------------------

    async def inspect(self, prefix: str, exact: bool, deadline: float) -> list[LockInfo]:
        session = await self._some_session(deadline)
        names = [prefix]
        if not exact:
            nodes = await self._children(session, [self._base or "/"], deadline)
            found = (decoded(node) for node in nodes[0])
            names = sorted(name for name in found if name is not None and name.startswith(prefix))
        parents = [f"{self._base}/{encoded(name)}" for name in names]
        lines = [in_order(nodes) for nodes in await self._children(session, parents, deadline)]
        infos: list[LockInfo] = []
        for name, parent, line in zip(names, parents, lines, strict=True):
            if line:
                info = await self._describe(session, name, parent, line, deadline)
                if info is not None:
                    infos.append(info)
        return infos

    async def _describe(
        self, session: Session, name: str, parent: str, line: list[Contender], deadline: float
    ) -> LockInfo | None:
        replies = session.ask(*(GetData(f"{parent}/{claim.node}", None) for claim in line))
        await self._must_answer(replies, deadline)
        holders: list[ClaimInfo] = []
        waiters: list[ClaimInfo] = []
        for claim, reply, held in zip(line, replies, granted(line), strict=True):
            if reply.error is None:  # who left meanwhile is not shown
                (holders if held else waiters).append(_info(claim, *reply.value))
        if not holders and not waiters:
            return None
        writers = [holder.fence for holder in holders if holder.mode is Mode.EXCLUSIVE]
        return LockInfo(name, tuple(holders), tuple(waiters), writers[0] if writers else None)

    async def evict(self, name: str, deadline: float) -> int:
        session = await self._some_session(deadline)
        parent = f"{self._base}/{encoded(name)}"
        (nodes,) = await self._children(session, [parent], deadline)
        line = in_order(nodes)
        holders = [claim for claim, held in zip(line, granted(line), strict=True) if held]
        if not holders:
            return 0
        replies = session.ask(*(Delete(f"{parent}/{claim.node}", -1) for claim in holders))
        await self._must_answer(replies, deadline)
        return sum(reply.error is None for reply in replies)

    async def _children(
        self, session: Session, parents: list[str], deadline: float
    ) -> list[list[str]]:
        if not parents:
            return []
        replies = session.ask(Sync("/"), *(GetChildren(parent, None) for parent in parents))[1:]
        await self._must_answer(replies, deadline)
        return [[] if reply.error is not None else reply.value for reply in replies]

    async def _must_answer(self, replies: list[Reply], deadline: float) -> None:
        """All of them, if only that there is no such node; else the store is not available."""
        if not await self._answered(replies[-1], deadline):
            raise Unavailable(f"{self._where} did not answer in time")
        for reply in replies:
            if isinstance(reply.error, UNANSWERED):
                raise Unavailable(f"{self._where}: the connection was lost before the answer came")
            if reply.error is not None and not isinstance(reply.error, exceptions.NoNodeError):
                raise explained(self._where, reply.error)


def _login(url: Url, values: dict[str, Any]) -> dict[str, Any]:
    if not url.user:
        return {}
    if values["auth"] == "digest":
        return {"auth": (("digest", f"{url.user}:{url.password}"),)}
    return {
        "sasl": {"mechanism": "DIGEST-MD5", "username": url.user, "password": url.password}
    }


def _tls(values: dict[str, Any]) -> dict[str, Any]:
    if bool(values["cert"]) != bool(values["key"]):
        raise Misconfigured("a client's certificate needs its key: give ?cert= and ?key=")
    return {
        "use_ssl": True,
        "ca": values["ca"] or None,
        "certfile": values["cert"] or None,
        "keyfile": values["key"] or None,
        "check_hostname": values["verify_host"],
    }


def _info(claim: Contender, data: bytes, stat: ZnodeStat) -> ClaimInfo:
    return ClaimInfo(
        id=claim.guid[:8],
        mode=claim.mode,
        since=max(0.0, time.time() - stat.ctime / 1000),  # for people; nothing depends on it
        remaining=None,
        permits=claim.permits,
        fence=None if claim.mode is Mode.PERMITS else stat.czxid,
        info=info_of(data),
    )
