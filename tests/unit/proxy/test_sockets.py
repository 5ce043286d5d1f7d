"""FaultProxy: what it does with sockets, memory and threads. No sleeps: everything waits for an
event, and "never arrives" is shown by something sent later arriving instead."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import closing

import pytest
from tests.unit.proxy.wires import Client, Collector, Server, bulk, expect

from holdfast.testing.proxy import FaultProxy
from holdfast.testing.relay import WINDOW


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
            proxy.wait_until(ask, 60)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(25)
    proxy.close()
    thread.join(25)
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
