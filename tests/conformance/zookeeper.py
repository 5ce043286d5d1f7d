"""The ZooKeeper backend's strategy: a real server behind a proxy that knows its frames.

A lost reply is a cut connection here, because nothing else loses one: on a TCP connection that
lives, ZooKeeper answers in order. Requests that are late are late on their connection; what is sent
on another one is not.

Clients are a user who has the rights that docs/backends/zookeeper.md names, on the URL's path, and
no others; nothing at all on the node above it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Any

from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import NoNodeError, NotEmptyError  # type: ignore[import-untyped]
from kazoo.security import make_digest_acl  # type: ignore[import-untyped]

from holdfast.backends.common import holders
from holdfast.backends.zookeeper.naming import CELLS, encoded, in_order
from holdfast.testing import FaultProxy
from holdfast.testing.conformance import Strategy
from tests.servers import ZooKeeperServer

_numbers = itertools.count()

# By their opcodes: what is asked about a lock or a cell, and not by a look from outside.
CREATE2, DELETE, MULTI, SYNC = (code.to_bytes(4, "big") for code in (15, 2, 14, 9))


def about_a_claim(frame: bytes) -> bool:
    return frame[8:12] in (CREATE2, DELETE, MULTI, SYNC)


USER, PASSWORD = "locks", "p%w/d@"
ENCODED = "p%25w%2Fd%40"
ADMIN = make_digest_acl("admin", "admin", all=True)
ABOVE = "/granted"


def prepare(admin: Any, base: str, /, **rights: bool) -> None:
    """A node on which the user has these rights, below one on which it has none."""
    admin.ensure_path(ABOVE, acl=[ADMIN])
    granted = [make_digest_acl(USER, PASSWORD, **rights)] if rights else []
    admin.create(base, acl=[ADMIN, *granted])


class ZooKeeperStrategy(Strategy):
    name = "zookeeper"
    short_ttl = 0.8
    _paused = False

    def start_server(self) -> None:
        self.server = ZooKeeperServer(tick=100)
        self.server.start()
        self.proxy = FaultProxy(("127.0.0.1", self.server.port), framing="zookeeper")
        self.admin = self._connect()
        self._timers: list[threading.Timer] = []

    def _connect(self) -> Any:
        admin = KazooClient(f"127.0.0.1:{self.server.port}", timeout=30)
        admin.start()
        admin.add_auth("digest", "admin:admin")
        admin.add_auth("digest", f"{USER}:{PASSWORD}")  # whose the nodes of locks are
        return admin

    def stop_server(self) -> None:
        self.heal()
        self.admin.stop()
        self.admin.close()
        self.proxy.close()
        self.server.stop()

    def url(self) -> str:
        self.base = f"{ABOVE}/t{next(_numbers)}"
        prepare(self.admin, self.base, create=True, read=True)
        return f"zk://{USER}:{ENCODED}@127.0.0.1:{self.proxy.port}{self.base}"

    # -- breaking the way there -------------------------------------------------------------------

    def heal(self) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.join()
        self._timers.clear()
        self.proxy.heal()
        if self._paused:
            self.resume_server()

    def sever_connections(self) -> None:
        self.proxy.sever()

    def hang(self) -> None:
        self.proxy.hold("both")

    def drop_next_reply(self) -> None:
        self.proxy.reset_on_reply(to=about_a_claim)

    def delay_next_request(self, seconds: float) -> None:
        first = threading.Lock()
        fault = self.proxy.hold(
            "to_server", matching=lambda frame: about_a_claim(frame) and first.acquire(False)
        )
        timer = threading.Timer(seconds, fault.undo)
        self._timers.append(timer)
        timer.start()

    def delay_requests(self, seconds: float) -> None:
        self.proxy.delay(seconds, "to_server")

    def hold_requests(self) -> None:
        self.proxy.hold("to_server")

    def release_requests(self) -> None:
        self.proxy.release_held()

    # -- breaking the store -----------------------------------------------------------------------

    def pause_server(self) -> None:
        self._paused = True
        self.server.pause()

    def resume_server(self) -> None:
        self.server.resume()
        self._paused = False

    def restart_server(self) -> None:
        self.admin.stop()  # before: kazoo may take 30 s to stop while it looks for its server
        self.admin.close()
        self.server.kill()
        self.server.start()
        self.admin = self._connect()

    def expire_now(self, name: str) -> None:
        parent = f"{self.base}/{encoded(name)}"
        line = in_order(self.admin.get_children(parent))
        for claim, held in zip(line, holders(line), strict=True):
            if held:
                self.admin.delete(f"{parent}/{claim.node}")

    def steal(self, name: str) -> None:
        parent = f"{self.base}/{encoded(name)}"
        for claim in reversed(in_order(self.admin.get_children(parent))):
            self.admin.delete(f"{parent}/{claim.node}")  # first of the line last: nobody holds then
        with contextlib.suppress(NotEmptyError, NoNodeError):  # who waits may be back in line
            self.admin.delete(parent)

    # -- looking ----------------------------------------------------------------------------------

    def leftovers(self) -> list[str]:
        found: list[str] = []
        try:
            for node in self.admin.get_children(self.base):
                if node != CELLS:
                    children = self.admin.get_children(f"{self.base}/{node}")
                    found += [f"{node}: {child}" for child in children] or [node]
        except NoNodeError:
            pass
        return found

    def requests(self) -> int:
        return self.proxy.requests
