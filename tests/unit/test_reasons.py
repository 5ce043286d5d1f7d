"""Why a store cannot be reached, as users are told: not that no time was left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import psycopg
import pymysql
import pytest

import holdfast
from holdfast import Misconfigured, Unavailable, aio
from holdfast.backends.addresses import Reasons, reason_of
from holdfast.backends.mysql.text import translated
from holdfast.backends.postgres.text import said
from holdfast.core.waiting import LOOK_AT

REFUSED = "Connection refused"

NOBODY = (
    "redis://127.0.0.1:1",
    "redis+sentinel://127.0.0.1:1/m",
    "redis+cluster://127.0.0.1:1",
    "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
    "etcd://127.0.0.1:1",
    "zk://127.0.0.1:1",
    "mysql://u@127.0.0.1:1/d",
    "mysql://u@127.0.0.1:1/d?strategy=advisory",
    "postgres://u@127.0.0.1:1/d",
    "postgres://u@127.0.0.1:1/d?strategy=advisory",
)


@contextlib.contextmanager
def web_server() -> Iterator[int]:
    """What answers whatever it hears as web servers do, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = server.accept()
                    with link, contextlib.suppress(OSError):
                        link.settimeout(5)
                        link.recv(1000)
                        link.sendall(b"<!DOCTYPE HTML>\n<html><title>Error 400</title></html>\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def told(url: str, asynchronous: bool, kind: type[Exception]) -> str:
    """What somebody hears who acquires with little time."""
    with pytest.raises(kind) as caught:
        if asynchronous:

            async def work() -> None:
                async with aio.connect(url) as locks:
                    await locks.lock("x").acquire(timeout=0.6)

            asyncio.run(work())
        else:
            with holdfast.connect(url) as locks:
                locks.lock("x").acquire(timeout=0.6)
    return str(caught.value)


@pytest.mark.req("R7")
@pytest.mark.parametrize("url", NOBODY)
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_nobody_listens(url: str, port: str) -> None:
    """The last of many tries had no time, and was what was told: "no time was left"."""
    text = told(url, port == "aio", Unavailable)
    assert REFUSED in text
    for noise in ("no time", "in time)", "Errno", "\n", "?", "2003", ".."):
        assert noise not in text.replace("?strategy=advisory", "").removesuffix(LOOK_AT)


@pytest.mark.req("R7")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_what_is_no_redis(port: str) -> None:
    with web_server() as number:
        for scheme, kind in (("redis", Misconfigured), ("redis+cluster", Unavailable)):
            text = told(f"{scheme}://127.0.0.1:{number}", port == "aio", kind)
            assert f"what answers at 127.0.0.1:{number} is no Redis" in text
        nodes = f"127.0.0.1:{number},localhost:{number},127.0.0.1:1"
        assert "is no Redis" in told(f"redlock://{nodes}", port == "aio", Misconfigured)


@pytest.mark.req("R7")
@pytest.mark.parametrize("port", ["sync", "aio"])
def test_what_is_no_etcd(port: str) -> None:
    with web_server() as number:
        text = told(f"etcd://127.0.0.1:{number}", port == "aio", Unavailable)
    assert "does not speak HTTP/2" in text


def test_a_try_without_time_does_not_replace_what_another_has_found_out() -> None:
    reasons = Reasons()
    assert reasons.why("a", "no time was left", 10.0, 10.0) == "no time was left"
    assert reasons.why("a", REFUSED, 10.0, 10.5) == REFUSED
    assert reasons.why("a", "no time was left", 11.0, 11.01) == REFUSED
    assert reasons.why("b", "no time was left", 11.0, 11.01) == "no time was left"
    assert reasons.why("a", "it is silent", 12.0, 13.0) == "it is silent"
    reasons.reached("a")
    assert reasons.why("a", "no time was left", 14.0, 14.0) == "no time was left"


def test_the_systems_words() -> None:
    refused = ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)")  # asyncio's
    assert reason_of(refused) == os.strerror(111)
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert reason_of(unknown) == "Name or service not known"
    assert reason_of(TimeoutError("no time was left")) == "no time was left"


def test_mysqls_words_in_one_sentence() -> None:
    why = "Can't connect to MySQL server on 'h'"
    refused = pymysql.OperationalError(2003, f"{why} ([Errno 111] {REFUSED})")
    refused.original_exception = ConnectionRefusedError(111, REFUSED)  # type: ignore[attr-defined]
    assert str(translated(refused)) == f"{why}: {REFUSED}"
    other = pymysql.OperationalError(2003, why)  # aiomysql's
    other.__cause__ = ConnectionRefusedError(111, "Connect call failed")
    assert str(translated(other)) == f"{why}: {REFUSED}"
    lost = pymysql.OperationalError(2013, "Lost connection")
    assert str(translated(lost)) == "Lost connection"
    denied = pymysql.OperationalError(1045, "Access denied for user 'u'")
    assert str(translated(denied)) == "Access denied for user 'u' (1045)"


def test_postgresqls_words_in_one_line() -> None:
    one = 'connection to server at "h" (::1), port 1 failed: Connection refused\n'
    two = 'connection to server at "h" (127.0.0.1), port 1 failed: Connection refused\n'
    hint = "\tIs the server running on that host and accepting TCP/IP connections?\n"
    assert said(one + hint + two + hint) == f"{one.strip()}; {two.strip()}"
    lost = "consuming input failed: server closed the connection unexpectedly\n"
    guess = "\tThis probably means the server terminated abnormally\n\tbefore that.\n"
    assert said(psycopg.OperationalError(lost + guess)) == lost.strip()
