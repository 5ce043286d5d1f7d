"""From a URL to a backend: the options, and which nodes are meant.

    redlock://user:password@h1:6379,h2:6379,h3:6379/0     the same on all nodes
    redlock://u1:p1@h1,u2:p2@h2,u3:p3@h3/0,0,5            each node its own
    redlocks://...                                        over TLS

Contract: no I/O, except that certificates are read from their files.
"""

from __future__ import annotations

import logging
from typing import Any

from holdfast.backends.redis.access import ACCESS, PORT, PREFIX, checked_prefix
from holdfast.backends.redis.wire import Address
from holdfast.backends.redlock.backend import Backend
from holdfast.backends.redlock.nodes import Login, NodeSettings
from holdfast.backends.redlock.setting import Setting
from holdfast.backends.tls import tls_of
from holdfast.backends.url import Option, Url
from holdfast.core.options import seconds
from holdfast.errors import Misconfigured

__all__ = ["RedlockBackend"]

log = logging.getLogger("holdfast")

LEAST = 3
"""With fewer nodes no quorum survives the loss of one."""


class RedlockBackend:
    logins = True
    options = (
        PREFIX,
        Option("node_timeout", 0.05, "seconds that a node has to answer"),
        Option("drift", 0.01, "how far clocks may run apart, as a part of the time that passes"),
        Option("retries", 3, "how often an attempt whose votes were split is made again at once"),
        Option("max_ttl", 30.0, "the longest lease of any client: how long a restarted node waits"),
        Option("quarantine", True, "whether a node that restarted waits before its vote counts"),
        Option("fence", True, "whether leases carry a token, which costs a second round"),
        Option("fence_memory", 300.0, "seconds for which a free lock's last token is remembered"),
        Option("heartbeat", 1.0, "seconds after which a waiting client looks by itself"),
        Option("poll", 0.1, "the longest pause between two looks while nobody has a majority"),
        *ACCESS,
    )

    @classmethod
    def from_url(cls, url: Url) -> Backend:
        values = url.options(cls.options, {})
        for name in ("node_timeout", "max_ttl", "fence_memory", "heartbeat", "poll"):
            seconds(name, values[name], "a time in seconds")
        if not 0 <= values["drift"] < 1:
            raise Misconfigured(f"drift={values['drift']:g}: a part of the time, like 0.01")
        if values["retries"] < 0:
            raise Misconfigured(f"retries={values['retries']}: how often, 0 or more")
        return Backend(
            Setting(
                _logins(url, values),
                _settings(url, values),
                prefix=checked_prefix(values),
                drift=values["drift"],
                patience=values["node_timeout"],
                retries=values["retries"],
                max_ttl=values["max_ttl"],
                fencing=values["fence"],
                memory=values["fence_memory"],
                heartbeat=values["heartbeat"],
                poll=values["poll"],
            )
        )


def _settings(url: Url, values: dict[str, Any]) -> NodeSettings:
    tls = tls_of(values) if url.scheme == "redlocks" else None
    return NodeSettings(
        protocol=int(values["protocol"]), tls=tls, certified=bool(values["tls_cert"]),
        must_be_master=True, quarantined=values["quarantine"],
    )  # fmt: skip


def _logins(url: Url, values: dict[str, Any]) -> dict[Address, Login]:
    addresses = [(host or "localhost", port or PORT) for host, port in url.hosts]
    count = len(addresses)
    if count < LEAST:
        raise Misconfigured(
            f"{url}: Redlock needs at least {LEAST} independent masters, better 5. For one Redis "
            "use redis://"
        )
    if len(set(addresses)) < count:
        raise Misconfigured(f"{url}: a node is named twice, and would have two votes")
    if count % 2 == 0:
        log.warning(
            "%s: an even number of nodes. %d nodes survive the loss of %d, as many as %d would; "
            "and their votes can be split in halves",
            url, count, (count - 1) // 2, count - 1,
        )  # fmt: skip
    users = url.logins or ((url.user, url.password),) * count
    databases = _databases(url, values["db"], count)
    return {
        address: Login(*user, db)
        for address, user, db in zip(addresses, users, databases, strict=True)
    }


def _databases(url: Url, otherwise: int, count: int) -> list[int]:
    """One number for all nodes, or one for each."""
    words = (url.path.strip("/") or str(otherwise)).split(",")
    if not all(word.isdigit() for word in words) or len(words) not in (1, count):
        raise Misconfigured(
            f"{url}: a database is a number, or one for each node, like /0 or /0,0,1"
        )
    return [int(word) for word in words] * (count // len(words))
