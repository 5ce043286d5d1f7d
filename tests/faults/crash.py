"""What the tests of the crash detector have in common: detectors, as processes or turned by hand,
and stores whose links can be seen and cut."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pymysql

import holdfast
from holdfast.core.presence import Suspect
from holdfast.ports.clock import now
from holdfast.ports.thread import drive
from holdfast.sentinel.detector import Detector
from holdfast.testing import FaultProxy
from tests.cli.harness import started
from tests.faults.peers import Peer
from tests.servers import MariaDBServer, PostgresServer, RedisMasters, RedisServer
from tests.waiting import until

_numbers = itertools.count()


def plain(url: str) -> str:
    """The same store, for somebody who did not opt in."""
    return re.sub("crash_grace=[^&]*", "crash_grace=0", url)


def presence_of(peer: Peer) -> str:
    return str(peer.run("locks._current.backend._presence"))


class Pulse:
    """The longest that this process stood still, or had to wait for its turn. Of two threads that
    were both due meanwhile, either may have gone on first."""

    def __init__(self) -> None:
        self.worst = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        last = now()
        while not self._over.wait(0.005):
            self.worst, last = max(self.worst, now() - last), now()


class Watch:
    """A running `holdfast sentinel`, and what it has said."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self.process = process
        self._path = path

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = self._path.read_text().splitlines()
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in found if event["event"] == kind]

    def wait(self, kind: str, count: int = 1) -> dict[str, Any]:
        until(lambda: len(self.events(kind)) >= count, f"{count} x {kind}")
        return self.events(kind)[count - 1]

    def leads(self) -> None:
        self.wait("leading")


@contextmanager
def watching(url: str, folder: Path, name: str = "sentinel") -> Iterator[Watch]:
    path = folder / f"{name}.json"
    with path.open("w") as output, started("sentinel", url, "--json", stdout=output) as process:
        watch = Watch(process, path)
        until(lambda: watch.events("standby"), "it has begun")
        yield watch
        assert process.poll() in (None, 0, -9), "it ended"


class Turned:
    """A detector that is turned by hand, in this process."""

    def __init__(self, locks: holdfast.Locks) -> None:
        engine = locks._current
        self.said: list[tuple[str, Suspect | None]] = []
        backend: Any = engine.backend
        self.roll = backend.roll()
        self.detector = Detector(engine.port, self.roll, self._hear)

    def _hear(self, event: str, suspect: Suspect | None = None, **more: object) -> None:
        self.said.append((event, suspect))

    def turn(self, *awaited: str) -> int:
        """How often it has said one of these by then."""
        again = drive(self.detector.turn())
        time.sleep(max(0.0, again - now()))
        return sum(self.heard(event) for event in awaited)

    def heard(self, event: str) -> int:
        return [said for said, _ in self.said].count(event)

    def close(self) -> None:
        drive(self.detector.close())


# -- links -----------------------------------------------------------------------------------------


def links(server: RedisServer) -> dict[str, str]:
    """presence -> id, of all who are seen."""
    listed = str(server.call("CLIENT", "LIST", "TYPE", "normal"))
    return {
        found[2]: found[1]
        for line in listed.splitlines()
        if (found := re.search(r"^id=(\d+) .* name=holdfast:(\S+) ", line))
    }


def cut(server: RedisServer, presence: str | None = None) -> int:
    """Kill the links, or one of them; how many."""
    found = [number for who, number in links(server).items() if presence in (None, who)]
    return sum(int(str(server.call("CLIENT", "KILL", "ID", number))) for number in found)


class Store:
    """A server whose links can be seen, and cut."""

    framing: ClassVar[str]
    options: ClassVar[str] = ""
    space: ClassVar[str] = "table"
    """The option that gives a test keys or tables of its own."""
    shares: ClassVar[bool] = True
    """Whether there are other claims than exclusive ones, and a line to be seen."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.url: str = server.url
        self.ports: list[int] = [server.port]

    def links(self) -> dict[str, Any]:
        raise NotImplementedError

    def end(self, number: Any) -> None:
        raise NotImplementedError

    def cut(self, presence: str | None = None) -> int:
        found = [number for who, number in self.links().items() if presence in (None, who)]
        for number in found:
            self.end(number)
        return len(found)

    def close(self) -> None:
        pass

    def fresh(self, grace: float) -> str:
        """The store, where nobody else has been, for clients with this grace."""
        own = f"{self.space}=crash_{os.getpid()}_{next(_numbers)}"
        return f"{self.url}?{own}&crash_grace={grace:g}{self.options}"

    @contextmanager
    def behind_proxies(self, url: str) -> Iterator[tuple[str, list[FaultProxy]]]:
        """The same store, by another way."""
        with ExitStack() as stack:
            proxies: list[FaultProxy] = []
            for port in self.ports:
                proxy = FaultProxy(("127.0.0.1", port), framing=self.framing)
                proxies.append(stack.enter_context(proxy))
                url = url.replace(f":{port}", f":{proxy.port}")
            yield url, proxies


class RedisStore(Store):
    framing = "resp"
    space = "prefix"
    server: RedisServer

    def links(self) -> dict[str, Any]:
        return dict(links(self.server))

    def end(self, number: Any) -> None:
        self.server.call("CLIENT", "KILL", "ID", number)


class RedlockStore(Store):
    framing = "resp"
    options = "&quarantine=off&max_ttl=60&node_timeout=1"
    space = "prefix"
    shares = False

    def __init__(self, server: RedisMasters) -> None:
        self.server = server
        self.nodes = server.nodes
        self.url = server.url
        self.ports = [node.port for node in server.nodes]

    def links(self) -> dict[str, Any]:
        """Whoever is seen anywhere, and where."""
        found: dict[str, Any] = {}
        for node in self.nodes:
            for who, number in links(node).items():
                found.setdefault(who, []).append((node, number))
        return found

    def end(self, number: Any) -> None:
        for node, one in number:
            node.call("CLIENT", "KILL", "ID", one)


class MariaDBStore(Store):
    framing = "mysql"
    server: MariaDBServer

    def __init__(self, server: MariaDBServer) -> None:
        super().__init__(server)
        self._admin = pymysql.connect(
            host="127.0.0.1", port=server.port, user="root", autocommit=True
        )
        # Lists named locks, which holdfast itself cannot.
        self.say("INSTALL PLUGIN IF NOT EXISTS METADATA_LOCK_INFO SONAME 'metadata_lock_info'")

    def say(self, text: str) -> list[tuple[Any, ...]]:
        with self._admin.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetchall())

    def links(self) -> dict[str, Any]:
        rows = self.say(
            "SELECT TABLE_SCHEMA, THREAD_ID FROM information_schema.METADATA_LOCK_INFO"
            " WHERE LOCK_TYPE = 'User lock'"
        )
        mark = "holdfast:"
        return {name[len(mark) :]: number for name, number in rows if name.startswith(mark)}

    def end(self, number: Any) -> None:
        try:
            self.say(f"KILL {number}")
        except pymysql.Error:  # it has gone by itself
            pass

    def close(self) -> None:
        self._admin.close()


class PostgresStore(Store):
    framing = "postgres"
    options = "&sslmode=disable"
    server: PostgresServer

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(server)
        where = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
        self._admin = psycopg.connect(where, autocommit=True)

    def say(self, text: str) -> list[tuple[Any, ...]]:
        with self._admin.cursor() as cursor:
            cursor.execute(text)  # type: ignore[call-overload,unused-ignore]
            return list(cursor.fetchall())

    def links(self) -> dict[str, Any]:
        rows = self.say(
            "SELECT application_name, pid FROM pg_stat_activity"
            " WHERE application_name LIKE 'holdfast:%'"
        )
        return {name.removeprefix("holdfast:"): number for name, number in rows}

    def end(self, number: Any) -> None:
        self.say(f"SELECT pg_terminate_backend({number})")

    def close(self) -> None:
        self._admin.close()
