"""etcd: who waits, what it watches, and how many connections a crowd of threads may open."""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.backends.etcd import EtcdBackend, answers
from holdfast.backends.etcd.threads import MOST
from holdfast.backends.url import parse
from holdfast.ports.clock import now
from holdfast.ports.thread import ThreadPort, drive
from holdfast.testing import FaultProxy
from holdfast.types import Busy, Claim, Grant
from tests.servers import EtcdServer
from tests.waiting import until

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


class TimeLimit(Exception):
    """What a task queue's handler of signals raises."""


class Client:
    """A backend that is asked by hand; its looks at the line are counted, and its glances at who is
    just before it."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.port = ThreadPort()
        self.backend = EtcdBackend.from_url(parse(url))
        self.backend.open(self.port, None)  # type: ignore[arg-type]
        self.looks = self.glances = 0
        book = self.backend._book
        look, is_before = book.look, book.is_before

        async def looked(*args: Any) -> Any:
            self.looks += 1
            return await look(*args)

        async def glanced(*args: Any) -> bool:
            before = await is_before(*args)
            self.glances += 1
            return before

        monkeypatch.setattr(book, "look", looked)
        monkeypatch.setattr(book, "is_before", glanced)

    def attempt(self, claim: Claim) -> Any:
        return drive(self.backend.attempt(claim, True, self.port.now() + 10))

    def release(self, grant: Grant) -> None:
        drive(self.backend.release(grant, False, self.port.now() + 10))

    def wait(self, claim: Claim, busy: Busy) -> Grant | None:
        return drive(self.backend.wait(claim, busy, self.port.now() + 10))


@pytest.fixture
def client(server: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    client = Client(server.url, monkeypatch)
    yield client
    drive(client.backend.close())


@pytest.mark.req("R9", "law 6")
def test_a_release_just_before_the_watch_begins_is_not_waited_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd tells what happened before a watch began only every 100 ms. Here it never does."""
    read = answers.WatchAnswer.read

    def without_events(data: bytes) -> Any:
        answer = read(data)
        answer.reached, answer.gone = 0, []
        return answer

    monkeypatch.setattr(answers.WatchAnswer, "read", without_events)
    one, two = Claim("early", "1" * 32, ttl=60), Claim("early", "2" * 32, ttl=60)
    held = client.attempt(one)
    busy = client.attempt(two)
    assert isinstance(held, Grant)
    assert isinstance(busy, Busy)
    client.release(held)
    grant = client.wait(two, busy)
    assert grant is not None
    client.release(grant)
    assert client.looks == 1


@pytest.mark.req("R9", "law 6")
def test_a_busy_store_is_not_a_reason_to_look_again_and_again(
    server: EtcdServer, client: Client
) -> None:
    """It has gone on when the watch begins, and it was for nothing: one glance, and the watch is
    good from then on."""
    one, two = Claim("late", "1" * 32, ttl=60), Claim("late", "2" * 32, ttl=60)
    held = client.attempt(one)
    busy = client.attempt(two)
    server.api("/v3/kv/put", {"key": "eA==", "value": "eA=="})
    grants: list[Grant | None] = []
    thread = threading.Thread(target=lambda: grants.append(client.wait(two, busy)))
    thread.start()
    until(lambda: client.glances, "it looks because the store has gone on")
    client.release(held)
    thread.join()
    (grant,) = grants
    assert grant is not None
    client.release(grant)
    assert (client.glances, client.looks) == (1, 1)


@pytest.mark.req("R9", "law 6")
def test_a_store_that_is_slow_is_not_asked_the_long_question(
    server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand who came at once had no answer to the short one within a second, and each had the
    whole line read instead: the store was busy with that for as long as they waited."""
    with FaultProxy(("127.0.0.1", server.port), framing="http2") as proxy:
        client = Client(f"etcd://{proxy.host}:{proxy.port}", monkeypatch)
        one, two = Claim("slow", "1" * 32, ttl=60), Claim("slow", "2" * 32, ttl=60)
        held = client.attempt(one)
        busy = client.attempt(two)
        server.api("/v3/kv/put", {"key": "eA==", "value": "eA=="})
        grants: list[Grant | None] = []
        thread = threading.Thread(target=lambda: grants.append(client.wait(two, busy)))
        with proxy.delay_request(1.5, matching=b"/etcdserverpb.KV/Range"):
            thread.start()
            until(lambda: client.glances, "it looks because the store has gone on")
        assert client.looks == 0
        client.release(held)
        thread.join()
        (grant,) = grants
        assert grant is not None
        client.release(grant)
        assert (client.glances, client.looks) == (1, 1)
        drive(client.backend.close())


@pytest.mark.req("R9")
def test_a_crowd_of_threads_takes_turns_on_a_few_connections(server: EtcdServer) -> None:
    with (
        FaultProxy(("127.0.0.1", server.port), framing="http2") as proxy,
        holdfast.connect(f"etcd://{proxy.host}:{proxy.port}") as locks,
    ):

        def work(number: int) -> None:
            with locks.lock(f"crowd{number}"):
                pass

        work(0)
        proxy.hold("to_client")  # nobody is answered before all connections are used
        threads = [threading.Thread(target=work, args=(number,)) for number in range(100)]
        for thread in threads:
            thread.start()
        until(lambda: len(proxy.connections) >= MOST, "all connections are used")
        proxy.release_held()
        for thread in threads:
            thread.join()
        assert len(proxy.connections) <= MOST + 2  # keep-alives, watches


@pytest.mark.req("R20", "law 6", "connection pool exhausted")
def test_a_lease_is_renewed_though_all_connections_are_in_use(server: EtcdServer) -> None:
    """Its renewals stood in the crowd's line, each time for a second and then at its end again."""
    with holdfast.connect(server.url) as locks:
        lease = locks.lock("kept in a crowd", ttl=60, renew=0.1).acquire()
        assert lease
        transport: Any = locks._current.backend._channel._transport  # type: ignore[attr-defined]
        (pool,) = [pool for (_, apart), pool in transport._pools.items() if not apart]
        places = [drive(pool.place(lambda: now() + 5)) for _ in range(MOST)]
        assert None not in places
        least = lease.remaining()

        def longer() -> bool:
            nonlocal least
            last, least = least, lease.remaining()
            return least > last

        for _ in range(3):
            until(longer, "a renewal")
        for place in places:
            pool.leave(place)
        assert lease.release() is True


@pytest.mark.req("R9", "KeyboardInterrupt at any line")
@pytest.mark.filterwarnings("ignore")  # of coroutines that an interrupt kept from beginning
def test_real_signals_swallow_no_connections(
    server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in three hundred struck inside of a finaliser: it came to nobody, and the place of a
    connection was gone. After 32 of them the client waited for ever."""
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    armed = False

    def strike(number: int, frame: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise TimeLimit

    before = signal.signal(signal.SIGALRM, strike)
    rng, struck = random.Random(7), 0
    try:
        with holdfast.connect(server.url) as locks:
            while struck < 1500:
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 0.003))
                    while armed:
                        with locks.lock("a"):
                            pass
                except TimeLimit:
                    struck += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            backend: Any = locks._engine().backend
            (pool,) = backend._channel._transport._pools.values()
            with locks.lock("a", timeout=20):
                pass
            until(lambda: pool.taken <= 1, "all places are free")  # one: keep-alive
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not unraisable
