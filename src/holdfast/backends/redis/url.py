"""From a URL to a backend: the options, and which servers are meant.

    redis://user:password@host:6379/0           one server; rediss:// over TLS
    redis+unix:///run/redis.sock?db=0           the same, by a unix socket
    redis+sentinel://s1:26379,s2,s3/mymaster/0  the master that the sentinels name
    redis+cluster://h1:6379,h2,h3               a cluster; rediss+... over TLS

Contract: no I/O, except that certificates are read from their files.
"""

from __future__ import annotations

from typing import Any

from holdfast.backends.redis.access import ACCESS, PORT, PREFIX, checked_prefix
from holdfast.backends.redis.backend import Backend
from holdfast.backends.redis.courier import Courier
from holdfast.backends.redis.fleet import Cluster, Fleet, Sentinel, Single
from holdfast.backends.redis.literal import LiteralBackend
from holdfast.backends.redis.loops import LoopTransport
from holdfast.backends.redis.plain import PLAIN
from holdfast.backends.redis.redisson import REDISSON
from holdfast.backends.redis.steps import Options
from holdfast.backends.redis.threads import ThreadTransport
from holdfast.backends.redis.transport import Transport
from holdfast.backends.redis.wire import Address, Settings
from holdfast.backends.tls import tls_of
from holdfast.backends.url import Option, Url
from holdfast.core.options import seconds
from holdfast.errors import Misconfigured

__all__ = ["RedisBackend"]

SENTINEL_PORT = 26379

NATIVE = "native"
LITERAL = {dialect.name: dialect for dialect in (PLAIN, REDISSON)}


class RedisBackend:
    options = (
        Option("dialect", NATIVE, "whose locks they are", (NATIVE, *LITERAL)),
        PREFIX,
        Option("window", 2.0, "seconds a waiter that was called has to claim the lock"),
        Option("heartbeat", 1.0, "seconds after which a waiting client says that it is alive"),
        Option("poll", 0.1, "seconds between two looks at a lock whose release nobody tells us of"),
        Option("fence_memory", 300.0, "seconds for which a free lock's last token is remembered"),
        Option("replicas", 0, "how many replicas must have a lock before it counts"),
        Option("replica_timeout", 0.1, "seconds the replicas have to confirm it"),
        *ACCESS,
        Option("sentinel_user", "", "user name at the sentinels, if they want one"),
        Option("sentinel_password", "", "password at the sentinels, if they want one"),
    )

    @classmethod
    def from_url(cls, url: Url) -> Backend | LiteralBackend:
        values = url.options(cls.options, {})
        courier, options = _Servers(url, values).courier, _checked(values)
        if values["dialect"] == NATIVE:
            return Backend(courier, options)
        return LiteralBackend(courier, options, LITERAL[values["dialect"]])


def _checked(values: dict[str, Any]) -> Options:
    checked_prefix(values)
    for name in ("window", "heartbeat", "poll", "fence_memory", "replica_timeout"):
        seconds(name, values[name], "a time in seconds")
    if values["heartbeat"] > values["window"] / 2:
        raise Misconfigured(
            f"heartbeat={values['heartbeat']:g} is more than half of window={values['window']:g}: "
            "who waits would be taken for dead when one heartbeat is late"
        )
    if values["replicas"] < 0:
        raise Misconfigured(f"replicas={values['replicas']}: how many replicas, 0 or more")
    return Options(values)


class _Servers:
    """Which servers a URL means, and how to talk to them."""

    def __init__(self, url: Url, values: dict[str, Any]) -> None:
        self._url = url
        self._values = values
        scheme = url.scheme
        self._kind = scheme.partition("+")[2] or "single"
        self._tls = tls_of(values) if scheme.startswith("rediss") else None
        path = url.path.strip("/")
        self._master = ""
        db = str(values["db"])
        if self._kind == "unix":
            url.refuse("hosts", "port")
        elif self._kind == "sentinel":
            self._master, _, path = path.partition("/")
            if not self._master:
                raise Misconfigured(
                    f"{url}: which master? redis+sentinel://host:26379/NAME-OF-THE-MASTER/0"
                )
        if self._kind != "unix":
            db = path or db
        if not db.isdigit():
            raise Misconfigured(f"{url}: a database is a number, not {db!r}")
        if self._kind == "cluster" and int(db):
            raise Misconfigured(f"{url}: a cluster has only database 0")
        if self._kind == "single":
            url.refuse("hosts")
        self._settings = Settings(
            url.user, url.password, int(db), int(values["protocol"]), self._tls,
            certified=bool(values["tls_cert"]), must_be_master=self._kind == "sentinel",
            mode="cluster" if self._kind == "cluster" else "standalone",
            changing=self._kind in ("cluster", "sentinel"),
        )  # fmt: skip
        self._addresses = self._find_addresses()

    def _find_addresses(self) -> list[Address]:
        if self._kind == "unix":
            if not self._url.path.strip("/"):
                raise Misconfigured("redis+unix:///path/of/the/socket")
            return [(self._url.path, 0)]
        default = SENTINEL_PORT if self._kind == "sentinel" else PORT
        hosts = self._url.hosts or (("localhost", None),)
        return [(host or "localhost", port or default) for host, port in hosts]

    def courier(self, asynchronous: bool) -> Courier:
        transport = self._transport(self._settings, asynchronous)
        return Courier(self._fleet(asynchronous), transport)

    def _fleet(self, asynchronous: bool) -> Fleet:
        if self._kind == "cluster":
            return Cluster(self._addresses)
        if self._kind == "sentinel":
            values = self._values
            login = values["sentinel_user"], values["sentinel_password"]
            settings = Settings(*login, tls=self._tls, mode="sentinel", changing=True)
            asking = self._transport(settings, asynchronous)
            return Sentinel(self._addresses, self._master, asking)
        return Single(self._addresses[0])

    @staticmethod
    def _transport(settings: Settings, asynchronous: bool) -> Transport:
        return LoopTransport(settings) if asynchronous else ThreadTransport(settings)
