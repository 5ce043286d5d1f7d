"""From a URL to a backend: the options, and which server is meant.

    mysql://user:password@host:3306/database?strategy=row
    mariadb://...                                           the same

Contract: no I/O, except that certificates are read from their files.
"""

from __future__ import annotations

import secrets
from typing import Any

import aiomysql  # pyright: ignore[reportMissingTypeStubs]
from pymysql.connections import Connection
from pymysql.constants import CLIENT

from holdfast.backends.mysql.dialect import MySQL
from holdfast.backends.mysql.loops import LoopSession
from holdfast.backends.mysql.speech import MARK, AdvisorySpeech, ForUpdateSpeech
from holdfast.backends.mysql.threads import ThreadSession
from holdfast.backends.sql.adoption import adopted, unfit
from holdfast.backends.sql.dialect import Connect, Hearing, Silence
from holdfast.backends.sql.session import Refused, Session, Statement
from holdfast.backends.sql.speech import RowSpeech, Speech
from holdfast.backends.sql.url import BOUND, OPTIONS, build
from holdfast.backends.tls import TLS, tls_of
from holdfast.backends.url import Option, Url
from holdfast.core.backend import Backend
from holdfast.core.port import Port
from holdfast.errors import Misconfigured

__all__ = ["MySQLBackend"]

PORT = 3306

EVERY_ROW = (1 << 64) - 1
# What the server's own settings must not decide. With `sql_select_limit` a line is read in part;
# with `completion_type` a COMMIT begins the next transaction, in which a hold is not committed; in
# `sql_mode` ORACLE a BEGIN is another statement.
GREETING: tuple[Statement, ...] = (
    ("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", ()),
    (
        "SET SESSION time_zone = '+00:00', autocommit = 1, completion_type = 0,"
        f" sql_select_limit = {EVERY_ROW}, sql_big_selects = 1, sql_mode = 'STRICT_TRANS_TABLES'",
        (),
    ),
    ("SELECT CONNECTION_ID(), DATABASE()", ()),
)
# What only a lock needs that lives as long as its connection. PROCESSLIST makes a temporary table
# on the server's disk, so nobody else asks for it.
IDENTITY: tuple[Statement, ...] = (
    ("SHOW VARIABLES LIKE 'wsrep_on'", ()),
    ("SELECT HOST FROM information_schema.PROCESSLIST WHERE ID = CONNECTION_ID()", ()),
)


class MySQLBackend:
    adopts = True
    options = (
        *OPTIONS,
        Option(
            "wake",
            "poll",
            "row: how who waits learns of its turn: by asking, or by `named-lock`s, which take a "
            "connection for each waiter",
            ("poll", "named-lock"),
        ),
        Option("fence", False, "strategy=advisory: whether leases carry a fencing token"),
        Option("socket", "", "path of the server's unix socket, instead of host and port"),
        Option("tls", False, "encrypt the connection"),
        *TLS,
    )

    @classmethod
    def from_url(cls, url: Url) -> Backend:
        values = url.options(cls.options, {})
        return build(_Driver(url, values), values)


class _Driver:
    dialect = MySQL()

    def __init__(self, url: Url, values: dict[str, Any]) -> None:
        url.refuse("hosts")
        self.where = str(url)
        self._source = url.source
        self._bound = values["strategy"] in BOUND
        self._database = url.path.strip("/")
        if not self._database:
            example = "mysql:///DATABASE" if url.source else "mysql://user@host:3306/DATABASE"
            raise Misconfigured(f"{url}: which database? {example}")
        host, port = url.hosts[0] if url.hosts else ("", None)
        self._arguments: dict[str, Any] = {
            "host": host or "localhost",
            "port": port or PORT,
            "user": url.user or None,
            # Both clients encode it as Latin-1, and the server means UTF-8.
            "password": url.password.encode().decode("latin-1"),
            "charset": "utf8mb4",
            "autocommit": True,
            "program_name": "holdfast",
        }
        if values["socket"]:
            self._arguments["unix_socket"] = values["socket"]
        tls = values["tls"] or values["tls_ca"] or values["tls_cert"]
        self._tls = tls_of(values) if tls else None

    def advisory(self, values: dict[str, Any]) -> Speech:
        pooler = values["pooler"] == "session"
        return AdvisorySpeech(values["table"], self._database, pooler, values["fence"])

    def for_update(self, values: dict[str, Any]) -> RowSpeech:
        return ForUpdateSpeech(values["table"], self._database, values["pooler"] == "session")

    def connector(self, asynchronous: bool) -> Connect:
        if self._source is not None:

            async def adopt(deadline: float) -> Session:
                connection = await adopted(self._source, asynchronous, deadline)
                wanted = aiomysql.Connection if asynchronous else Connection
                if not isinstance(connection, wanted):
                    raise unfit(connection, "it takes PyMySQL (mysql+pymysql://), and aiomysql")
                kind = LoopSession if asynchronous else ThreadSession
                return await self._greeted(await kind.adopt(connection, deadline), deadline)

            return adopt
        if asynchronous:
            arguments = self._arguments | {
                "db": self._database,
                "ssl": self._tls,
                "client_flag": CLIENT.FOUND_ROWS,
            }

            async def connect(deadline: float) -> Session:
                session = await LoopSession.connect(deadline, **arguments)
                return await self._greeted(session, deadline)

        else:
            # What aiomysql does without being asked: several statements at once.
            arguments = self._arguments | {
                "database": self._database,
                "ssl": self._tls,
                "ssl_disabled": self._tls is None,
                "client_flag": CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS,
            }

            async def connect(deadline: float) -> Session:
                session = await ThreadSession.connect(deadline, **arguments)
                return await self._greeted(session, deadline)

        return connect

    def hearing(self, session: Session, port: Port) -> Hearing:
        return Silence(port)

    async def _greeted(self, session: Session, deadline: float) -> Session:
        asked = (*GREETING, *IDENTITY) if self._bound else GREETING
        try:
            answers = (await session.batch(asked, deadline))[len(GREETING) - 1 :]
        except BaseException:
            session.close()
            raise
        session.number, session.database = answers[0].rows[0]
        if self._bound:
            _, cluster, host = answers
            session.clustered = bool(cluster.rows) and cluster.rows[0][1] == "ON"
            session.mark = host.rows[0][0]
            if ":" not in session.mark:  # by a unix socket, where all have the same address
                await _mark(session, deadline)
        return session


async def _mark(session: Session, deadline: float) -> None:
    """A named lock tells it from all others, as long as it lives."""
    mark = MARK + secrets.token_hex(16)
    try:
        await session.run("SELECT GET_LOCK(%s, 0)", (mark,), deadline)
    except Refused:  # Galera has none
        return
    except BaseException:
        session.close()
        raise
    session.mark = mark
