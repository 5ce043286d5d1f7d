"""How MySQL and MariaDB show who is there: a named lock that the link's session holds.

Contract: `sql/sight.Sight`. GET_LOCK and IS_USED_LOCK need no privilege; the list of sessions
would need PROCESS, and has no names. But named locks cannot be listed: a look asks about every
presence that was found in a claim. The lock ends with its session, after the last answer of it.

Hazard: the name is the same for all links of a client, and the server may still believe in the one
before, if its end was not heard. Who may kill its own sessions may kill that one: no privilege.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from holdfast.backends.sql.session import Blocked, Refused, Session, Statement
from holdfast.core.presence import KEY, NAME
from holdfast.errors import Misconfigured

__all__ = ["MySQLSight"]

MARK = f'"{KEY}":"'

WRITABLE = ("0", "OFF")

KILLING = 2
"""Seconds that a killed session has to end."""


class MySQLSight:
    everybody = False
    presence = (
        f"CASE WHEN LOCATE('{MARK}', info) > 0"
        f" THEN SUBSTRING_INDEX(SUBSTRING_INDEX(info, '{MARK}', -1), '\"', 1) END"
    )

    async def show(self, session: Session, name: str, trusted: bool, deadline: float) -> None:
        cluster = (await session.run("SHOW VARIABLES LIKE 'wsrep_on'", (), deadline)).rows
        if cluster and cluster[0][1] == "ON" and not trusted:
            raise Misconfigured(
                "this server is a node of a Galera cluster, and sees only who is connected to "
                "itself: crash_grace would take the clients of other nodes for dead. Say "
                "pooler=session if every client, and the detector, is sent to the same node"
            )
        if (await session.run("SELECT GET_LOCK(%s, 0)", (name,), deadline)).rows[0][0] == 1:
            return
        earlier = (await session.run("SELECT IS_USED_LOCK(%s)", (name,), deadline)).rows[0][0]
        if earlier is not None:
            try:
                await session.run("KILL %s", (earlier,), deadline)
            except Refused:  # it has gone by itself
                pass
        taken = await session.run("SELECT GET_LOCK(%s, %s)", (name, KILLING), deadline)
        if taken.rows[0][0] != 1:
            raise Blocked("the server still believes in an earlier link of this client")

    def ping(self, name: str) -> Statement:
        return "SELECT IS_USED_LOCK(%s) = CONNECTION_ID(), @@global.read_only", (name,)

    def wrong(self, session: Session, row: Sequence[Any]) -> str:
        ours, read_only = row
        if not _writable(read_only):
            return "the server is read-only by now"
        return "" if ours == 1 else "another session of the server answers than the one we made"

    def look(self, presences: Sequence[str]) -> Statement:
        missing = "".join([", ISNULL(IS_USED_LOCK(%s))"] * len(presences))
        text = f"SELECT @@global.read_only, @@hostname, @@port, CONCAT(''{missing})"
        return text, tuple(NAME + presence for presence in presences)

    def seen(
        self, presences: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> tuple[Hashable, Mapping[str, Any]]:
        read_only, host, port, missing = rows[0]
        there = {who: None for who, gone in zip(presences, missing, strict=True) if gone == "0"}
        return (host, port) if _writable(read_only) else None, there


def _writable(read_only: Any) -> bool:
    """MariaDB's newest say it in words."""
    text = read_only.decode() if isinstance(read_only, bytes) else str(read_only)
    return text in WRITABLE
