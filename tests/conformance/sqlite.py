"""The sqlite backend's strategies: the file itself, and the file behind a network that fails.

A file has no connection to cut and no reply to lose, so `SqliteStrategy` has only what can happen
to it: somebody stays inside, expiry, deletion. `BrokenSqliteStrategy` puts the network of the
memory backend's tests between the two halves (`broken+sqlite://NAME`), so that the rules
in SQL are tested against ghosts and lost replies as well.
"""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import holdfast
from holdfast.backends.local import Link
from holdfast.backends.sqlite import SqliteBackend, schema, sites
from holdfast.backends.sqlite.backend import _furnish
from holdfast.backends.sqlite.site import Site
from holdfast.backends.url import Url
from holdfast.core.backend import Signals
from holdfast.core.port import Port
from holdfast.ports import clock
from holdfast.testing.conformance import NotApplicable, Strategy
from tests.conformance.network import BrokenLink, Network, NetworkStrategy
from tests.servers.home import Home

_numbers = itertools.count()


class _Files:
    """Fresh databases in one temporary folder, and the hooks that reach into the file."""

    folder: Path
    path: Path

    def start_server(self) -> None:
        self._home = Home("sqlite")
        self.folder = self._home.path

    def stop_server(self) -> None:
        self._home.close()

    def fresh(self) -> Path:
        self.path = self.folder / f"{next(_numbers)}.db"
        return self.path

    def _change(self, sql: str, *values: Any) -> None:
        db = sqlite3.connect(self.path, timeout=10, isolation_level=None)
        try:
            db.execute(sql, values)
        finally:
            db.close()

    def expire_now(self, name: str) -> None:
        self._change("UPDATE holders SET expires = ? WHERE name = ?", schema.now(), name.encode())

    def steal(self, name: str) -> None:
        for table in ("holders", "waiters"):
            self._change(f"DELETE FROM {table} WHERE name = ?", name.encode())

    def restart_server(self) -> None:
        """As much as can be lost: somebody deletes everything."""
        for path in self.folder.glob(f"{self.path.name}*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def leftovers(self) -> list[str]:
        site = sites.join(self.path, _furnish)
        site.run(clock.now() + 10, site.store.sweep)
        sites.leave(site)
        db = sqlite3.connect(self.path, timeout=10)
        try:
            return [
                f"{table}: {row}"
                for table in ("holders", "waiters")
                for row in db.execute(f"SELECT * FROM {table}").fetchall()
            ]
        finally:
            db.close()


class SqliteStrategy(_Files, Strategy):
    name = "sqlite"
    short_ttl = 0.2
    _intruder: subprocess.Popen[str] | None = None

    def url(self) -> str:
        return f"sqlite://{self.fresh()}"

    def hang(self) -> None:
        """A process enters the file and stays inside, as one does that is stopped there."""
        script = (
            "import sqlite3, sys; from holdfast.backends.sqlite.lockfile import LockFile\n"
            "p = LockFile(sys.argv[1] + '.holdfast/presence')\n"
            "while not p.try_gate(): pass\n"
            "db = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None)\n"
            "db.execute('BEGIN IMMEDIATE')\n"
            "print('inside', flush=True); sys.stdin.read()"
        )
        self._intruder = subprocess.Popen(
            [sys.executable, "-c", script, str(self.path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._intruder.stdout is not None
        assert self._intruder.stdout.readline() == "inside\n"

    def heal(self) -> None:
        if self._intruder is not None:
            self._intruder.communicate()
            self._intruder = None

    pause_server = hang
    resume_server = heal

    def requests(self) -> int:
        return _count.requests

    def _cannot(self, hook: str) -> NoReturn:
        raise NotApplicable(f"a file has no {hook}; the rules in SQL are tested on broken-sqlite")


class _Count:
    """How often a site was asked, by all clients of this process."""

    def __init__(self) -> None:
        self.requests = 0
        run = Site.run

        def counted(site: Site, deadline: float, request: Any) -> Any:
            self.requests += 1
            return run(site, deadline, request)

        Site.run = counted  # type: ignore[method-assign,assignment]


_count = _Count()


# -- behind a network -----------------------------------------------------------------------------


class SqliteNetwork(Network):
    """It has a share in the site itself: what arrives late finds the database open."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.site = sites.join(path, _furnish)

    def close(self) -> None:
        super().close()
        sites.leave(self.site)


_networks: WeakValueDictionary[str, SqliteNetwork] = WeakValueDictionary()


class BrokenSqliteBackend(SqliteBackend):
    def __init__(self, network: SqliteNetwork) -> None:
        super().__init__(network.path)
        self._network = network

    @classmethod
    def from_url(cls, url: Url) -> BrokenSqliteBackend:
        return cls(_networks[url.host])

    def open(self, port: Port, signals: Signals) -> None:
        super().open(port, signals)
        site = self._site
        self._link: Link = BrokenLink(
            self._network, port, lambda request: site.run(clock.now() + 10, request)
        )


holdfast.register("broken+sqlite", f"{__name__}:BrokenSqliteBackend")


class BrokenSqliteStrategy(_Files, NetworkStrategy):
    name = "broken-sqlite"
    short_ttl = 0.2
    network: SqliteNetwork
    _open = False

    def url(self) -> str:
        name = f"n{next(_numbers)}"
        if self._open:
            self.network.close()
        self.network = _networks[name] = SqliteNetwork(self.fresh())
        self._open = True
        return f"broken+sqlite://{name}"

    def stop_server(self) -> None:
        if self._open:
            self.network.close()
        super().stop_server()
