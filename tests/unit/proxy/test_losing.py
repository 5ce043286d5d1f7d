"""FaultProxy, each fault, both ways: frames that are lost, and resets. No sleeps: everything
waits for an event, and "never arrives" is shown by something sent later arriving instead."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from tests.unit.proxy.wires import RST, Client, Collector, Server, bulk

from holdfast.testing.framing import Frame, Kind
from holdfast.testing.proxy import FaultProxy
from holdfast.testing.rules import Parcel, Pick, swallow


@pytest.mark.parametrize("n", [1, 2])
def test_drop_reply_applied_and_never_answered(
    server: Server, proxy: FaultProxy, client: Client, n: int
) -> None:
    proxy.drop_reply(n)
    for _ in range(1, n):
        client.call(b"before")
    client.send(b"ECHO", b"lost")
    proxy.wait_for_reply(b"lost")
    client.call(b"after")
    assert server.applied[-2:] == [b"lost", b"after"]


def test_drop_request_never_applied(server: Server, proxy: FaultProxy, client: Client) -> None:
    proxy.drop_request(2)
    client.call(b"a")
    client.send(b"ECHO", b"lost")
    client.call(b"b")
    assert server.applied == [b"a", b"b"]


def test_drop_several_matching_and_undo(server: Server, proxy: FaultProxy, client: Client) -> None:
    fault = proxy.drop_request(times=2, matching=lambda frame: b"x" in frame)
    for word in (b"x1", b"x2"):
        client.send(b"ECHO", word)
    client.call(b"a")
    client.call(b"x3")
    fault.undo()
    with proxy.drop_reply(matching=b"y"):
        client.call(b"b")
    client.call(b"y")
    assert server.applied == [b"a", b"x3", b"b", b"y"]


def test_drop_the_reply_to_a_request(server: Server, proxy: FaultProxy, client: Client) -> None:
    proxy.drop_reply(to=b"ACQUIRE")
    client.call(b"a")
    for words in ((b"PING", b"1"), (b"ACQUIRE", b"2"), (b"PING", b"3")):  # pipelined
        client.send(*words)
    client.expect(bulk(b"1") + bulk(b"3"))
    client.send(b"ACQUIRE", b"4")
    client.expect(bulk(b"4"))
    assert server.applied == [b"a", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("matching", [None, b"row"])
def test_a_reply_of_many_frames_is_lost_whole_and_counted_once(matching: bytes | None) -> None:
    rule = Pick("to_client", None, "to_client", 2, 1, matching, swallow)

    def lost(exchange: int, data: bytes, kind: Kind) -> bool:
        parcel = Parcel("link", "to_client", Frame(data, kind), exchange, 0.0)
        rule.mark(parcel)
        return parcel.lost

    assert not lost(1, b"row 1", "begin")
    assert not lost(1, b"row 2", "more")
    assert lost(2, b"row 1", "begin")
    assert not lost(2, b"notification", "aside")
    assert lost(2, b"end", "more")
    assert not lost(3, b"row 1", "begin")


def test_one_way(server: Server, proxy: FaultProxy, client: Client) -> None:
    with proxy.one_way("to_client"):
        client.send(b"ECHO", b"a")
        proxy.wait_for_reply()
    client.call(b"b")
    with proxy.one_way("to_server"):
        client.send(b"ECHO", b"c")
        proxy.wait_for_request(b"c\r\n")
    client.call(b"d")
    assert server.applied == [b"a", b"b", b"d"]


def test_one_way_also_keeps_the_end_until_healed(
    server: Server, proxy: FaultProxy, client: Client
) -> None:
    client.call(b"a")
    link = client.link()
    proxy.one_way("to_server")
    client.sock.close()
    proxy.wait_until(lambda: not link.to_server.reading)
    assert proxy.connections == (link,)
    assert server.ends == []
    proxy.heal()
    server.wait(lambda: server.ends == ["eof"])


def test_blackhole_accepts_and_never_answers(
    server: Server, proxy: FaultProxy, connect: Callable[[], Client]
) -> None:
    proxy.blackhole()
    client = connect()
    client.send(b"ECHO", b"a")
    proxy.wait_for_request()
    proxy.heal()
    client.call(b"b")
    assert server.applied == [b"b"]


def test_reset_both_sides(server: Server, proxy: FaultProxy, client: Client) -> None:
    client.call(b"a")
    proxy.reset()
    client.expect_reset()
    server.wait(lambda: server.ends == ["reset"])
    assert proxy.connections == ()


def test_reset_of_the_client_only_lets_its_request_through(
    server: Server, proxy: FaultProxy, client: Client
) -> None:
    with proxy.hold("to_server"):
        client.send(b"ECHO", b"a")
        proxy.wait_for_held()
        proxy.reset("client")
        client.expect_reset()
        assert server.applied == []
    assert proxy.wait_for_reply() == bulk(b"a")
    server.wait(lambda: server.ends == ["eof"])


@pytest.mark.parametrize("after", [0, 3])
def test_reset_on_reply(server: Server, proxy: FaultProxy, client: Client, after: int) -> None:
    proxy.reset_on_reply(2, after=after)
    client.call(b"a")
    client.send(b"ECHO", b"bcd")
    client.expect(bulk(b"bcd")[:after])
    client.expect_reset()
    assert server.applied == [b"a", b"bcd"]


def test_reset_on_the_reply_to_a_request(
    server: Server, proxy: FaultProxy, connect: Callable[[], Client]
) -> None:
    proxy.reset_on_reply(to=b"ACQUIRE")
    bystander, victim = connect(), connect()
    bystander.call(b"a")
    victim.send(b"ACQUIRE", b"b")
    victim.expect_reset()
    bystander.call(b"c")
    assert server.applied == [b"a", b"b", b"c"]


@pytest.mark.parametrize("after", [0, 3])
def test_reset_on_request(collector: Collector, after: int) -> None:
    with FaultProxy(collector.address, framing="lines") as proxy:
        client = Client(proxy)
        proxy.reset_on_request(2, after=after)
        client.sock.sendall(b"one\ntwo two\n")
        client.expect_reset()
        client.sock.close()
        collector.wait(lambda: collector.ends == ["reset"])
        assert collector.applied == [b"one\ntwo two\n"[: 4 + after]]


def test_a_servers_reset_reaches_the_client(
    server: Server, proxy: FaultProxy, client: Client
) -> None:
    client.call(b"a")
    server.socks[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
    server.socks[0].shutdown(socket.SHUT_RD)  # its thread leaves, and closes
    client.expect_reset()


def test_sever_closes_refuses_and_heals_on_the_same_port(
    proxy: FaultProxy, client: Client, connect: Callable[[], Client]
) -> None:
    client.call(b"a")
    for _ in range(3):
        with proxy.sever():
            client.expect_end()
            assert proxy.connections == ()
            with pytest.raises(ConnectionRefusedError):
                connect()
        client = connect()
        client.call(b"b")


def test_pause_accept_leaves_new_connections_waiting(
    proxy: FaultProxy, client: Client, connect: Callable[[], Client]
) -> None:
    client.call(b"a")
    with proxy.pause_accept():
        waiting = connect()
        waiting.send(b"ECHO", b"b")
        client.call(b"c")
        assert len(proxy.connections) == 1
    waiting.expect(bulk(b"b"))


def test_faults_for_one_connection_spare_the_others(
    server: Server, proxy: FaultProxy, connect: Callable[[], Client]
) -> None:
    one, other = connect(), connect()
    proxy.hold(only=one.link())
    one.send(b"ECHO", b"a")
    proxy.wait_for_held()
    other.call(b"b")
    proxy.reset(only=one.link())
    one.expect_reset()
    other.call(b"c")
    assert server.applied == [b"b", b"c"]


def test_heal_undoes_everything_at_once(
    server: Server, proxy: FaultProxy, connect: Callable[[], Client]
) -> None:
    proxy.sever()
    proxy.hold()
    proxy.delay(60)
    proxy.split(1, gap=60)
    proxy.drop_reply()
    proxy.reset_on_request()
    proxy.blackhole()
    proxy.heal()
    connect().call(b"a")


def test_combined_faults_all_apply(server: Server, proxy: FaultProxy, client: Client) -> None:
    proxy.reset_on_reply(2, after=4)
    proxy.drop_reply(1)
    proxy.split(1, "to_client")
    proxy.hold("to_client")
    client.send(b"ECHO", b"a")
    client.send(b"ECHO", b"b")
    proxy.wait_for_held()
    proxy.release_held()
    client.expect(bulk(b"b")[:4])
    client.expect_reset()
