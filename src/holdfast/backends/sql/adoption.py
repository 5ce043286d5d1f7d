"""Connections that others make: by an SQLAlchemy engine, or by a function of the user's.

Contract: `adopted` gives a connection of the client library, which from then on is ours alone: it
is taken out of its engine's pool, and closed by us. Its makers decide how long connecting may take
on a thread port; on asyncio the deadline holds. Partners: `mysql/url.py`, `postgres/url.py`.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from holdfast.backends.sql.session import Gone
from holdfast.errors import HoldfastError, Misconfigured
from holdfast.ports.clock import now

__all__ = ["adopted", "unfit"]


async def adopted(source: Any, asynchronous: bool, deadline: float) -> Any:
    """A new connection, by whatever `source` is."""
    try:
        if not asynchronous:
            made = _made(source)
            if inspect.isawaitable(made):
                _close(made)
                raise Misconfigured(
                    "this makes connections for asyncio: use holdfast.aio.connect, or give an "
                    "engine or function that blocks"
                )
            return _taken_out(made)
        async with asyncio.timeout(deadline - now()):
            made = _made(source)
            if not inspect.isawaitable(made):
                _close(made)
                raise Misconfigured(
                    "this makes connections that block: use holdfast.connect, or give an "
                    "AsyncEngine or a coroutine function"
                )
            return _taken_out(await made)
    except HoldfastError:
        raise
    except Exception as error:
        raise Gone(
            f"no connection was made: {type(error).__name__}: {error}", sent=False
        ) from error


def _made(source: Any) -> Any:
    return source.raw_connection() if hasattr(source, "raw_connection") else source()


def _taken_out(made: Any) -> Any:
    if not hasattr(made, "driver_connection"):
        return made
    connection = made.driver_connection
    made.detach()
    return connection


def _close(made: Any) -> None:
    close = getattr(made, "close", None)
    if close is not None:
        close()


def unfit(connection: Any, wanted: str) -> Misconfigured:
    kind = connection.__class__
    return Misconfigured(
        f"connections are made by {kind.__module__}.{kind.__name__}, which holdfast does not speak "
        f"through: {wanted}"
    )
