"""The SQL backends' strategies: real servers behind a proxy that knows where a message ends.

Clients are the user of docs/backends/*-grants.sql, who may do what those files say and nothing
else. All tests of a class use the same tables, emptied before each. A lost reply is a connection
that is cut, because nothing else loses one. Hooks that reach into the store use a connection of
their own, past the proxy.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import psycopg
import pymysql

from holdfast.backends.mysql.dialect import MySQL
from holdfast.backends.mysql.speech import ForUpdateSpeech as MySQLForUpdate
from holdfast.backends.postgres.dialect import Postgres
from holdfast.backends.postgres.speech import ForUpdateSpeech as PostgresForUpdate
from holdfast.backends.sql.dialect import Dialect
from holdfast.backends.sql.schema import Tables, ddl
from holdfast.testing import FaultProxy
from holdfast.testing.conformance import NotApplicable, Strategy
from tests.servers import MariaDBServer, PostgresServer

PAGES = Path(__file__).parents[2] / "docs" / "backends"
USER, PASSWORD = "app", "p%w/d:@ü"
LOGIN = f"{USER}:{quote(PASSWORD, safe='')}"


def statements(text: str) -> list[str]:
    return [part.strip() for part in re.sub(r"--.*", "", text).split(";") if part.strip()]


class SqlStrategy(Strategy):
    short_ttl = 0.3
    claim_window = 1.0
    options = "window=1&heartbeat=0.3"
    more = ""
    framing: ClassVar[str]
    dialect: ClassVar[Dialect]
    grants: ClassVar[str]
    bound_ddl: ClassVar[list[str]]  # of the connection-bound strategies
    tables: tuple[str, ...] = ("holdfast", "holdfast_claims", "holdfast_cells")
    _paused = False

    def __init__(self, server: MariaDBServer | PostgresServer) -> None:
        self.server = server

    def start_server(self) -> None:
        self.proxy = FaultProxy(("127.0.0.1", self.server.port), framing=self.framing)
        self.admin = self.connect_admin()
        self.prepare()

    def stop_server(self) -> None:
        self.heal()
        self.admin.close()
        self.proxy.close()

    def prepare(self) -> None:
        """The tables, and a user who may use them as the page says."""
        for text in ddl(self.dialect, Tables(self.dialect, "holdfast")):
            self.say(text)
        for text in self.bound_ddl:
            self.say(text)
        self.add_user()
        for text in statements(PAGES.joinpath(self.grants).read_text()):
            self.say(text)

    def connect_admin(self) -> Any:
        raise NotImplementedError

    def add_user(self) -> None:
        raise NotImplementedError

    def say(self, text: str, values: tuple[Any, ...] | None = None) -> list[tuple[Any, ...]]:
        with self.admin.cursor() as cursor:
            cursor.execute(text, values)
            return list(cursor.fetchall()) if cursor.description else []

    def about_locks(self, frame: bytes) -> bool:
        raise NotImplementedError

    @contextlib.contextmanager
    def statements_limited(self, seconds: float) -> Iterator[None]:
        """The server ends whatever a new connection of our user asks for after so long."""
        self.limit_statements(seconds)
        try:
            yield
        finally:
            self.limit_statements(0)

    def limit_statements(self, seconds: float) -> None:
        raise NotImplementedError

    @property
    def where(self) -> str:
        raise NotImplementedError

    def url(self) -> str:
        for table in self.tables:
            self.say(f"DELETE FROM {table}")
        return f"{self.where}?{self.options}{self.more}"

    # -- on the way -------------------------------------------------------------------------------

    def heal(self) -> None:
        self.proxy.heal()
        if self._paused:
            self.resume_server()

    def sever_connections(self) -> None:
        self.proxy.sever()

    def hang(self) -> None:
        self.proxy.blackhole()

    def drop_next_reply(self) -> None:
        self.proxy.reset_on_reply(to=self.about_locks)

    def delay_next_request(self, seconds: float) -> None:
        self.proxy.delay_request(seconds, matching=self.about_locks)

    def delay_requests(self, seconds: float) -> None:
        self.proxy.delay(seconds, "to_server")

    def hold_requests(self) -> None:
        self.proxy.hold("to_server")

    def release_requests(self) -> None:
        self.proxy.release_held()

    def requests(self) -> int:
        return self.proxy.requests

    # -- in the store -----------------------------------------------------------------------------

    def pause_server(self) -> None:
        self._paused = True
        self.server.pause()

    def resume_server(self) -> None:
        self.server.resume()
        self._paused = False

    def restart_server(self) -> None:
        self.server.restart()
        self.admin.close()
        self.admin = self.connect_admin()

    def expire_now(self, name: str) -> None:
        # Some time ago: a renewal that waits for the row meanwhile has the time of its beginning,
        # and rightly extends what expired only after that.
        now = self.dialect.now
        ago = f"{now} - 60000000"
        self.say(
            f"UPDATE holdfast SET expires = {ago} WHERE name = %s AND expires > {now}",
            (name.encode(),),
        )
        self.say(
            f"UPDATE holdfast_claims SET expires = {ago} WHERE name = %s AND kind = 1",
            (name.encode(),),
        )

    def steal(self, name: str) -> None:
        for table in ("holdfast", "holdfast_claims"):
            self.say(f"DELETE FROM {table} WHERE name = %s", (name.encode(),))

    def leftovers(self) -> list[str]:
        now = self.dialect.now
        held = self.say(f"SELECT name, expires - {now} FROM holdfast WHERE expires > {now}")
        claims = self.say(
            f"SELECT name, kind, expires - {now} FROM holdfast_claims WHERE expires > {now}"
        )
        return [str(row) for row in (*held, *claims)]


class PostgresStrategy(SqlStrategy):
    bound_ddl = PostgresForUpdate("holdfast", pooler=False).schema
    name = "postgres-row"
    framing = "postgres"
    dialect = Postgres()
    grants = "postgresql-grants.sql"
    more = "&sslmode=disable"

    def connect_admin(self) -> Any:
        where = f"host=127.0.0.1 port={self.server.port} user=postgres dbname=postgres"
        return psycopg.connect(where, autocommit=True)

    def add_user(self) -> None:
        if not self.say("SELECT 1 FROM pg_roles WHERE rolname = %s", (USER,)):
            self.say(f"CREATE USER {USER}")
            self.say("REVOKE CREATE ON SCHEMA public FROM PUBLIC")

    def limit_statements(self, seconds: float) -> None:
        self.say(f"ALTER ROLE {USER} SET statement_timeout = {round(seconds * 1000)}")

    def about_locks(self, frame: bytes) -> bool:
        others = (b"set_config", b"pg_backend_pid", b"LISTEN")
        executed = frame.count(b"E\0\0\0\x09\0\0\0\0\0")  # what is set may travel with a request
        greeting = any(word in frame for word in others)
        return frame[:1] in (b"P", b"B") and (executed > 2 or not greeting)

    @property
    def where(self) -> str:
        return f"postgresql://{LOGIN}@127.0.0.1:{self.proxy.port}/postgres"


class MySQLStrategy(SqlStrategy):
    bound_ddl = MySQLForUpdate("holdfast", "holdfast", pooler=False).schema
    name = "mysql-row"
    framing = "mysql"
    dialect = MySQL()
    grants = "mysql-grants.sql"

    def connect_admin(self) -> Any:
        return pymysql.connect(
            host="127.0.0.1", port=self.server.port, user="root", database="holdfast",
            autocommit=True,
        )  # fmt: skip

    def add_user(self) -> None:
        self.say(f"CREATE USER IF NOT EXISTS {USER} IDENTIFIED BY %s", (PASSWORD,))

    def limit_statements(self, seconds: float) -> None:
        self.say(f"ALTER USER {USER} WITH MAX_STATEMENT_TIME {seconds}")

    def about_locks(self, frame: bytes) -> bool:
        return frame[4:5] == b"\x03" and b"`holdfast" in frame

    @property
    def where(self) -> str:
        return f"mysql://{LOGIN}@127.0.0.1:{self.proxy.port}/holdfast"


class _Polled(SqlStrategy):
    options = "strategy=optimistic&poll=0.1&window=1&heartbeat=0.3"
    claim_window = 0.0

    def requests(self) -> int:
        raise NotApplicable("who waits for an optimistic lock looks again and again, by design")


class PostgresOptimistic(_Polled, PostgresStrategy):
    name = "postgres-optimistic"


class MySQLOptimistic(_Polled, MySQLStrategy):
    name = "mysql-optimistic"


class MySQLNamedLock(MySQLStrategy):
    name = "mysql-named-lock"
    options = "wake=named-lock&heartbeat=0.3"
    claim_window = 3.0

    def requests(self) -> int:
        raise NotApplicable("each waiter waits on a connection of its own, and asks once a second")
