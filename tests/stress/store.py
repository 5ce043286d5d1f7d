"""A store of the stress run's own, and what is done to it: `python -m tests.stress redis`,
`... postgres` or `... mariadb`.

Contract: what the faults do is what TCP and a crash do. Bytes are late, or the connection ends;
nothing is lost in the middle of a connection that goes on, so a fault that swallows frames ends
with a reset of everybody. The server is killed and comes back with what it has acknowledged (Redis:
its append-only file). Each fault's time is a stop, in which nobody can be served.
Partner: `crew.py`, which does things to the clients.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import holdfast
from holdfast.testing import FaultProxy
from tests.servers import MariaDBServer, PostgresServer, RedisServer, reaper
from tests.servers.base import Process, ServerError
from tests.servers.sql import SqlServer
from tests.stress.check import Span
from tests.stress.record import now

__all__ = ["STORES", "ServedStore"]

SHORT, LONG = 0.02, 1.5
"""Seconds of a fault."""
MEMORY = 2.0
"""Seconds for which Redis remembers a free lock's token here: then nothing at all is left."""


class ServedStore:
    """A server behind a proxy."""

    framing: str
    _server: Process

    def __init__(self, seed: int, calm: float) -> None:
        self._random = random.Random(f"store {seed}")
        self._calm = calm
        self._server = self._start()
        self._proxy = FaultProxy(("127.0.0.1", self._server.port), framing=self.framing)
        self.url = self._url(self._proxy.port)
        self.did: Counter[str] = Counter()
        self.stops: list[Span] = []
        self._next = now() + 2.0
        self._begun = 0.0
        self._ends = math.inf
        self._end: Callable[[], None] = self._proxy.heal
        self._faults: dict[str, Callable[[], Callable[[], None] | None]] = {
            **self._own_faults(),
            "resets": self._proxy.reset,
            "resets in a reply": self._half_a_reply,
            "resets in a request": self._half_a_request,
            "cuts": self._cut,
            "silences": self._silence,
            "one-way cuts": self._one_way,
            "delays": self._delay,
            "split frames": self._split,
            "stalls": self._stall,
            "server pauses": self._pause,
            "server kills": self._kill,
        }

    def pids(self) -> set[int]:
        """Of the processes that serve it."""
        return {self._server.pid, reaper.pid()}

    def advance(self) -> None:
        """Begin or end what is due."""
        moment = now()
        if moment >= self._ends:
            self._over()
        elif self._ends == math.inf and moment >= self._next:
            self._next = moment + min(5.0, self._random.expovariate(1 / self._calm))
            what = self._random.choice(list(self._faults))
            self.did[what] += 1
            self._begun = moment
            end = self._faults[what]()
            if end is not None:
                self._end = end
                length = math.exp(self._random.uniform(math.log(SHORT), math.log(LONG)))
                self._ends = now() + length
            else:
                self.stops.append((moment, now()))

    def heal(self) -> None:
        if self._ends < math.inf:
            self._over()
        self._proxy.heal()

    def _over(self) -> None:
        self._end()
        self.stops.append((self._begun, now()))
        self._ends = math.inf

    def _start(self) -> Process:
        raise NotImplementedError

    def _url(self, port: int) -> str:
        raise NotImplementedError

    def _own_faults(self) -> dict[str, Callable[[], Callable[[], None] | None]]:
        """What only this kind of server suffers."""
        raise NotImplementedError

    def _about_locks(self, frame: bytes) -> bool:
        raise NotImplementedError

    def leftovers(self, prefix: str, patience: float) -> Iterator[str]:
        """What is there when nothing should be."""
        raise NotImplementedError

    def figures(self) -> dict[str, object]:
        raise NotImplementedError

    def close(self) -> None:
        self._proxy.close()
        self._server.stop()

    # -- faults: what ends them, if they last -----------------------------------------------------

    def _half_a_reply(self) -> None:
        self._proxy.reset_on_reply(after=self._random.randint(0, 3), to=self._about_locks)

    def _half_a_request(self) -> None:
        self._proxy.reset_on_request(after=self._random.randint(0, 300), matching=self._about_locks)

    def _cut(self) -> Callable[[], None]:
        return self._proxy.sever().undo

    def _silence(self) -> Callable[[], None]:
        return self._then_reset(self._proxy.blackhole().undo)

    def _one_way(self) -> Callable[[], None]:
        return self._then_reset(self._proxy.one_way("to_client").undo)

    def _then_reset(self, undo: Callable[[], None]) -> Callable[[], None]:
        def end() -> None:
            self._proxy.reset()
            undo()

        return end

    def _delay(self) -> Callable[[], None]:
        return self._proxy.delay(self._random.uniform(0.005, 0.2)).undo

    def _split(self) -> Callable[[], None]:
        return self._proxy.split(self._random.randint(2, 40)).undo

    def _stall(self) -> Callable[[], None]:
        return self._proxy.hold("both").undo

    def _pause(self) -> Callable[[], None]:
        self._server.pause()
        return self._server.resume

    def _kill(self) -> None:
        before = _children()
        self._server.kill()
        # A database's processes die with it, and are ours then.
        for pid in _children() - before:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._server.restart()


def _children() -> set[int]:
    """Of this process: its own, and those it adopted."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {int(pid) for pid in pids.split()}


class RedisStore(ServedStore):
    framing = "resp"
    _server: RedisServer

    def _start(self) -> RedisServer:
        return RedisServer(persist=True).start()

    def _url(self, port: int) -> str:
        return f"redis://127.0.0.1:{port}/0?fence_memory={MEMORY}"

    def _own_faults(self) -> dict[str, Callable[[], Callable[[], None] | None]]:
        return {"script flushes": self._flush}

    def _flush(self) -> None:
        self._server.call("SCRIPT", "FLUSH")

    def _about_locks(self, frame: bytes) -> bool:
        return b"\r\nEVAL" in frame[:24]

    def leftovers(self, prefix: str, patience: float) -> Iterator[str]:
        """Every key expires by itself."""
        deadline = now() + patience + MEMORY
        while (keys := self._server.call("KEYS", f"*{{{prefix}*")) and now() < deadline:
            time.sleep(0.1)
        assert isinstance(keys, list)
        for key in keys:
            yield f"the key {key}, for {self._server.call('PTTL', str(key))} ms"

    def figures(self) -> dict[str, object]:
        info = self._server.info("stats")
        clients = self._server.info("clients")
        return {
            "server": f"redis-server {RedisServer.version()}",
            "commands since its last start": int(info["total_commands_processed"]),
            "connections now": int(clients["connected_clients"]) - 1,
        }


class SqlStore(ServedStore):
    """Sessions are killed as well. In the end nothing is left but what a sweep takes away."""

    _server: SqlServer
    scheme: str
    sessions: str

    def _own_faults(self) -> dict[str, Callable[[], Callable[[], None] | None]]:
        return {"session kills": self._kill_sessions}

    def _kill_sessions(self) -> None:
        raise NotImplementedError

    def leftovers(self, prefix: str, patience: float) -> Iterator[str]:
        with holdfast.connect(self.url, request_timeout=60) as locks:
            deadline = now() + patience
            while True:
                locks.sweep()
                rows = {table: int(self._count(table)) for table in ("holdfast", "holdfast_claims")}
                if not any(rows.values()) or now() >= deadline:
                    break
                time.sleep(0.2)
        for table, number in rows.items():
            if number:
                yield f"{number} rows in {table} after the sweep"

    def _count(self, table: str) -> str:
        raise NotImplementedError

    def figures(self) -> dict[str, object]:
        return {"server": f"{self._server.kind} {self._server.version()}"}


class PostgresStore(SqlStore):
    framing = "postgres"

    def _start(self) -> PostgresServer:
        return PostgresServer().start()

    def _url(self, port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable"

    def _about_locks(self, frame: bytes) -> bool:
        return frame[:1] in (b"P", b"B")

    def _kill_sessions(self) -> None:
        self._server.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'holdfast%'"
        )

    def _count(self, table: str) -> str:
        return self._server.query(f"SELECT count(*) FROM {table}")


class MariaDBStore(SqlStore):
    framing = "mysql"

    def _start(self) -> MariaDBServer:
        return MariaDBServer().start()

    def _url(self, port: int) -> str:
        return f"mysql://root@127.0.0.1:{port}/holdfast"

    def _about_locks(self, frame: bytes) -> bool:
        return frame[4:5] == b"\x03" and b"`holdfast" in frame

    def _kill_sessions(self) -> None:
        found = self._server.query(
            "SELECT ID FROM information_schema.PROCESSLIST"
            " WHERE DB = 'holdfast' AND ID <> CONNECTION_ID()"
        )
        for number in found.split():
            with contextlib.suppress(ServerError):  # it has ended by itself
                self._server.query(f"KILL {number}")

    def _count(self, table: str) -> str:
        return self._server.query(f"SELECT count(*) FROM holdfast.{table}")


STORES: dict[str, type[ServedStore]] = {
    "redis": RedisStore,
    "postgres": PostgresStore,
    "mariadb": MariaDBStore,
}
"""What may be named instead of a URL."""
