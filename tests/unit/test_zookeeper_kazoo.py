"""What the ZooKeeper backend uses of kazoo's inside: another kazoo must not break it unnoticed.

Each private name that `wire.py` touches is on the list, with what it is needed for; a name that is
missing, or takes other arguments, is said here before it shows as a lost lease. pyproject.toml
bounds the version for the same reason: before the bound is raised, these and the fault tests pass.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import tomllib
from collections import deque
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from kazoo import exceptions  # type: ignore[import-untyped]
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.handlers.threading import (  # type: ignore[import-untyped]
    SequentialThreadingHandler,
)
from kazoo.protocol import serialization  # type: ignore[import-untyped]
from kazoo.protocol.connection import ConnectionHandler  # type: ignore[import-untyped]
from kazoo.protocol.states import KazooState, KeeperState  # type: ignore[import-untyped]
from tests.waiting import readable

from holdfast.backends.zookeeper import handler, refusals, requests, wire
from holdfast.backends.zookeeper.place import Place
from holdfast.ports import clock

ROOT = Path(__file__).resolve().parents[2]

CLIENT = {
    "_connection": "the connection, whose `_connect` and `_send_request` are replaced",
    "_queue": "requests to be sent, in order: (request, reply)",
    "_pending": "requests under way, in order: (request, reply, xid)",
    "_stopped": "an event that ends the connection thread",
    "_session_id": "None until there is a session, and after it has ended",
    "_session_passwd": "to resume a session in order to end it",
    "_session_timeout": "in milliseconds, to resume a session",
}
CONNECTION = {
    "_connect": ("host", "hostip", "port"),
    "_expand_client_hosts": (),
    "_send_request": ("read_timeout", "connect_timeout"),
    "_read_response": ("header", "buffer", "offset"),
    "_write": ("msg", "timeout"),
    "_socket": None,
    "_read_sock": None,
    "_write_sock": None,
    "_xid": None,
}


@pytest.fixture
def client() -> Any:
    return KazooClient()


@pytest.mark.req("R50")
@pytest.mark.parametrize("name", CLIENT)
def test_the_client_has(client: Any, name: str) -> None:
    assert hasattr(client, name), f"KazooClient.{name} is gone: wire.py needs {CLIENT[name]}"


@pytest.mark.req("R50")
@pytest.mark.parametrize("name", CONNECTION)
def test_the_connection_has(client: Any, name: str) -> None:
    connection, takes = client._connection, CONNECTION[name]
    assert isinstance(connection, ConnectionHandler)
    assert hasattr(connection, name), f"ConnectionHandler.{name} is gone, which wire.py uses"
    if takes is not None:
        now = tuple(inspect.signature(getattr(connection, name)).parameters)
        assert now == takes, f"ConnectionHandler.{name} takes {now}: wire.py expects {takes}"


@pytest.mark.req("R50")
def test_nothing_else_private_is_used() -> None:
    """So that the lists above stay whole."""
    ours = {"_handler", "_leaving", "_quitting", "_welcome", "_listener", "_client", "_resolve"}
    used: set[str] = set()
    for module in (wire, handler):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                whose = node.value
                name = whose.attr if isinstance(whose, ast.Attribute) else getattr(whose, "id", "")
                if name.strip("_") in ("client", "connection"):
                    used.add(node.attr)
    assert used - ours == {*CLIENT, *CONNECTION}


@pytest.mark.req("R50")
def test_requests_are_kept_as_we_put_them(client: Any) -> None:
    assert isinstance(client._queue, deque)
    assert isinstance(client._pending, deque)
    assert client._session_id is None
    assert serialization.Close.type == -11
    fields = inspect.signature(serialization.Connect).parameters
    assert [*fields] == [
        "protocol_version", "last_zxid_seen", "time_out", "session_id", "passwd", "read_only",
    ]  # fmt: skip


@pytest.mark.req("R50")
def test_an_end_is_announced_before_the_session_is_forgotten(client: Any) -> None:
    """`wire.py` tells by the id whether there was a session, and what is queued is answered."""
    told: list[tuple[Any, Any]] = []
    reply = wire.Reply()
    client.add_listener(lambda state: told.append((state, client._session_id)))
    client._session_id = 7
    client._session_callback(KeeperState.CONNECTED)
    client._queue.append((None, reply))
    client._session_callback(KeeperState.EXPIRED_SESSION)
    assert told == [(KazooState.CONNECTED, 7), (KazooState.LOST, 7)]
    assert isinstance(reply.error, exceptions.SessionExpiredError)
    assert client._session_id is None


@pytest.mark.req("R50")
def test_a_lost_connection_answers_what_is_under_way_before_it_is_told(client: Any) -> None:
    replies = [wire.Reply(), wire.Reply()]
    told: list[bool] = []
    client._session_callback(KeeperState.CONNECTED)
    client.add_listener(lambda state: told.append(all(reply.done for reply in replies)))
    client._pending.append((None, replies[0], 1))
    client._queue.append((None, replies[1]))
    client._session_callback(KeeperState.CONNECTING)
    assert told == [True]
    assert all(isinstance(reply.error, exceptions.ConnectionLoss) for reply in replies)


class Bound:
    """A wire whose server never was; what it writes is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wire = wire.Wire(Place("127.0.0.1:1", ()), 1.0, MagicMock())
        self.client = self.wire._client
        connection = self.wire._connection
        connection._read_sock, connection._write_sock = self.wire._handler.create_socket_pair()
        connection._xid = 0
        self.written: list[bytes] = []
        monkeypatch.setattr(connection, "_write", lambda data, _timeout: self.written.append(data))
        monkeypatch.setattr(
            self.wire, "_read_response", lambda *_: self.client._pending.popleft()[1].set()
        )

    def rung(self) -> bool:
        return readable(self.wire._connection._read_sock)

    def pump(self) -> int:
        self.wire._connection._send_request(1.0, 1.0)
        return len(self.client._pending)

    def answer(self) -> None:
        self.wire._connection._read_response(None, b"", 0)


@pytest.mark.req("R50", "thousands of renewals due at once")
def test_no_more_is_sent_than_a_server_takes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand requests were written in one piece, during which no answer was read: the first
    had its answer when the last was sent."""
    bound = Bound(monkeypatch)
    replies = [wire.Reply() for _ in range(2 * wire.WINDOW + 1)]
    bound.wire.send(*((requests.sync(f"/{n}"), reply) for n, reply in enumerate(replies)))
    assert bound.rung()
    assert bound.pump() == wire.WINDOW
    assert not bound.rung()
    while not all(reply.done for reply in replies):
        bound.answer()
        if bound.rung():
            bound.pump()
        assert len(bound.client._pending) <= wire.WINDOW
    sent = b"".join(bound.written)
    assert [sent.index(f"/{n}".encode()) for n in (0, 1999, 2000)] == sorted(
        sent.index(f"/{n}".encode()) for n in (0, 1999, 2000)
    )


@pytest.mark.req("R50", "server hangs")
def test_a_server_that_answers_others_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands that were sent at once the last waits long, and its connection was given up."""
    bound = Bound(monkeypatch)
    now = 100.0
    monkeypatch.setattr(clock, "now", lambda: now)
    assert bound.wire.unanswered_since() is None
    bound.wire.send((requests.sync(), wire.Reply()), (requests.sync(), wire.Reply()))
    bound.pump()
    assert bound.wire.unanswered_since() == 100.0
    now = 107.0
    bound.answer()
    assert bound.wire.unanswered_since() == 107.0
    now = 108.0
    assert bound.wire.unanswered_since() == 107.0
    bound.answer()
    assert bound.wire.unanswered_since() is None


@pytest.mark.req("R50", "wrong credentials", "law 5")
@pytest.mark.parametrize("served", [False, True])
def test_a_server_that_wants_us_to_authenticate(
    monkeypatch: pytest.MonkeyPatch, served: bool
) -> None:
    """What was sent with the request that it refuses is refused, too. If it never served us the
    session is over; else there may be leases on it, and a server that keeps them."""
    bound = Bound(monkeypatch)
    replies = [wire.Reply() for _ in range(4)]
    bound.wire.send(*((requests.sync(), reply) for reply in replies))
    bound.pump()
    if served:
        bound.answer()

    def refuse(*_: Any) -> None:
        bound.client._pending.popleft()[1].set_exception(refusals.NoLogin())

    monkeypatch.setattr(bound.wire, "_read_response", refuse)
    bound.answer()
    refused = replies[1:] if served else replies
    assert all(isinstance(reply.error, refusals.NoLogin) for reply in refused)
    assert not bound.client._pending
    assert bound.wire.over is not served
    if not served:
        assert "enforce.auth.enabled" in bound.wire.refusal
        listener: Any = bound.wire._listener
        listener.on_ended.assert_called_once_with(bound.wire.refusal, True, False)


@pytest.mark.req("R50")
@pytest.mark.parametrize(
    "name",
    ["sleep_func", "start", "stop", "spawn", "dispatch_callback", "create_connection", "select"],
)
def test_the_handler_has_what_ours_replaces(name: str) -> None:
    assert hasattr(SequentialThreadingHandler, name), f"kazoo asks its handler for no {name}"
    assert name in vars(handler.Handler)


@pytest.mark.req("R50")
def test_the_version_is_bounded_where_it_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (said,) = project["project"]["optional-dependencies"]["zookeeper"]
    (tested,) = [
        one for one in project["dependency-groups"]["test"] if one.startswith("kazoo[sasl]")
    ]
    assert said == "kazoo>=2.10,<2.12"
    assert tested == said.replace("kazoo", "kazoo[sasl]")


@pytest.mark.req("R7")
@pytest.mark.parametrize("configured", [False, True])
def test_what_kazoo_says_is_heard_where_logging_is_configured_and_nowhere_else(
    configured: bool,
) -> None:
    """A dozen lines about one failed acquire were printed by who had not asked for them."""
    script = (
        "import logging, holdfast\n"
        f"if {configured}: logging.basicConfig(format='%(name)s: %(message)s')\n"
        "with holdfast.connect('zk://127.0.0.1:1/') as locks:\n"
        "    try: locks.lock('x').acquire(timeout=0.5)\n"
        "    except holdfast.Unavailable as error: assert 'Connection refused' in str(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    if configured:
        assert "holdfast.zookeeper: Connection dropped: socket connection error" in done.stderr
    else:
        assert done.stderr == ""
