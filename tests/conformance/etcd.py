"""The etcd backend's strategy: a member of its own, behind a proxy that knows requests.

The store is reached through `FaultProxy`; what happens to it by hand goes round it, by etcd's JSON
gateway. A "request" is a stream of HTTP/2: a call. Watches are messages on one long call.
"""

from __future__ import annotations

import base64
import itertools
import threading
from collections.abc import Callable
from typing import Any

from holdfast.backends.common import holders
from holdfast.backends.etcd.keys import Lineman, lineman
from holdfast.backends.etcd.wire import after
from holdfast.testing import FaultProxy
from holdfast.testing.conformance import Strategy
from tests.faults.etcd import GuardedEtcd
from tests.servers import EtcdServer

_numbers = itertools.count()

BELOW = "myapp/locks/"
"""Where all of them are: what the role in docs/backends/etcd.md is about."""


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _asks(frame: bytes) -> bool:
    """Whether a frame begins a request about a lock or a cell. Headers are sent in plain text."""
    return b"/etcdserverpb.KV/" in frame or b"/etcdserverpb.Lease/LeaseKeepAlive" in frame


class _Once:
    """A condition that holds for the first frame that meets another, and for no other."""

    def __init__(self, condition: Callable[[bytes], bool]) -> None:
        self._condition = condition
        self._met = False

    def __call__(self, frame: bytes) -> bool:
        if self._met or not self._condition(frame):
            return False
        self._met = True
        return True


class EtcdStrategy(Strategy):
    name = "etcd"
    short_ttl = 1.0  # etcd counts in whole seconds
    _timers: list[threading.Timer]

    server: EtcdServer
    login = ""

    def start_server(self) -> None:
        self.server = self.make_server()
        self.proxy = FaultProxy(("127.0.0.1", self.server.port), framing="http2")
        self._timers = []

    def make_server(self) -> EtcdServer:
        return EtcdServer().start()

    def stop_server(self) -> None:
        self.proxy.close()
        self.server.stop()

    def url(self) -> str:
        self.prefix = f"{BELOW}t{next(_numbers)}/".encode()
        return f"etcd://{self.login}{self.proxy.host}:{self.proxy.port}/{self.prefix.decode()}"

    # -- breaking the way there -------------------------------------------------------------------

    def heal(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self.server.resume()
        self.proxy.heal()

    def sever_connections(self) -> None:
        self.proxy.sever()

    def hang(self) -> None:
        self.proxy.hold("both")

    def drop_next_reply(self) -> None:
        self.proxy.drop_reply(to=_asks)

    def delay_next_request(self, seconds: float) -> None:
        fault = self.proxy.hold("to_server", matching=_Once(_asks))
        timer = threading.Timer(seconds, fault.undo)
        timer.start()
        self._timers.append(timer)

    def delay_requests(self, seconds: float) -> None:
        self.proxy.delay(seconds, "to_server")

    def hold_requests(self) -> None:
        self.proxy.hold("to_server")

    def release_requests(self) -> None:
        self.proxy.release_held()

    # -- breaking the store -----------------------------------------------------------------------

    def pause_server(self) -> None:
        self.server.pause()

    def resume_server(self) -> None:
        self.server.resume()

    def restart_server(self) -> None:
        self.server.restart()

    def expire_now(self, name: str) -> None:
        line = self._line(name)
        keys = self._keys(line)
        members: list[Lineman] = [lineman(key[len(line) :]) for key in keys]
        for key in keys[: sum(holders(members))]:
            self.server.api("/v3/kv/deleterange", {"key": b64(key)})

    def steal(self, name: str) -> None:
        line = self._line(name)
        self.server.api("/v3/kv/deleterange", {"key": b64(line), "range_end": b64(after(line))})

    def _line(self, name: str) -> bytes:
        return self.prefix + name.replace("%", "%25").replace("/", "%2F").encode() + b"/"

    def _keys(self, prefix: bytes) -> list[bytes]:
        request: dict[str, Any] = {
            "key": b64(prefix),
            "range_end": b64(after(prefix)),
            "keys_only": True,
            "sort_order": "ASCEND",
            "sort_target": "CREATE",
        }
        found = self.server.api("/v3/kv/range", request).get("kvs", [])
        return [base64.b64decode(kv["key"]) for kv in found]

    # -- looking ----------------------------------------------------------------------------------

    def leftovers(self) -> list[str]:
        kept = (self.prefix + b"%cell/", self.prefix + b"%fence/")
        return [key.decode() for key in self._keys(self.prefix) if not key.startswith(kept)]

    def requests(self) -> int:
        return self.proxy.requests


class RoleStrategy(EtcdStrategy):
    """The same as a user who may do what the documentation says, and nothing else."""

    name = "etcd-role"
    login = "holdfast:secret@"

    def make_server(self) -> EtcdServer:
        # Else a login alone takes longer than some time limits of the suite.
        server = GuardedEtcd(settings={"bcrypt-cost": "4"}).start()
        server.enable([("READWRITE", BELOW.encode(), after(BELOW.encode()))])
        return server
