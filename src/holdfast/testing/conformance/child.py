"""A process of its own that holds locks when it is told to; killed and paused by `processes.py`.

    python child.py URL PORT MODULE...

Contract: imports MODULEs, connects on PORT (sync or aio) and says so, then reads one JSON request a
line and answers each with one JSON line: acquire, release, look; exit ends it. Run by path, so that
pytest is not imported.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import holdfast
from holdfast import aio

__all__: list[str] = []


def _answer(**outcome: Any) -> None:
    sys.stdout.write(json.dumps(outcome) + "\n")
    sys.stdout.flush()


def _fence(lease: holdfast.Lease | aio.Lease) -> int | None:
    try:
        return lease.fence
    except holdfast.Unsupported:
        return None


def _seen(lease: holdfast.Lease | aio.Lease | None) -> dict[str, Any]:
    assert lease is not None
    held = lease.held  # the first look comes first
    return {"held": held, "remaining": lease.remaining(), "lost": bool(lease.lost)}


def _sync(url: str) -> None:
    locks = holdfast.connect(url)
    _answer(ready=True)
    lease: holdfast.Lease | None = None
    while line := sys.stdin.readline():
        request = json.loads(line)
        try:
            match request.pop("do"):
                case "acquire":
                    name, timeout = request.pop("name"), request.pop("timeout")
                    lease = locks.lock(name, **request).acquire(timeout=timeout)
                    _answer(got=lease is not None, fence=_fence(lease) if lease else None)
                case "release":
                    _answer(released=lease is not None and lease.release())
                case "look":
                    _answer(**_seen(lease))
                case _:
                    return
        except holdfast.HoldfastError as error:
            _answer(error=type(error).__name__, text=str(error))


async def _aio(url: str) -> None:
    locks = aio.connect(url)
    _answer(ready=True)
    lease: aio.Lease | None = None
    # Not run_in_executor: its threads are joined when the loop ends, and this one reads for ever.
    read: Callable[[], Awaitable[str]] = _reader()
    while line := await read():
        request = json.loads(line)
        try:
            match request.pop("do"):
                case "acquire":
                    name, timeout = request.pop("name"), request.pop("timeout")
                    lease = await locks.lock(name, **request).acquire(timeout=timeout)
                    _answer(got=lease is not None, fence=_fence(lease) if lease else None)
                case "release":
                    _answer(released=lease is not None and await lease.release())
                case "look":
                    _answer(**_seen(lease))
                case _:
                    return
        except holdfast.HoldfastError as error:
            _answer(error=type(error).__name__, text=str(error))


def _reader() -> Callable[[], Awaitable[str]]:
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def main() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=main, daemon=True).start()
    return lines.get


if __name__ == "__main__":
    # Whoever runs pytest in the background of a shell has us inherit that Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, url, port, *modules = sys.argv
    for module in modules:
        importlib.import_module(module)
    if port == "sync":
        _sync(url)
    else:
        asyncio.run(_aio(url))
