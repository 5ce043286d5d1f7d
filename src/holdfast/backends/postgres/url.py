"""From a URL to a backend: the options, and which server is meant.

    postgresql://user:password@host:5432/database?strategy=row
    postgresql://user@h1,h2:5433/database?target_session_attrs=read-write     whichever is primary

Contract: no I/O. The options of TLS have the names that libpq gives them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from holdfast.backends.postgres.dialect import Postgres
from holdfast.backends.postgres.ear import LoopHearing, ThreadHearing
from holdfast.backends.postgres.session import PostgresSession
from holdfast.backends.postgres.speech import AdvisorySpeech, ForUpdateSpeech, TransactionSpeech
from holdfast.backends.sql.adoption import adopted, unfit
from holdfast.backends.sql.dialect import Connect, Hearing, Silence
from holdfast.backends.sql.session import Gone, Session
from holdfast.backends.sql.speech import RowSpeech, Speech
from holdfast.backends.sql.url import OPTIONS, build
from holdfast.backends.url import Option, Url
from holdfast.core.backend import Backend
from holdfast.core.port import Port

__all__ = ["PostgresBackend"]

PORT = 5432

LIBPQ = (
    Option(
        "sslmode",
        "",
        "whether to encrypt and what to check: disable to verify-full",
        ("", "disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    ),
    Option("sslrootcert", "", "file with the certificates of the authorities to trust"),
    Option("sslcert", "", "file with this client's certificate"),
    Option("sslkey", "", "file with its key"),
    Option(
        "target_session_attrs",
        "",
        "which of several hosts will do, e.g. read-write",
        ("", "any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    ),
)


class PostgresBackend:
    adopts = True
    options = (
        *OPTIONS,
        Option(
            "scope",
            "session",
            "strategy=advisory: what holds a lock, the session or a transaction in it",
            ("session", "transaction"),
        ),
        *LIBPQ,
    )

    @classmethod
    def from_url(cls, url: Url) -> Backend:
        values = url.options(cls.options, {})
        return build(_Driver(url, values), values)


class _Driver:
    dialect = Postgres()

    def __init__(self, url: Url, values: dict[str, Any]) -> None:
        self.where = str(url)
        self._source = url.source
        self._hosts = [(host or "localhost", port or PORT) for host, port in url.hosts] or [
            ("localhost", PORT)
        ]
        self._arguments: dict[str, Any] = {
            "user": url.user,
            "password": url.password,
            "dbname": url.path.strip("/"),
            "client_encoding": "UTF8",
            **{option.name: values[option.name] for option in LIBPQ},
        }

    def advisory(self, values: dict[str, Any]) -> Speech:
        kind = AdvisorySpeech if values["scope"] == "session" else TransactionSpeech
        return kind(values["table"], values["pooler"] == "session")

    def for_update(self, values: dict[str, Any]) -> RowSpeech:
        return ForUpdateSpeech(values["table"], values["pooler"] == "session")

    def connector(self, asynchronous: bool) -> Connect:
        if self._source is not None:

            async def adopt(deadline: float) -> Session:
                connection = await adopted(self._source, asynchronous, deadline)
                wanted = psycopg.AsyncConnection if asynchronous else psycopg.Connection
                if not isinstance(connection, wanted):
                    raise unfit(connection, "it takes psycopg 3 (postgresql+psycopg://)")
                session = PostgresSession(connection.pgconn, asynchronous)
                session.maker = connection
                return await _greeted(session, _mark(), deadline, foreign=True)

            return adopt

        async def connect(deadline: float) -> Session:
            # libpq would look up names without an end, and block the event loop meanwhile.
            hosts = self._hosts
            addresses = [""] * len(hosts)
            if asynchronous:
                hosts, addresses = await _looked_up(hosts)
            mark = _mark()
            arguments: dict[str, Any] = self._arguments | {
                "host": ",".join(host for host, _ in hosts),
                "hostaddr": ",".join(addresses) if any(addresses) else "",
                "port": ",".join(str(port) for _, port in hosts),
                "application_name": mark,
            }
            conninfo = make_conninfo("", **{k: v for k, v in arguments.items() if v}).encode()
            session = await PostgresSession.connect(conninfo, asynchronous, deadline)
            return await _greeted(session, mark, deadline)

        return connect

    def hearing(self, session: Session, port: Port) -> Hearing:
        if not isinstance(session, PostgresSession):
            return Silence(port)
        return LoopHearing(session, port) if port.asynchronous else ThreadHearing(session)


async def _looked_up(hosts: list[tuple[str, int]]) -> tuple[list[tuple[str, int]], list[str]]:
    loop = asyncio.get_running_loop()
    found: list[tuple[tuple[str, int], str]] = []
    for host, port in hosts:
        if host.startswith("/"):
            found.append(((host, port), ""))
            continue
        try:
            answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            if len(hosts) == 1:
                raise Gone(f"{host}: {error}", sent=False) from None
            continue
        found.extend(((host, port), str(answer[4][0])) for answer in answers)
    if not found:
        raise Gone("none of the hosts is known", sent=False)
    return [host for host, _ in found], [address for _, address in found]


def _mark() -> str:
    """What this session is called in pg_stat_activity: by operators, and by us when it must end."""
    return f"holdfast {secrets.token_hex(6)} {socket.gethostname()[:24]}:{os.getpid()}"


async def _greeted(
    session: PostgresSession, mark: str, deadline: float, *, foreign: bool = False
) -> Session:
    """libpq's idea of the server process is the one at the login: behind a pooler, another answers
    (comparing two answers would not show it: the pooler may choose the same server twice)."""
    told = session.told
    try:
        if foreign:
            if session.in_transaction:
                await session.run("ROLLBACK", (), deadline)
            naming = "SELECT set_config('application_name', %s, false)"
            await session.run(naming, (mark,), deadline)
        answer = await session.run("SELECT pg_backend_pid()", (), deadline)
    except BaseException:
        session.close()
        raise
    session.number, session.mark = answer.rows[0][0], mark
    session.pooled = session.number != told
    if not session.pooled:
        session.prepare()
    return session
