"""FaultProxy: each fault, both ways, against small servers in threads. No sleeps: everything waits
for an event, and "never arrives" is shown by something sent later arriving instead."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import relay
from holdfast.testing.framing import Frame, Kind, Way
from holdfast.testing.proxy import FaultProxy
from holdfast.testing.relay import WINDOW, Link
from holdfast.testing.rules import Parcel, Pick, swallow

WAYS: tuple[Way, Way] = ("to_server", "to_client")
RST = struct.pack("ii", 1, 0)


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(bulk(word) for word in words)


def bulk(word: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(word), word)


class Server:
    """A thread per connection. Remembers what was applied, and how each connection ended."""

    def __init__(self, path: str | None = None) -> None:
        self.listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self.listener.bind(path or ("127.0.0.1", 0))
        self.listener.listen(64)
        self.address: Any = path or self.listener.getsockname()
        self.changed = threading.Condition()
        self.applied: list[bytes] = []
        self.ends: list[str] = []
        self.socks: list[socket.socket] = []
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self.serve, args=(sock,))
            with self.changed:
                self.socks.append(sock)
                self.threads.append(thread)
                self.changed.notify_all()
            thread.start()

    def serve(self, sock: socket.socket) -> None:
        end = "eof"
        try:
            self.handle(sock)
        except ConnectionError:
            end = "reset"
        except OSError:
            end = "closed"
        sock.close()
        with self.changed:
            self.ends.append(end)
            self.changed.notify_all()

    def handle(self, sock: socket.socket) -> None:
        """RESP: answer with the last word; PUSH sends a push first."""
        with sock.makefile("rb") as file:
            while head := file.readline():
                words = [file.read(int(file.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))]
                self.apply(words[-1])
                push = b">2\r\n+news\r\n+1\r\n" if words[0] == b"PUSH" else b""
                sock.sendall(push + bulk(words[-1]))

    def apply(self, what: bytes) -> None:
        with self.changed:
            self.applied.append(what)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 5), (self.applied, self.ends)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.threads[0].join(5)
        for sock in self.socks:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self.threads:
            thread.join(5)
            assert not thread.is_alive()


class Collector(Server):
    """Reads to the end, then answers with everything it got."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        super().__init__()

    def handle(self, sock: socket.socket) -> None:
        got = bytearray()
        self.gate.wait(5)
        try:
            while data := sock.recv(65536):
                got += data
        finally:
            self.apply(bytes(got))
        sock.sendall(got)


def expect(sock: socket.socket, data: bytes) -> None:
    got = bytearray()
    while len(got) < len(data) and (more := sock.recv(len(data) - len(got))):
        got += more
    assert got == data


class Client:
    def __init__(self, proxy: FaultProxy) -> None:
        self.sock = socket.create_connection(proxy.address, timeout=5)
        self.proxy = proxy

    def send(self, *words: bytes) -> None:
        self.sock.sendall(command(*words))

    def expect(self, data: bytes) -> None:
        expect(self.sock, data)

    def call(self, word: bytes) -> None:
        self.send(b"ECHO", word)
        self.expect(bulk(word))

    def expect_end(self) -> None:
        assert self.sock.recv(1) == b""

    def expect_reset(self) -> None:
        with pytest.raises(ConnectionResetError):
            self.sock.recv(1)

    def link(self) -> Link:
        mine = self.sock.getsockname()
        return self.proxy.wait_until(
            lambda: next((link for link in self.proxy.connections if link.address == mine), None)
        )


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


# Passing through and looking.


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


# Delay, hold, split.


@pytest.mark.parametrize("way", WAYS)
def test_delay(proxy: FaultProxy, client: Client, way: Way) -> None:
    with proxy.delay(0.05, way):
        start = time.monotonic()
        client.call(b"a")
        assert time.monotonic() - start >= 0.05
    with proxy.delay(60, way):
        client.send(b"ECHO", b"b")
        proxy.wait_for_request(b"b\r\n") if way == "to_server" else proxy.wait_for_reply(b"b\r\n")
        assert not select.select([client.sock], [], [], 0)[0]
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
    assert not select.select([client.sock], [], [], 0)[0]
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


# Losing.


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


# Resets and connections.


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


# Sockets, memory, threads, processes.


def test_half_close_passes_and_the_answer_comes_back(collector: Collector) -> None:
    with FaultProxy(collector.address) as proxy, closing(Client(proxy).sock) as sock:
        sock.sendall(b"abc")
        sock.shutdown(socket.SHUT_WR)
        expect(sock, b"abc")
        proxy.wait_until(lambda: not proxy.connections)


def test_an_incomplete_frame_is_passed_on_at_the_end(collector: Collector) -> None:
    with FaultProxy(collector.address, framing="lines") as proxy:
        with closing(Client(proxy).sock) as sock:
            sock.sendall(b"a\nhalf")
            sock.shutdown(socket.SHUT_WR)
            expect(sock, b"a\nhalf")
        assert proxy.requests == 1


def test_back_pressure_bounds_memory_and_loses_nothing(collector: Collector) -> None:
    payload = os.urandom(1024) * 8 * 1024
    collector.gate.clear()
    with FaultProxy(collector.address) as proxy, closing(Client(proxy).sock) as sock:
        writer = threading.Thread(target=sock.sendall, args=(payload,))
        writer.start()
        flow = proxy.wait_until(lambda: proxy.connections)[0].to_server
        proxy.wait_until(flow.full)
        sizes: list[int] = []

        def all_read() -> bool:
            sizes.append(flow.size)
            return sum(map(len, proxy.frames("to_server"))) == len(payload)

        collector.gate.set()
        proxy.wait_until(all_read)
        writer.join(5)
        sock.shutdown(socket.SHUT_WR)
        expect(sock, payload)
        assert max(sizes) <= WINDOW + 65536


def test_held_frames_are_kept_beyond_the_window(collector: Collector) -> None:
    payload = os.urandom(1024) * 4 * (WINDOW // 1024)
    with FaultProxy(collector.address) as proxy, closing(Client(proxy).sock) as sock:
        with proxy.hold("to_server"):
            sock.sendall(payload)
            flow = proxy.wait_until(lambda: proxy.connections)[0].to_server
            proxy.wait_until(lambda: flow.size == len(payload))
        sock.shutdown(socket.SHUT_WR)
        expect(sock, payload)


def test_close_is_idempotent_leaks_nothing_and_ends_the_thread(server: Server) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    sock = socket.create_connection(server.address, 5)
    server.wait(lambda: len(server.socks) == 1)
    before, threads = descriptors(), threading.active_count()
    for _ in range(3):
        proxy = FaultProxy(server.address, framing="resp")
        client = Client(proxy)
        proxy.hold()
        client.send(b"ECHO", b"a")
        proxy.wait_for_held()
        proxy.close()
        proxy.close()
        client.expect_end()
        client.sock.close()
        with pytest.raises(RuntimeError, match="closed"):
            proxy.delay(1)
        with pytest.raises(RuntimeError, match="closed"):
            proxy.wait_for_request(b"never")
        proxy.heal()
    server.wait(lambda: len(server.ends) == 3)
    for thread in server.threads[2:]:
        thread.join(5)
    assert (descriptors(), threading.active_count()) == (before, threads)
    sock.close()


def test_closing_wakes_those_who_wait(proxy: FaultProxy) -> None:
    errors: list[BaseException] = []
    waiting = threading.Event()

    def ask() -> bool:
        waiting.set()
        return False

    def wait() -> None:
        try:
            proxy.wait_until(ask)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(5)
    proxy.close()
    thread.join(4)
    assert len(errors) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_predicate_that_raises_closes_the_proxy(proxy: FaultProxy, client: Client) -> None:
    proxy.hold(matching=lambda frame: bool(1 // 0))
    client.send(b"ECHO", b"a")
    with pytest.raises(RuntimeError, match="closed"):
        proxy.wait_until(lambda: False)
    with pytest.raises((ConnectionResetError, AssertionError)):
        client.expect(bulk(b"a"))


def test_methods_may_be_called_from_a_predicate(proxy: FaultProxy, client: Client) -> None:
    proxy.drop_request(matching=lambda frame: proxy.requests == 2)
    client.call(b"a")
    client.send(b"ECHO", b"lost")
    client.call(b"b")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_the_child_has_let_go(proxy: FaultProxy, client: Client) -> None:
    client.call(b"a")
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    pid = os.fork()
    if pid == 0:
        verdict = b"no error"
        try:
            proxy.delay(1)
        except RuntimeError:
            verdict = b"closed"
        proxy.close()
        os.close(to_child)  # so that it ends if the parent dies
        os.write(to_parent, verdict)
        os.read(from_parent, 1)
        os._exit(0)
    try:
        assert os.read(from_child, 100) == b"closed"
        client.call(b"b")  # the child has not reached through to the parent's epoll
        proxy.reset()
        client.expect_reset()  # while the child lives: it keeps no descriptor of ours
    finally:
        os.write(to_child, b"!")
        status = os.waitpid(pid, 0)[1]
        for fd in (from_child, to_parent, from_parent, to_child):
            os.close(fd)
    assert status == 0
