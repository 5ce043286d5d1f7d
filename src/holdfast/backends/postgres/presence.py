"""How PostgreSQL shows who is there: pg_stat_activity, by the name that a session gives itself.

Contract: `sql/sight.Sight`. Everybody may see the application_name of all sessions; it is gone
from the list after the session's last answer. A look is one statement and one transaction: inside
one, the list would stay what it was at its first use.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from holdfast.backends.sql.session import Session, Statement
from holdfast.core.presence import KEY, NAME
from holdfast.errors import Misconfigured

__all__ = ["PostgresSight"]

SETTING = "SELECT set_config('application_name', %s, false)"
PING: Statement = (
    "SELECT pg_backend_pid(), current_setting('application_name'), pg_is_in_recovery()",
    (),
)
# The server's start tells two servers apart that a pooler may lead us to.
LOOK: Statement = (
    "SELECT pg_is_in_recovery(), pg_postmaster_start_time()::text,"
    f" string_agg(substr(application_name, {len(NAME) + 1}), ' ')"
    f" FROM pg_stat_activity WHERE left(application_name, {len(NAME)}) = '{NAME}'",
    (),
)


class PostgresSight:
    everybody = True
    # "escape" keeps ASCII as it is, in any encoding of the database.
    presence = (
        f"convert_to(substring(encode(info, 'escape') from '\"{KEY}\":\"([^\"]*)\"'), 'UTF8')"
    )

    async def show(self, session: Session, name: str, trusted: bool, deadline: float) -> None:
        if session.pooled and not trusted:
            raise Misconfigured(
                "a pooler stands between us and the database, which would go on seeing the "
                "pooler's connections when we have died: crash_grace needs a connection to the "
                "database itself. Say pooler=session if the pooler gives each client one of its own"
            )
        await session.run(SETTING, (name,), deadline)
        session.mark = name

    def ping(self, name: str) -> Statement:
        return PING

    def wrong(self, session: Session, row: Sequence[Any]) -> str:
        number, name, replica = row
        if replica:
            return "the server is a replica by now"
        if (number, name) != (session.number, session.mark):
            return "another session of the server answers than the one we made"
        return ""

    def look(self, presences: Sequence[str]) -> Statement:
        return LOOK

    def seen(
        self, presences: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> tuple[Hashable, Mapping[str, Any]]:
        replica, started, there = rows[0]
        return None if replica else started, dict.fromkeys((there or "").split())
