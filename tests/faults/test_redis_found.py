"""Bugs that a hostile review and the bench found in the redis backend, on a real server.

Over 400 lines: a list of cases, each read by itself, that share one server.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import hiredis
import pytest

import holdfast
from holdfast import Misconfigured, Unavailable, aio
from holdfast.backends.redis import lua
from holdfast.backends.redis.keys import Keys
from holdfast.backends.redis.requests import LineRequests
from holdfast.ports.clock import now
from holdfast.ports.thread import drive
from holdfast.types import Claim, Released
from tests.faults.redis import (
    SOON,
    Waiter,
    agreeing,
    endlessly,
    fresh,
    in_line,
    stranger,
    waiting,
)
from tests.servers import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def calls(server: RedisServer, *verbs: str) -> int:
    stats = server.info("commandstats")
    return sum(
        int(stats[f"cmdstat_{verb}"].partition("=")[2].partition(",")[0])
        for verb in verbs
        if f"cmdstat_{verb}" in stats
    )


@pytest.mark.req("law 6", "B3")
def test_a_hand_over_is_two_requests(server: RedisServer) -> None:
    """A grant that was called out was renewed at once, because it seemed to be old."""
    turns = 60
    with holdfast.connect(fresh(server.url)) as locks:
        barrier = threading.Barrier(3)

        def take() -> None:
            lock = locks.lock("x")
            barrier.wait()
            for _ in range(turns):
                with lock:
                    time.sleep(0.001)  # so that the others are in line

        threads = [threading.Thread(target=take) for _ in range(3)]
        before = calls(server, "eval", "evalsha")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cost = calls(server, "eval", "evalsha") - before
    assert cost / (3 * turns) < 2.5


@pytest.mark.req("law 6")
def test_a_client_that_may_not_listen_does_not_storm(server: RedisServer) -> None:
    """It asks again and again, with pauses; each new waiter shortened them."""
    server.call("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "resetchannels", "+@all")
    url = fresh(server.url.replace("://", "://deaf:pw@"))
    with holdfast.connect(fresh(server.url)) as _, holdfast.connect(url) as locks:
        lease = locks.lock("x").acquire()
        assert lease
        with waiting(locks.lock("x"), timeout=20) as waiter:
            in_line(locks, 1)
            before, begun = calls(server, "eval", "evalsha", "info"), now()
            time.sleep(2)
            asked = calls(server, "eval", "evalsha", "info") - before
            assert asked < 30 * (now() - begun)
            lease.release()
            assert waiter.result()
            waiter.lease.release()


@pytest.mark.req("law 3", "B3")
def test_many_lines_keep_their_places(server: RedisServer) -> None:
    """One heartbeat after another took longer than a place lasts."""
    count = 200
    url = fresh(server.url, window=4, heartbeat=1)
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        leases = [here.lock(f"x{n}").acquire() for n in range(count)]
        threads = [
            threading.Thread(target=lambda n=n: there.lock(f"x{n}").acquire(timeout=60))
            for n in range(count)
        ]
        for thread in threads:
            thread.start()
        until(lambda: sum(len(i.waiters) for i in here.inspect("x")) == count, "all in line")
        end = time.monotonic() + 6
        while time.monotonic() < end:
            assert sum(len(info.waiters) for info in here.inspect("x")) == count
        for lease in leases:
            assert lease
            lease.release()
        for thread in threads:
            thread.join()


@pytest.mark.req("law 3")
def test_clients_that_left_a_line_that_is_never_empty_are_forgotten(server: RedisServer) -> None:
    url = fresh(server.url, window=0.4, heartbeat=0.1)
    prefix = url.partition("prefix=")[2].partition("&")[0]
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        lease = here.lock("x").acquire()
        assert lease
        with waiting(there.lock("x"), timeout=60) as waiter:
            in_line(here, 1)
            for _ in range(100):
                with holdfast.connect(url) as passer_by, contextlib.suppress(Unavailable):
                    assert passer_by.lock("x").acquire(timeout=0.02) is None
            assert server.call("HLEN", f"{prefix}:{{x}}:c") < 70  # type: ignore[operator]
            lease.release()
            assert waiter.result()
            waiter.lease.release()


@pytest.mark.req("law 6", "thousands of renewals due at once")
def test_a_server_that_forgot_its_scripts_is_told_them_once(server: RedisServer) -> None:
    """Each of a batch was asked for again by itself: leases by the thousand would be late."""
    with holdfast.connect(fresh(server.url)) as locks:
        leases = [locks.lock(f"x{number}", ttl=60, renew=2).acquire() for number in range(100)]
        server.call("SCRIPT", "FLUSH")
        before = calls(server, "eval"), calls(server, "evalsha")
        until(lambda: calls(server, "evalsha") > before[1] + 150, "renewed")
        assert calls(server, "eval") - before[0] < 10
        assert all(lease is not None and lease.held for lease in leases)


@pytest.mark.req("R2", "waiter killed")
def test_a_line_that_was_left_and_joined_again_expires(server: RedisServer) -> None:
    """The last one in line left, and its keys were gone; who came next made new ones, believed that
    they were kept, and if it died then they had no end."""
    url = fresh(server.url)
    prefix = url.partition("prefix=")[2]
    with holdfast.connect(url) as locks:
        lease = locks.lock("x").acquire()
        assert lease
        assert locks.lock("x").acquire(timeout=0.5) is None
        waiter = Waiter(lambda: locks.lock("x").acquire(timeout=20))
        in_line(locks, 1)
        keys = server.call("KEYS", f"{prefix}:*")
        assert isinstance(keys, list)
        assert len(keys) >= 4
        assert {key for key in keys if int(str(server.call("PTTL", str(key)))) < 0} == set()
        lease.release()
        assert waiter.result().release() is True


@pytest.mark.parametrize("gone", ["qdc", "c", "of another kind"])
def test_a_line_that_somebody_has_emptied_expires(server: RedisServer, gone: str) -> None:
    """The same by another way: the lock's key says of keys that are gone how long they are kept.
    Asked by hand, for a client's next heartbeat would mend it."""
    prefix = fresh(server.url).partition("prefix=")[2]
    requests = LineRequests(Keys(prefix), f"{prefix}:call", 2.0, 300.0)

    def attempt(owner: str) -> Any:
        parts = requests.attempt(Claim("x", owner, ttl=60.0), True, "1")
        reader = hiredis.Reader()
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(lua.ATTEMPT.full + parts[0])
            while (answer := reader.gets()) is False:
                reader.feed(sock.recv(65536))
        return answer

    graves = f"{prefix}:{{x}}:t"
    assert attempt("a") > 0
    assert attempt("b")[0] == 0
    if gone == "of another kind":
        with holdfast.connect(server.url + f"?prefix={prefix}") as locks:
            drive(locks._engine().backend.withdraw(Claim("x", "z", ttl=60.0), True, now() + 20))
        server.call("SET", graves, "somebody's")
        assert attempt("b") == -7  # its place is given up
        server.call("DEL", graves)
    else:
        server.call("DEL", *(f"{prefix}:{{x}}:{letter}" for letter in gone))
    assert attempt("d")[0] == 0
    for letter in "qdc":
        assert int(str(server.call("PTTL", f"{prefix}:{{x}}:{letter}"))) > 0, letter


@pytest.mark.req("B5")
def test_who_waits_for_a_cell_makes_no_connection_after_the_close(server: RedisServer) -> None:
    """It looked once more, on a connection of its own that nobody closed."""
    there = len(str(server.call("CLIENT", "LIST")).splitlines())
    locks = [holdfast.connect(fresh(server.url)) for _ in range(2)]
    ended: list[type[BaseException]] = []

    def wait(for_it: Callable[[], object]) -> None:
        try:
            for_it()
        except holdfast.HoldfastError as error:
            ended.append(type(error))

    works = locks[0].latch("x", 1).wait, locks[1].barrier("x", 2).wait
    threads = [threading.Thread(target=wait, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    until(lambda: locks[1].barrier("x", 2).waiting() == 1, "a party")
    time.sleep(0.2)
    for client in locks:
        client.close()
    for thread in threads:
        thread.join(25)
    assert len(ended) == 2
    until(lambda: len(str(server.call("CLIENT", "LIST")).splitlines()) == there, "all left")


@pytest.mark.req("B5")
def test_a_value_for_less_than_a_microsecond_is_not_kept_for_ever(server: RedisServer) -> None:
    with holdfast.connect(fresh(server.url)) as locks:
        engine = locks._engine()
        drive(
            engine.backend.cell_write(
                "x", b"x", expect=None, fence=None, ttl=1e-7, deadline=engine.port.now() + 5
            )
        )
        assert drive(engine.backend.cell_read("x", engine.port.now() + 5)) is None


FOREIGN: dict[str, tuple[str, ...]] = {
    "a list": ("RPUSH", "somebody's"),
    "a text": ("SET", "somebody's"),
    "nothing": ("SET", ""),
    "half of a free lock": ("SET", "f123"),
    "half of a lock": ("SET", "x123"),
    "a lock without an owner": ("SET", "x" + 30 * "0"),
    "half of a line": ("SET", "cx1" + 30 * "0"),
}


@pytest.mark.req("law 2", "law 4", "B7")
@pytest.mark.parametrize("what", FOREIGN)
def test_what_somebody_else_wrote_where_a_lock_is_kept(server: RedisServer, what: str) -> None:
    """Who asked was told that the store does not answer, and its clean-up was tried for ever. A
    text was taken for a free lock and replaced. One such key hid all others from an operator."""
    verb, *words = FOREIGN[what]
    url = fresh(server.url)
    key = f"{url.partition('prefix=')[2]}:{{x}}"
    with holdfast.connect(url) as locks, locks.lock("other") as other:
        lease = locks.lock("x", ttl=60).acquire()
        assert lease
        with contextlib.ExitStack() as stack:
            waiter = stack.enter_context(waiting(locks.lock("x")))
            in_line(locks, 1)
            server.call(verb, f"{key}:theirs", *words)
            server.call("RENAME", f"{key}:theirs", key)  # at once, or the lock is free in between
            before = server.call("DUMP", key)
            with pytest.raises(Misconfigured, match="is no lock of this version"):
                waiter.result()
        with pytest.raises(holdfast.LeaseLost):
            lease.renew()
        assert lease.release() is False
        asking: list[Callable[[], object]] = [
            lambda: locks.lock("x").acquire(blocking=False),
            lambda: locks.rwlock("x").read().acquire(timeout=1),
            lambda: locks.multi("x", "y").acquire(timeout=1),
            lambda: locks.evict("x"),
        ]
        for ask in asking:
            with pytest.raises(Misconfigured, match="is no lock of this version"):
                ask()
        until(lambda: locks._engine().keeper._owed == {}, "the waiter's place is given up")
        assert [info.name for info in locks.inspect()] == ["other"]
        assert other.held
        assert server.call("DUMP", key) == before
        assert server.call("EXISTS", f"{key}:q") == 0
        server.call("DEL", key)
        assert locks.lock("x").acquire(blocking=False)


@pytest.mark.req("B7")
def test_what_somebody_else_wrote_beside_a_lock_hides_nothing(server: RedisServer) -> None:
    url = fresh(server.url)
    prefix = url.partition("prefix=")[2]
    with holdfast.connect(url) as locks, locks.lock("x"), locks.lock("y"):
        for letter in "qdch":
            server.call("SET", f"{prefix}:{{x}}:{letter}", "somebody's")
        assert [info.name for info in locks.inspect()] == ["x", "y"]


def acquire(port: str, url: str) -> object:
    async def main() -> object:
        async with aio.connect(url, request_timeout=1) as locks:
            return await locks.lock("x").acquire(timeout=1)

    if port == "aio":
        return asyncio.run(main())
    with holdfast.connect(url, request_timeout=1) as locks:
        return locks.lock("x").acquire(timeout=1)


PORTS = pytest.mark.parametrize("port", ["sync", "aio"])


@PORTS
@pytest.mark.req("law 5")
def test_a_server_that_never_stops_talking(port: str) -> None:
    """As long as there was something to read, nobody looked at the time."""
    with stranger(endlessly) as address:
        began = now()
        with pytest.raises(Unavailable, match="in time"):
            acquire(port, f"redis://{address}")
        assert now() - began < SOON


@PORTS
@pytest.mark.parametrize("kind", ["redis://{}", "redis+cluster://{}", "redis+sentinel://{}/m"])
def test_a_server_that_says_yes_to_everything_is_no_redis(port: str, kind: str) -> None:
    """It was an error of unpacking, from the middle of an acquire."""
    with stranger(agreeing) as address, pytest.raises(Misconfigured, match="is no Redis"):
        acquire(port, kind.format(address))


@PORTS
def test_a_database_beyond_all_numbers(server: RedisServer, port: str) -> None:
    """It was tried again and again, as if the server could have it later."""
    with pytest.raises(Misconfigured, match="no such database"):
        acquire(port, server.url[:-1] + "9" * 19)


def test_tls_to_a_server_without(server: RedisServer) -> None:
    """It was said that it may want a certificate."""
    with pytest.raises(Unavailable, match="if it does not speak TLS, use redis://"):
        acquire("sync", server.url.replace("redis://", "rediss://"))


@pytest.fixture
def no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has as many threads as it may have, when somebody is to listen."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "holdfast-redis":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)


@pytest.mark.req("law 4")
@pytest.mark.parametrize("dialect", ["", "plain"])
@pytest.mark.usefixtures("no_listener")
def test_who_waits_where_no_thread_can_be_started(server: RedisServer, dialect: str) -> None:
    """`RuntimeError`, out of the middle of an acquire. Who waits asks, and not all the time."""
    url = fresh(server.url, **{"dialect": dialect} if dialect else {})
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        lease = here.lock("x").acquire()
        assert lease
        assert there.lock("x").acquire(timeout=0.5) is None
        assert here.inspect("x")[0].waiters == ()
        before = calls(server, "eval", "evalsha")
        with waiting(there.lock("x")) as waiter:
            time.sleep(2)
            assert calls(server, "eval", "evalsha") - before < 30
            assert not waiter.done
            lease.release()
            assert waiter.result().release()
        assert all(not info.holders and not info.waiters for info in here.inspect("x"))


@pytest.mark.usefixtures("no_listener")
def test_who_waits_for_a_cell_where_no_thread_can_be_started(server: RedisServer) -> None:
    url = fresh(server.url)
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        waiter = Waiter(lambda: there.latch("x", 1).wait(timeout=20))
        time.sleep(0.1)
        here.latch("x", 1).count_down()
        began = now()
        waiter.result()
        assert now() - began < 3


def beside(url: str, letter: str) -> str:
    return f"{url.partition('prefix=')[2].partition('&')[0]}:{{x}}:{letter}"


@pytest.mark.req("law 2", "law 4", "B7")
@pytest.mark.parametrize("letter", ["q", "d", "c"])
def test_what_somebody_else_wrote_where_a_line_is_kept(server: RedisServer, letter: str) -> None:
    """Who waits was told that the store does not answer; the holder's renewals had no answer, its
    release did not free the lock, and the clean-ups were tried for ever."""
    url = fresh(server.url, heartbeat=0.3)
    with holdfast.connect(url) as here, holdfast.connect(url) as locks:
        lease = here.lock("x", ttl=60).acquire()
        assert lease
        with contextlib.ExitStack() as stack:
            waiter = stack.enter_context(waiting(locks.lock("x")))
            in_line(locks, 1)
            key = beside(url, letter)
            server.call("SET", f"{key}:theirs", "somebody's")
            server.call("RENAME", f"{key}:theirs", key)
            lease.renew()
            if letter == "d":  # nobody looks there before it is somebody's turn
                assert lease.release() is True
                lease = None
            with pytest.raises(Misconfigured, match=f":{letter}' holds something that is no lock"):
                waiter.result()
        for ask in (
            lambda: locks.lock("x").acquire(timeout=5),
            lambda: locks.multi("x", "y").acquire(timeout=5),
        ):
            if lease is None:  # nobody holds: who takes it needs no line
                break
            began = now()
            with pytest.raises(Misconfigured, match=f":{letter}' holds"):
                ask()
            assert now() - began < 2
        until(lambda: locks._engine().keeper._owed == {}, "the waiter's place is given up")
        assert lease is None or lease.held
        assert lease is None or lease.release() is True
        assert here._engine().keeper._owed == {}
        assert server.call("GET", key) == "somebody's"
        others = [beside(url, each) for each in "qdcht" if each != letter]
        assert -1 not in [server.call("PTTL", other) for other in others]  # without an end
        server.call("DEL", key)
        with locks.lock("x", timeout=5):
            waiter = Waiter(lambda: here.lock("x").acquire(timeout=20))
            in_line(here, 1)
        assert waiter.result().release()


@pytest.mark.req("law 2", "law 4", "B7")
@pytest.mark.parametrize("letter", ["d", "h"])
def test_what_somebody_else_wrote_where_readers_are_kept(server: RedisServer, letter: str) -> None:
    url = fresh(server.url)
    key = beside(url, letter)
    with holdfast.connect(url) as locks:
        for ask in (
            lambda: locks.rwlock("x").read().acquire(timeout=5),
            lambda: locks.semaphore("x", 2).acquire(timeout=5),
        ):
            server.call("SET", key, "somebody's")
            with pytest.raises(Misconfigured, match=f":{letter}' holds something that is no lock"):
                ask()
            assert [each for each in "qdcht" if server.call("EXISTS", beside(url, each))] == [
                letter
            ]
        writer = locks.rwlock("x").write().acquire(timeout=5)  # it needs no such key
        assert writer
        with pytest.raises(Misconfigured, match=f":{letter}' holds"):
            writer.downgrade()
        assert writer.held
        with waiting(locks.lock("x")) as waiter:
            if letter == "h":
                in_line(locks, 1)
            else:
                with pytest.raises(Misconfigured, match=":d' holds"):
                    waiter.result()
            assert writer.release() is True
        server.call("DEL", key)
        if letter == "h":
            assert waiter.result().release() is True
        reader = locks.rwlock("x").read().acquire(timeout=5)
        assert reader
        server.call("DEL", key)
        server.call("SET", key, "somebody's")
        with pytest.raises(holdfast.LeaseLost):
            reader.renew()
        if letter == "h":
            with pytest.raises(Misconfigured, match=":h' holds"):
                locks.evict("x")
        assert server.call("GET", key) == "somebody's"
        until(lambda: locks._engine().keeper.idle, "nothing is owed")
        server.call("DEL", key)
        assert locks.lock("x").acquire(timeout=5)


@pytest.mark.req("B7")
def test_what_somebody_else_wrote_where_a_line_is_kept_does_not_end(server: RedisServer) -> None:
    """Who waits keeps the line's keys for a while, and with them somebody else's: Redis deleted it
    when that was over."""
    url = fresh(server.url, heartbeat=0.1, window=0.3)
    key = beside(url, "d")
    with holdfast.connect(url) as here, holdfast.connect(url) as locks, here.lock("x", ttl=60):
        with waiting(locks.lock("x")) as waiter:
            in_line(locks, 1)
            server.call("SET", f"{key}:theirs", "somebody's")
            server.call("RENAME", f"{key}:theirs", key)
            with pytest.raises(Misconfigured, match=":d' holds something that is no lock"):
                waiter.result()
        assert server.call("PTTL", key) == -1


@pytest.mark.req("law 3", "B7")
@pytest.mark.parametrize("kind", ["reader", "permit"])
def test_what_somebody_else_wrote_where_one_who_leaves_is_described(
    server: RedisServer, kind: str
) -> None:
    """Its release was confirmed, and it went on holding, for nobody, for a whole ttl."""
    url = fresh(server.url)
    with holdfast.connect(url) as locks:
        lock = locks.rwlock("x").read() if kind == "reader" else locks.semaphore("x", 1)
        lease = lock.acquire()
        assert lease
        server.call("DEL", beside(url, "d"))
        server.call("SET", beside(url, "d"), "somebody's")
        assert lease.release() is True
        assert server.call("EXISTS", beside(url, "h")) == 0
        server.call("DEL", beside(url, "d"))
        assert locks.lock("x").acquire(blocking=False)


@pytest.mark.req("law 3", "B7")
def test_what_somebody_else_wrote_where_a_reader_who_waits_would_hold(server: RedisServer) -> None:
    """It was called, and believed to hold, before it could not be written down."""
    url = fresh(server.url)
    with holdfast.connect(url) as here, holdfast.connect(url) as there:
        writer = here.rwlock("x").write().acquire(timeout=5)
        assert writer
        waiter = Waiter(lambda: there.rwlock("x").read().acquire(timeout=20))
        in_line(here, 1)
        server.call("SET", beside(url, "h"), "somebody's")
        assert writer.release() is True
        with pytest.raises(Misconfigured, match=":h' holds"):
            waiter.result()
        until(lambda: there._engine().keeper._owed == {}, "its place is given up")
        with here.lock("x", timeout=5):
            pass


@pytest.mark.req("law 3", "B7")
@pytest.mark.parametrize("dialect", ["", "plain", "redisson"])
def test_what_somebody_else_wrote_where_tombstones_are_kept(
    server: RedisServer, dialect: str
) -> None:
    """A withdrawal that could not be buried was tried again for ever; a late attempt of it takes
    nothing all the same."""
    url = fresh(server.url, **{"dialect": dialect} if dialect else {})
    name = f"x{url.partition('prefix=')[2].partition('&')[0]}"
    with holdfast.connect(url) as locks:
        with locks.lock(name):
            pass
        backend, port = locks._engine().backend, locks._engine().port
        prefix = url.partition("prefix=")[2].partition("&")[0]
        server.call("SET", f"{prefix}:{{{name}}}:t", "somebody's")
        claim = locks.lock(name)._want.claim("a" * 30, {})
        gone = drive(backend.withdraw(claim, True, port.now() + 5))
        assert isinstance(gone, Released)
        with pytest.raises(Misconfigured, match=":t' holds something that is no lock"):
            drive(backend.attempt(claim, True, port.now() + 5))
        assert not any(info.holders for info in locks.inspect(name))


@pytest.mark.req("B7")
@pytest.mark.parametrize("dialect", ["plain", "redisson"])
def test_what_somebody_else_wrote_beside_a_lock_that_others_understand(
    server: RedisServer, dialect: str
) -> None:
    url = fresh(server.url, dialect=dialect)
    prefix = url.partition("prefix=")[2].partition("&")[0]
    with holdfast.connect(url) as locks:
        lease = locks.lock(f"x{prefix}").acquire()
        assert lease
        server.call("DEL", f"{prefix}:{{x{prefix}}}:s")
        server.call("SET", f"{prefix}:{{x{prefix}}}:s", "somebody's")
        with pytest.raises(Misconfigured, match=":s' holds something that is no lock"):
            locks.lock(f"x{prefix}").acquire(timeout=5)
        assert locks.inspect(f"x{prefix}")[0].holders
        lease.renew()
        assert server.call("PTTL", f"{prefix}:{{x{prefix}}}:s") == -1  # it would end with ours
        assert lease.release() is True
        assert server.call("EXISTS", f"x{prefix}") == 0
        assert locks._engine().keeper._owed == {}
