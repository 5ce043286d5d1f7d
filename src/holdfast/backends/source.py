"""Where connections come from when not from a URL: an SQLAlchemy engine, or a function.

Contract: no I/O, and nothing imported: an engine is known by what it can do. What is found becomes
a `Url` that names the store and carries its source; the scheme's backend uses it, or refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from holdfast.backends.url import Url, parse
from holdfast.errors import Misconfigured

__all__ = ["found"]

SCHEMES = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
"""What SQLAlchemy calls a database -> our scheme."""

CLIENTS = {"psycopg": "postgresql", "pymysql": "mysql", "aiomysql": "mysql"}
"""Whose `connect` it is -> our scheme."""


def found(source: Any, connection: Callable[[], Any] | None) -> Url:
    """The store that is meant by what was given to `connect`."""
    if isinstance(source, str):
        url = parse(source)
        return url if connection is None else replace(url, source=connection)
    if connection is not None:
        raise Misconfigured("`connection` goes with a URL that names the kind of store")
    if hasattr(source, "raw_connection") and hasattr(source, "dialect"):
        return _engine(source)
    if callable(source):
        client = getattr(source, "func", source).__module__.partition(".")[0]
        if client in CLIENTS:
            return Url(CLIENTS[client], source=source)
        raise Misconfigured(
            "which database does this function connect to? Say it by a URL: "
            'connect("postgresql://?strategy=row", connection=function)'
        )
    raise Misconfigured(
        f"connect() takes a URL, an SQLAlchemy engine, or a function that connects; not a "
        f"{type(source).__name__}"
    )


def _engine(engine: Any) -> Url:
    name = str(engine.dialect.name)
    if name not in SCHEMES:
        raise Misconfigured(
            f"this engine's database is {name}: holdfast knows {', '.join(SCHEMES)}. For SQLite "
            "there is sqlite:///path"
        )
    place = engine.url
    hosts = ((place.host, place.port),) if place.host else ()
    path = f"/{place.database}" if place.database else ""
    return Url(SCHEMES[name], user=place.username or "", hosts=hosts, path=path, source=engine)
