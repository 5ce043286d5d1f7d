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
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from holdfast.backends import find
from holdfast.backends.url import Option, found
from holdfast.core.acquire import Engine
from holdfast.core.backend import Backend, Nascent, Swept, Tabular
from holdfast.core.names import checked_metadata
from holdfast.core.options import LockOptions, Want, seconds, want
from holdfast.core.port import Port
from holdfast.core.presence import KEY, WATCHED, Detectable
from holdfast.core.vouching import Vouched
from holdfast.errors import Closed, Misconfigured, Unsupported
from holdfast.ports import clock
from holdfast.types import Capabilities, Mode

__all__ = ["CLIENT_OPTIONS", "Client"]

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

    def __init__(self, url: Any, options: Mapping[str, Any], port: Callable[[], Port]) -> None:
        if url == "":
            raise Misconfigured(
                "the URL is empty: leave it out for the embedded default, or name a store"
            )
        if url is None:
            url = os.environ.get("HOLDFAST_URL") or EMBEDDED
        options = dict(options)
        self._url = found(url, options.pop("connection", None))
        factory = find(self._url.scheme)
        if self._url.source is not None and not getattr(factory, "adopts", False):
            raise Misconfigured(f"{self._url.scheme}:// makes its connections by itself")
        if self._url.logins and not getattr(factory, "logins", False):
            raise Misconfigured(
                f"{self._url}: {self._url.scheme}:// has one user and password for all hosts, said "
                "before the first of them"
            )
        values = self._url.options((*CLIENT_OPTIONS, *factory.options), options)
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
            if not isinstance(backend, Detectable):
                raise Unsupported(
                    f"{self._url} has no use for crash_grace: it frees what a dead client holds by "
                    f"itself, or cannot tell that it died. {WATCHED} can"
                )
            presence = identity[KEY] = f"{secrets.token_hex(8)}/{self._grace:g}"
            backend = Vouched(backend, presence, self._grace)
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
        backend = self._store()
        if not isinstance(backend, Tabular):
            raise Unsupported(f"{self._url} has no tables to be made")
        return backend.ddl

    def exists(self) -> bool:
        """Whether there is a store: sqlite's is made by its first lock. Contacts nobody."""
        backend = self._store()
        return backend.exists() if isinstance(backend, Nascent) else True

    def _store(self) -> Backend:
        """The backend itself, also of a client with `crash_grace`."""
        backend = self._current.backend
        return backend.inner if isinstance(backend, Vouched) else backend

    def _swept(self) -> Swept:
        backend = self._store()
        if not isinstance(backend, Swept):
            raise Unsupported(f"{self._url} forgets by itself what is over")
        return backend

    def _want(self, name: str, mode: Mode, options: LockOptions, permits: int, limit: int) -> Want:
        return want(name, mode, options, self.capabilities, permits=permits, limit=limit)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"this client of {self._url} has connections and threads of this process: it, its "
            "locks and its leases cannot be pickled or copied. Call connect() where it is needed"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self._url}>"


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
