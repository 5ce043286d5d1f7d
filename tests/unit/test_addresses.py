"""One deadline for several addresses: each has its part, and the last what is left."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from holdfast.backends import addresses as module
from holdfast.backends.addresses import Found, connected, one_by_one, share
from holdfast.ports.clock import now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [100.0]
    monkeypatch.setattr(module, "now", lambda: moment[0])
    return moment


def found(*where: tuple[str, int]) -> list[Found]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", one) for one in where]


@pytest.mark.req("law 4")
def test_each_has_its_share_of_what_is_left(clock: list[float]) -> None:
    three = found(("a", 1), ("b", 2), ("c", 3))
    seconds: list[float] = []
    for place, (address, its) in enumerate(one_by_one(three, 112.0)):
        assert address is three[place]
        seconds.append(its)
        clock[0] += (4.0, 1.0, 0.0)[place]  # the second was refused at once
    assert seconds == [4.0, 4.0, 7.0]
    assert share(112.0, 1) == 112.0


@pytest.mark.req("law 4")
def test_no_time_is_left(clock: list[float]) -> None:
    tried: list[Found] = []
    with pytest.raises(TimeoutError, match="no time was left"):
        for address, _ in one_by_one(found(("a", 1), ("b", 2)), 101.0):
            tried.append(address)
            clock[0] += 5.0  # the machine stood still
    assert len(tried) == 1


@pytest.fixture
def listening() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


@pytest.fixture
def refusing() -> Iterator[tuple[str, int]]:
    """An address that is taken, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address where nobody answers: its queue is full."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(server.getsockname())
        time.sleep(0.1)
        yield server.getsockname()
        for sock in waiting:
            sock.close()


@pytest.mark.req("law 4", "B3")
def test_who_answers_is_found_behind_others(
    listening: tuple[str, int], refusing: tuple[str, int], silent: tuple[str, int]
) -> None:
    with connected(found(refusing, silent, listening), now() + 2) as sock:
        assert sock.getpeername() == listening


@pytest.mark.req("law 4")
def test_the_last_failure_is_told(refusing: tuple[str, int], silent: tuple[str, int]) -> None:
    with pytest.raises(ConnectionRefusedError):
        connected(found(silent, refusing), now() + 0.4)
    begun = now()
    with pytest.raises(TimeoutError):
        connected(found(silent, silent), begun + 0.4)
    assert now() - begun < 3  # and not as much for each
    with pytest.raises(OSError, match="no address"):
        connected([], now() + 1)
