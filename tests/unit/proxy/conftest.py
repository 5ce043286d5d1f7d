"""A server, a proxy before it, and clients of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from tests.unit.proxy.wires import Client, Collector, Server

from holdfast.testing import relay
from holdfast.testing.proxy import FaultProxy


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "LINGER", 0.02)


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


@pytest.fixture
def collector() -> Iterator[Collector]:
    with closing(Collector()) as collector:
        yield collector


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.address, framing="resp") as proxy:
        yield proxy


@pytest.fixture
def connect(proxy: FaultProxy) -> Iterator[Callable[[], Client]]:
    clients: list[Client] = []

    def connect() -> Client:
        clients.append(Client(proxy))
        return clients[-1]

    yield connect
    for client in clients:
        client.sock.close()


@pytest.fixture
def client(connect: Callable[[], Client]) -> Client:
    return connect()
