"""FaultProxy, each fault, both ways: passing through, delays, holds, splits. No sleeps: everything
waits for an event, and "never arrives" is shown by something sent later arriving instead."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.proxy.wires import RST, WAYS, Client, Collector, Server, bulk, command, expect
from tests.waiting import readable

from holdfast.testing import relay
from holdfast.testing.framing import Way
from holdfast.testing.proxy import FaultProxy


def test_without_faults_everything_passes_and_is_counted(proxy: FaultProxy, client: Client) -> None:
    client.call(b"a")
    client.call(b"b" * 300_000)
    assert (proxy.requests, proxy.replies) == (2, 2)
    assert proxy.frames("to_server")[0] == command(b"ECHO", b"a")
    assert proxy.frames("to_client")[0] == bulk(b"a")
    assert proxy.wait_for_request(b"bbb") == command(b"ECHO", b"b" * 300_000)
    assert client.link() == proxy.connections[0]


def test_pushes_pass_and_are_not_counted(proxy: FaultProxy, client: Client) -> None:
    proxy.drop_reply()
    client.send(b"PUSH", b"a")
    client.expect(b">2\r\n+news\r\n+1\r\n")
    client.call(b"b")
    assert proxy.replies == 2


def test_waiting_returns_each_request_once_and_says_what_it_saw(
    proxy: FaultProxy, client: Client
) -> None:
    client.call(b"a")
    client.call(b"b")
    assert proxy.wait_for_request() == command(b"ECHO", b"a")
    assert proxy.wait_for_request(lambda frame: frame.endswith(b"b\r\n"))
    with pytest.raises(TimeoutError, match="2 requests, 2 replies"):
        proxy.wait_for_request(timeout=0)
    client.call(b"c")
    proxy.forget()
    assert proxy.frames("to_server") == []
    with pytest.raises(TimeoutError):
        proxy.wait_for_reply(timeout=0)


def test_asyncio(server: Server, proxy: FaultProxy) -> None:
    async def main() -> None:
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
        with proxy.hold("to_client"):
            writer.write(command(b"ECHO", b"a"))
            await asyncio.to_thread(proxy.wait_for_held)
        assert await asyncio.wait_for(reader.readexactly(7), 5) == bulk(b"a")
        writer.close()
        await writer.wait_closed()

    asyncio.run(main())


def test_unix_socket_upstream(tmp_path: Path) -> None:
    with (
        closing(Server(str(tmp_path / "s"))) as server,
        FaultProxy(server.address, framing="resp") as proxy,
        closing(Client(proxy).sock) as sock,
    ):
        sock.sendall(command(b"ECHO", b"a"))
        assert sock.recv(100) == bulk(b"a")


def test_upstream_that_refuses_resets_the_client() -> None:
    free = socket.socket()
    free.bind(("127.0.0.1", 0))  # bound and not listening: refuses, and nobody else can have it
    # The reset may come before `connect` has returned.
    with (
        closing(free),
        FaultProxy(free.getsockname()) as proxy,
        pytest.raises(ConnectionResetError),
        closing(Client(proxy).sock) as sock,
    ):
        sock.recv(1)


def test_unknown_framing_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'smtp'.*resp"):
        FaultProxy(("127.0.0.1", 1), framing="smtp")


@pytest.mark.parametrize("way", WAYS)
def test_delay(proxy: FaultProxy, client: Client, way: Way) -> None:
    with proxy.delay(0.05, way):
        start = time.monotonic()
        client.call(b"a")
        assert time.monotonic() - start >= 0.05
    with proxy.delay(60, way):
        client.send(b"ECHO", b"b")
        proxy.wait_for_request(b"b\r\n") if way == "to_server" else proxy.wait_for_reply(b"b\r\n")
        assert not readable(client.sock)
    proxy.heal()  # undoing the delay keeps the date of what is under way; healing delivers it now
    client.expect(bulk(b"b"))


def test_delays_add_up_and_keep_order(proxy: FaultProxy, client: Client) -> None:
    proxy.delay(0.03, "to_client")
    slow = proxy.delay(0.03, "to_client")
    start = time.monotonic()
    client.send(b"ECHO", b"a")
    proxy.wait_for_reply()
    slow.undo()  # the second is less delayed than the first, and must not overtake it
    client.send(b"ECHO", b"b")
    client.expect(bulk(b"a"))
    assert time.monotonic() - start >= 0.06
    client.expect(bulk(b"b"))


def test_a_released_frame_still_waits_for_its_delay(proxy: FaultProxy, client: Client) -> None:
    proxy.delay(0.1, "to_client")
    start = time.monotonic()
    with proxy.hold("to_client"):
        client.send(b"ECHO", b"a")
        proxy.wait_for_held()
    client.expect(bulk(b"a"))  # nothing else happens: the thread must have been told to wake
    assert time.monotonic() - start >= 0.1


@pytest.mark.parametrize("way", WAYS)
def test_hold_and_release_in_order(
    server: Server, proxy: FaultProxy, client: Client, way: Way
) -> None:
    proxy.hold(way)
    client.send(b"ECHO", b"a")
    client.send(b"ECHO", b"b")
    proxy.wait_for_held(2)
    assert not readable(client.sock)
    assert server.applied == ([] if way == "to_server" else [b"a", b"b"])
    proxy.release_held()
    client.expect(bulk(b"a") + bulk(b"b"))
    assert server.applied == [b"a", b"b"]
    client.call(b"c")
    assert proxy.held == 0


def test_hold_of_matching_frames_keeps_what_is_behind_them(
    server: Server, proxy: FaultProxy, client: Client
) -> None:
    with proxy.hold("to_server", matching=b"held"):
        client.call(b"a")
        client.send(b"ECHO", b"held")
        client.send(b"ECHO", b"b")
        proxy.wait_for_request(b"b\r\n")
        assert (proxy.held, server.applied) == (1, [b"a"])
    client.expect(bulk(b"held") + bulk(b"b"))


@pytest.mark.parametrize("rst", [False, True])
def test_ghost_a_held_request_is_applied_after_its_client_left(
    server: Server, proxy: FaultProxy, client: Client, rst: bool
) -> None:
    proxy.hold("to_server")
    client.send(b"ECHO", b"ghost")
    proxy.wait_for_held()
    link = client.link()
    if rst:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
    client.sock.close()
    proxy.wait_until(lambda: not link.to_server.reading)
    assert server.applied == []
    proxy.release_held()
    assert proxy.wait_for_reply() == bulk(b"ghost")
    assert server.applied == [b"ghost"]
    server.wait(lambda: server.ends == ["eof"])
    proxy.wait_until(lambda: not proxy.connections)


def test_a_released_request_is_given_time_before_the_end(
    server: Server, proxy: FaultProxy, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "LINGER", 60)
    link = client.link()
    with proxy.hold("to_server"):
        client.send(b"ECHO", b"ghost")
        proxy.wait_for_held()
        client.sock.close()
        proxy.wait_until(lambda: not link.to_server.reading)
    proxy.wait_for_reply()
    assert proxy.connections == (link,)
    assert server.ends == []
    proxy.heal()
    server.wait(lambda: server.ends == ["eof"])


@pytest.mark.parametrize("way", WAYS)
def test_split_sends_piece_by_piece(collector: Collector, way: Way) -> None:
    with FaultProxy(collector.address) as proxy, closing(Client(proxy).sock) as sock:
        proxy.split(1, way, gap=60)
        sock.sendall(b"abc")
        sock.shutdown(socket.SHUT_WR)
        if way == "to_client":
            assert sock.recv(100) == b"a"  # the gap holds the rest back
        else:
            link = proxy.wait_until(lambda: proxy.connections)[0]
            proxy.wait_until(lambda: link.to_server.queue and link.to_server.size == 2)
            assert collector.applied == []
        proxy.heal()
        rest = b"bc" if way == "to_client" else b"abc"
        expect(sock, rest)


def test_split_without_gap_delivers_every_byte(proxy: FaultProxy, client: Client) -> None:
    proxy.split(3)
    client.call(bytes(range(256)) * 40)
