"""What both skins' clients have in common: from a URL to an engine, and the names of things.

Contract: making a client contacts nobody. After a fork the child owns nothing (law 8): its first
use builds a new engine with connections of its own, or refuses where a backend cannot do that.
Partners: `sync.py`, `aio.py`.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from holdfast.backends import BackendFactory, find
from holdfast.backends.url import Option, Url, found
from holdfast.core.acquire import Engine
from holdfast.core.backend import Backend, Nascent, Swept, Tabular
from holdfast.core.names import checked_metadata, checked_name, checked_prefix
from holdfast.core.options import LockOptions, Want, seconds, want
from holdfast.core.port import Port
from holdfast.core.presence import KEY, detectable
from holdfast.core.vouching import Vouched
from holdfast.core.waiting import away
from holdfast.errors import Closed, Misconfigured, Unavailable, Unsupported
from holdfast.ports import clock
from holdfast.types import Capabilities, LockInfo, Mode

__all__ = ["CLIENT_OPTIONS", "Client"]

R = TypeVar("R")

CLIENT_OPTIONS = (
    Option("request_timeout", 5.0, "seconds a store may stay silent before `Unavailable`"),
    Option("label", "", "shown to operators beside host and pid, for example the service's name"),
    Option(
        "crash_grace", 0.0, "seconds after which `holdfast sentinel` frees what we hold if we die"
    ),
)
"""Understood by every backend, in the URL's query or as keyword arguments of `connect`."""

EMBEDDED = "sqlite://"
"""The store when none is named: a file of the user's own, shared by the processes of this host."""

SHORTEST_GRACE, LONGEST_GRACE = 0.1, 3600.0

PATIENCE = 5.0
"""How long `close` goes on giving back what is held and withdrawing what is owed."""


class Client:
    """The part of a client that needs no waiting."""

    if not TYPE_CHECKING:

        def __new__(cls, *made_with: Any, **options: Any) -> Client:
            if len(made_with) != 3:  # by whoever has called the class, and not `connect`
                module = cls.__module__.removesuffix(".sync")
                raise TypeError(f"a client is made by {module}.connect(url, ...)")
            return super().__new__(cls)

    def __init__(self, url: Any, options: Mapping[str, Any], port: Callable[[], Port]) -> None:
        options = dict(options)
        self._url, factory = _chosen(url, options.pop("connection", None))
        if self._url.source is not None and not getattr(factory, "adopts", False):
            raise Misconfigured(f"{self._url.scheme}:// makes its connections by itself")
        if self._url.logins and not getattr(factory, "logins", False):
            raise Misconfigured(
                f"{self._url}: {self._url.scheme}:// has one user and password for all hosts, said "
                "before the first of them"
            )
        declared = (*CLIENT_OPTIONS, *factory.options)
        _check_for_a_client([*self._url.query, *options], declared)
        values = self._url.options(declared, options)
        self._timeout = seconds("request_timeout", values["request_timeout"], "a day at most")
        if self._timeout > 86400:
            raise Misconfigured(f"request_timeout={self._timeout:g}: a day at most")
        self._label = values["label"]
        if not isinstance(self._label, str):
            raise Misconfigured(f"label is text for operators, not {type(self._label).__name__}")
        checked_metadata({"label": self._label})
        self._grace = _checked_grace(values["crash_grace"])
        self._make_port = port
        # The backend sees its own options, wherever they were given.
        ours = {option.name for option in CLIENT_OPTIONS}
        given = {**self._url.query, **{name: str(value) for name, value in options.items()}}
        query = {name: text for name, text in given.items() if name not in ours}
        self._make_backend: Callable[[], Backend] = partial(
            factory.from_url, replace(self._url, query=query)
        )
        self._current = self._make_engine()

    def _make_engine(self) -> Engine:
        identity = {"host": socket.gethostname(), "pid": str(os.getpid())}
        if self._label:
            identity["label"] = self._label
        backend = self._make_backend()
        if self._grace:
            watched = detectable(backend, str(self._url))
            presence = identity[KEY] = f"{secrets.token_hex(8)}/{self._grace:g}"
            backend = Vouched(watched, presence, self._grace)
        return Engine(self._make_port(), backend, self._timeout, identity)

    def _engine(self) -> Engine:
        """The engine of this process, for something that is about to ask the store."""
        engine = self._current
        if sys.is_finalizing():  # a finaliser, later than all handlers: no thread can be started
            raise Closed(f"the interpreter is exiting: {self._url} cannot be used any more")
        if engine.incarnation != clock.incarnation():
            engine = self._after_fork(engine)
        if engine.closed:
            raise Closed(f"this client of {self._url} was closed; make a new one with connect()")
        return engine

    def _after_fork(self, parents: Engine) -> Engine:
        if not parents.backend.capabilities.cross_process:
            raise Unsupported(
                f"{self._url} lives in the memory of one process, and this is a forked child of "
                "it: the two could not exclude one another. Use a store that both can reach, and "
                "connect() in the child"
            )
        with clock.first_use_after_fork():
            if self._current is parents:
                engine = self._make_engine()
                engine.closed = parents.closed
                self._current = engine
            return self._current

    @property
    def capabilities(self) -> Capabilities:
        """What the backend promises, and what it cannot."""
        return self._current.backend.capabilities

    def schema(self) -> list[str]:
        """The statements that make the store's tables, for who may not create them. Contacts
        nobody."""
        backend = self._current.store
        if not isinstance(backend, Tabular):
            raise Unsupported(f"{self._url} has no tables to be made")
        return backend.ddl

    def exists(self) -> bool:
        """Whether there is a store: sqlite's is made by its first lock. Contacts nobody."""
        store = self._current.store
        return store.exists() if isinstance(store, Nascent) else True

    async def _asked(self, answer: Awaitable[R]) -> R:
        try:
            return await answer
        except Unavailable as error:
            raise away(error) from error

    async def _seen(self, prefix: str, exact: bool) -> list[LockInfo]:
        engine, prefix = self._engine(), checked_prefix(prefix)
        limit = engine.port.now() + engine.request_timeout
        return await self._asked(engine.backend.inspect(prefix, exact, limit))

    async def _evict(self, name: str) -> int:
        engine, name = self._engine(), checked_name(name)
        limit = engine.port.now() + engine.request_timeout
        return await self._asked(engine.backend.evict(name, limit))

    async def _sweep(self, idle: float) -> int:
        engine = self._engine()
        if not isinstance(engine.store, Swept):
            raise Unsupported(f"{self._url} forgets by itself what is over")
        limit = engine.port.now() + max(PATIENCE, self._timeout)
        return await self._asked(engine.store.sweep(idle, limit))

    def _want(self, name: str, mode: Mode, options: LockOptions, permits: int, limit: int) -> Want:
        engine = self._current
        return want(
            name,
            mode,
            options,
            engine.backend.capabilities,
            permits=permits,
            limit=limit,
            asynchronous=engine.port.asynchronous,
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"this client of {self._url} has connections and threads of this process: it, its "
            "locks and its leases cannot be pickled or copied. Call connect() where it is needed"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self._url}>"


def _chosen(url: Any, connection: Any) -> tuple[Url, BackendFactory]:
    """The store that is meant, and who speaks to it."""
    if url == "":
        raise Misconfigured(
            "the URL is empty: leave it out for the embedded default, or name a store"
        )
    named = os.environ.get("HOLDFAST_URL") if url is None else None
    try:
        chosen = found(named or (EMBEDDED if url is None else url), connection)
        return chosen, find(chosen.scheme)
    except Misconfigured as error:
        if named:
            raise Misconfigured(f"{error} (from HOLDFAST_URL)") from error
        raise


def _check_for_a_client(given: Sequence[str], declared: Sequence[Option]) -> None:
    known = {option.name for option in declared}
    for name in given:
        if name in LockOptions.__annotations__ and name not in known:
            raise Misconfigured(f"{name!r} is an option of a lock: locks.lock(name, {name}=...)")


def _checked_grace(value: Any) -> float:
    if not value and isinstance(value, int | float):
        return 0.0
    grace = seconds("crash_grace", value, "0 means that nobody watches over this client")
    if not SHORTEST_GRACE <= grace <= LONGEST_GRACE:
        raise Misconfigured(
            f"crash_grace={grace:g}: from {SHORTEST_GRACE:g} s (a busy host must not look dead) to "
            f"{LONGEST_GRACE:g} s"
        )
    return grace
