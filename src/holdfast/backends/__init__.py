"""The registry: scheme -> where its backend is. A backend is one folder and one line here.

Contract: importing holdfast imports no backend; `find` imports the one that is asked for, and says
what to install when its client is missing.
"""

from __future__ import annotations

import difflib
import importlib
import os
import threading
from dataclasses import dataclass
from typing import Protocol, cast

from holdfast.backends.url import Option, Url
from holdfast.core.backend import Backend
from holdfast.errors import Misconfigured
from holdfast.extras import how_to_get

__all__ = ["BackendFactory", "find", "register", "schemes"]


@dataclass(frozen=True, slots=True)
class Entry:
    target: str  # "module:Class"
    extra: str | None  # what brings its client: a key of EXTRAS, or a package


_registry: dict[str, Entry] = {
    "memory": Entry("holdfast.backends.memory:MemoryBackend", None),
    "sqlite": Entry("holdfast.backends.sqlite:SqliteBackend", None),
    **{
        scheme: Entry("holdfast.backends.redis:RedisBackend", "redis")
        for plain in ("redis", "rediss")
        for scheme in (plain, f"{plain}+sentinel", f"{plain}+cluster")
    },
    "redis+unix": Entry("holdfast.backends.redis:RedisBackend", "redis"),
    "redlock": Entry("holdfast.backends.redlock:RedlockBackend", "redis"),
    "redlocks": Entry("holdfast.backends.redlock:RedlockBackend", "redis"),
    "etcd": Entry("holdfast.backends.etcd:EtcdBackend", None),
    "etcds": Entry("holdfast.backends.etcd:EtcdBackend", None),
    **{
        scheme: Entry("holdfast.backends.mysql:MySQLBackend", "mysql")
        for scheme in ("mysql", "mariadb")
    },
    **{
        scheme: Entry("holdfast.backends.postgres:PostgresBackend", "postgres")
        for scheme in ("postgresql", "postgres")
    },
    "zk": Entry("holdfast.backends.zookeeper:ZooKeeperBackend", "zookeeper"),
}


OTHER_NAMES = {"zookeeper": "zk", "valkey": "redis"}
"""What others call it, where that is not spelt alike."""

# A child that was forked while a thread imported a module would wait for that thread for ever. The
# hooks are calls in C, which Ctrl-C cannot come between.
_importing = threading.RLock()
os.register_at_fork(
    before=_importing.acquire,
    after_in_parent=_importing.release,
    after_in_child=_importing._at_fork_reinit,  # type: ignore[attr-defined]
)


class BackendFactory(Protocol):
    """What a registered class offers beside the protocol itself. `logins = True` says that each
    host of its URLs may have a user and password of its own, and `adopts = True` that its
    connections may come from somebody else: `connect(engine)`, `connect(url, connection=...)`."""

    options: tuple[Option, ...]

    def from_url(self, url: Url) -> Backend: ...


def register(scheme: str, target: str, *, extra: str | None = None) -> None:
    """Make `scheme://` known; `target` is "module:Class", imported when first used."""
    if not scheme.replace("+", "").isalnum() or ":" not in target:
        raise Misconfigured(f'register("scheme", "module:Class"), not ({scheme!r}, {target!r})')
    _registry[scheme.lower()] = Entry(target, extra)


def schemes() -> list[str]:
    """What `connect` knows, whether or not its clients are installed."""
    return sorted(_registry)


def find(scheme: str) -> BackendFactory:
    entry = _registry.get(scheme)
    if entry is None:
        meant = OTHER_NAMES.get(scheme)
        close = [meant] if meant else difflib.get_close_matches(scheme[:80], _registry, 1, 0.5)
        hint = f" Did you mean {close[0]}://?" if close else ""
        known = ", ".join(f"{name}://" for name in schemes())
        raise Misconfigured(f"no backend speaks {scheme:.80}://.{hint} This version has: {known}")
    module, _, name = entry.target.partition(":")
    try:
        with _importing:
            return cast(BackendFactory, getattr(importlib.import_module(module), name))
    except ModuleNotFoundError as error:
        if entry.extra is None or (error.name or "").partition(".")[0] == "holdfast":
            raise
        raise Misconfigured(
            f"{scheme}:// needs the package {error.name!r}, which is not installed: "
            f"{how_to_get(entry.extra)}"
        ) from error
