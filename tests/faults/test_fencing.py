"""Gates on the real stores: a holder that was stopped wakes up late, and its write is refused.

The lock and the resource are in two stores wherever they can be: the token is all they share.
"""

from __future__ import annotations

import asyncio
import base64
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

import holdfast
from holdfast import Misconfigured, StaleFence, Unsupported, aio, fencing
from holdfast.fencing import aio as afencing
from holdfast.testing import FaultProxy
from tests.faults.late import PATIENCE, WRITERS, Write, stopped_holder
from tests.faults.tables import DATABASES, a_table, sql_place, value_in
from tests.servers import EtcdServer, RedisCluster, RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.req("B1")]


class Place:
    """Where a value is that a gate guards: how gates and children are told, and how it is read."""

    def __init__(self, kind: str, place: str, url: str, read: Callable[[], str]) -> None:
        self.kind = kind
        self.place = place
        self.url = url  # of the locks
        self.read = read
        self.write: Write = WRITERS[kind](place)


KINDS = (
    *(f"{kind}-{database}" for kind in ("table", "trigger") for database in DATABASES),
    "redis", "etcd", "file",
)  # fmt: skip


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, url: str) -> Iterator[Place]:
    kind, _, database = request.param.partition("-")
    if database:
        where = sql_place(request, database, tmp_path)
        with a_table(where, database, kind == "trigger") as (name, connection):
            yield Place(kind, f"{where}|{name}", url, lambda: value_in(connection, name))
    elif kind == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        key = f"account:{uuid.uuid4()}"
        yield Place(kind, f"{server.url}|{key}", url, lambda: str(server.call("GET", key)))
        server.call("DEL", key, f"{{{key}}}:fence")
    elif kind == "etcd":
        etcd: EtcdServer = request.getfixturevalue("etcd_server")
        key = f"account/{uuid.uuid4()}"
        yield Place(kind, key, etcd.url, lambda: etcd_value(etcd, key))
    else:
        path = tmp_path / "account.txt"
        yield Place(kind, str(path), url, path.read_text)


def etcd_value(server: EtcdServer, key: str) -> str:
    encoded = base64.b64encode(key.encode()).decode()
    found = server.api("/v3/kv/range", {"key": encoded}).get("kvs", [])
    return base64.b64decode(found[0]["value"]).decode() if found else ""


@pytest.mark.req("client paused longer than its lease")
def test_a_stopped_holder_wakes_up_late_and_is_refused(place: Place) -> None:
    name = f"account-{uuid.uuid4()}"
    with (
        stopped_holder(place.url, name, place.kind, place.place) as wake,
        holdfast.connect(place.url) as locks,
        locks.lock(name, timeout=PATIENCE) as lease,  # when the stopped one's lease is over
    ):
        place.write(lease, "new")
        assert wake() == "refused"
        assert place.read() == "new"
        place.write(lease, "newer")  # a holder may write more than once
        place.write(lease, "newer")  # and the same again
        assert place.read() == "newer"


@pytest.mark.req("client paused longer than its lease")
@pytest.mark.parametrize("place", ["etcd", "file"], indirect=True)
def test_who_wakes_up_before_anybody_else_has_written(place: Place) -> None:
    """A gate orders those who write: nobody has come before, so it lets in who is late. etcd need
    not have seen anybody; it knows that the lease is over."""
    name = f"account-{uuid.uuid4()}"
    with stopped_holder(place.url, name, place.kind, place.place) as wake:
        with holdfast.connect(place.url) as locks, locks.lock(name, timeout=PATIENCE):
            pass
        knows = place.kind == "etcd"
        assert wake() == ("refused" if knows else "accepted")
        assert place.read() == ("" if knows else "late")


def test_permits_and_shared_leases_are_refused(place: Place) -> None:
    with holdfast.connect(place.url) as locks:
        name = f"account-{uuid.uuid4()}"
        with locks.rwlock(name).read() as shared, pytest.raises(Misconfigured, match="exclusive"):
            place.write(shared, "wrong")
        if place.kind != "etcd":
            with (
                locks.semaphore(name, 2) as permit,
                pytest.raises(Misconfigured, match="a permit"),
            ):
                place.write(permit, "wrong")


# -- Redis -----------------------------------------------------------------------------------------


def test_redis_by_tokens(redis_server: RedisServer) -> None:
    key = f"account:{uuid.uuid4()}"
    with redis.Redis.from_url(redis_server.url) as client:
        gate = fencing.RedisKey(client, key)
        assert gate.highest() == 0
        # Two tokens that are one number as doubles.
        high = 2**62 + 1
        gate.set(high, "high")
        with pytest.raises(StaleFence) as refused:
            gate.set(high - 1, "low")
        assert (refused.value.token, refused.value.highest) == (high - 1, high)
        with pytest.raises(StaleFence):
            gate.set(9, "a number of fewer digits")
        assert client.get(key) == b"high"
        assert gate.delete(high) is True
        assert gate.delete(high) is False
        assert gate.highest() == high  # outlives the value
        assert gate.call(high, "HSET", "balance", 150, "name", b"\xff") == 2
        assert gate.call(high, "HINCRBY", "balance", -50) == 100
        assert gate.call(high, "HGET", "nothing") is None
        with pytest.raises(redis.ResponseError):
            gate.call(high + 1, "INCR")  # a hash is no number: nothing happened,
        assert gate.highest() == high  # and nothing is noted
        gate.check(high + 1)
        with pytest.raises(StaleFence):
            gate.call(high, "HSET", "balance", 0)
        client.delete(key, f"{{{key}}}:fence")


def test_redis_forgets_what_it_may(redis_server: RedisServer) -> None:
    key = f"account:{uuid.uuid4()}"
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        gate = fencing.RedisKey(client, key, fence_key=f"{key}-token", forget_after=3600)
        gate.set(5, "five", ttl=60)
        assert 0 < client.pttl(key) <= 60_000
        assert 60_000 < client.pttl(f"{key}-token") <= 3_600_000
        with pytest.raises(StaleFence):
            gate.set(4, "four")
        client.delete(key, f"{key}-token")
        for wrong in (0, -1, float("nan"), True):
            with pytest.raises(Misconfigured):
                fencing.RedisKey(client, key, forget_after=wrong)
            with pytest.raises(Misconfigured):
                gate.set(5, "five", ttl=wrong)


@pytest.mark.parametrize("key", ["account:7", "{user7}:account", "a{b", b"raw{\xff}"])
def test_redis_cluster_keeps_both_keys_in_one_slot(
    redis_cluster: RedisCluster, key: str | bytes
) -> None:
    host, _, port = (
        redis_cluster.url.partition("://")[2].partition("/")[0].partition(",")[0].rpartition(":")
    )
    with redis.RedisCluster(host=host, port=int(port)) as client:
        gate = fencing.RedisKey(client, key)
        gate.set(5, "five")
        with pytest.raises(StaleFence):
            gate.set(4, "four")
        assert client.get(key) == b"five"
        client.delete(key)


def test_redis_with_asyncio(redis_server: RedisServer) -> None:
    key = f"account:{uuid.uuid4()}"

    async def work() -> None:
        async with redis.asyncio.Redis.from_url(redis_server.url) as client:
            gate = afencing.RedisKey(client, key)
            await gate.set(5, "five")
            with pytest.raises(StaleFence):
                await gate.set(4, "four")
            assert await gate.call(5, "APPEND", "!") == 5
            await gate.check(6)
            assert await gate.highest() == 6
            with pytest.raises(StaleFence):
                await gate.delete(5)
            assert await client.get(key) == b"five!"
            assert await gate.delete(6) is True
            await client.delete(f"{{{key}}}:fence")

    asyncio.run(work())


# -- etcd ------------------------------------------------------------------------------------------


@pytest.mark.req("R60")
def test_a_transaction_takes_effect_while_the_lease_holds(etcd_server: EtcdServer) -> None:
    name = f"config-{uuid.uuid4()}"
    one, two = f"{name}.one", f"{name}.two"
    with holdfast.connect(etcd_server.url) as locks:
        lease = locks.lock(name).acquire()
        assert lease is not None
        first = lease.transact(put={one: "1", two: b"2"})
        assert lease.transact(put={one: "3"}, delete=[two]) > first > lease.fence
        assert etcd_value(etcd_server, one) == "3"
        assert etcd_value(etcd_server, two) == ""
        lease.release()
        with pytest.raises(StaleFence, match="does not hold") as refused:
            lease.transact(put={one: "late"}, delete=[two])
        assert refused.value.token == lease.fence
        with locks.lock(name) as later:
            with pytest.raises(StaleFence):
                lease.transact(delete=[one])
            later.transact(delete=[one])
        assert etcd_value(etcd_server, one) == ""


@pytest.mark.req("R60")
def test_transactions_that_cannot_be(etcd_server: EtcdServer) -> None:
    name = f"config-{uuid.uuid4()}"
    wrong: list[tuple[dict[str, str], list[str]]] = [
        ({}, []), ({"": "x"}, []), ({"a": "x"}, ["a"]), ({}, ["a", "a"]),
    ]  # fmt: skip
    with holdfast.connect(etcd_server.url) as locks:
        with locks.lock(name) as lease:
            for put, delete in wrong:
                with pytest.raises(Misconfigured):
                    lease.transact(put=put, delete=delete)
            with pytest.raises(Misconfigured, match="would hold the lock"):
                lease.transact(put={f"{name}/a": "x"})
        with locks.rwlock(name).read() as shared, pytest.raises(Misconfigured, match="exclusive"):
            shared.transact(put={"a": "x"})
    with (
        holdfast.connect("memory://") as elsewhere,
        elsewhere.lock("x") as other,
        pytest.raises(Unsupported, match="etcd"),
    ):
        other.transact(put={"a": "b"})


@pytest.mark.req("R60")
def test_a_transaction_with_asyncio(etcd_server: EtcdServer) -> None:
    name = f"config-{uuid.uuid4()}"

    async def work() -> None:
        async with aio.connect(etcd_server.url) as locks:
            lease = await locks.lock(name).acquire()
            assert lease is not None
            await lease.transact(put={name: b"mine"})
            await locks.evict(name)
            with pytest.raises(StaleFence):
                await lease.transact(put={name: b"late"})
            await lease.release()

    asyncio.run(work())
    assert etcd_value(etcd_server, name) == "mine"


@pytest.mark.req("law 2", "R60")
def test_a_transaction_without_an_answer_is_not_done_again_in_secret(
    etcd_server: EtcdServer,
) -> None:
    name = f"config-{uuid.uuid4()}"
    with (
        FaultProxy(("127.0.0.1", etcd_server.port), framing="http2") as proxy,
        holdfast.connect(f"etcd://{proxy.host}:{proxy.port}", request_timeout=3.0) as locks,
        locks.lock(name) as lease,
    ):
        lease.transact(put={f"{name}.value": "one"})
        proxy.drop_reply(to=lambda frame: b"/etcdserverpb.KV/Txn" in frame)
        with pytest.raises(holdfast.Unavailable, match="not known"):
            lease.transact(put={f"{name}.value": "two"})
        assert etcd_value(etcd_server, f"{name}.value") == "two"  # it took effect
        proxy.heal()
        lease.transact(put={f"{name}.value": "two"})


@pytest.mark.req("law 8", "fork after acquire", "R60")
def test_a_forked_child_writes_nothing_by_its_parents_lease(etcd_server: EtcdServer) -> None:
    name = f"config-{uuid.uuid4()}"
    with holdfast.connect(etcd_server.url) as locks, locks.lock(name) as lease:
        pid = os.fork()
        if pid == 0:
            try:
                lease.transact(put={name: "child"})
            except holdfast.LeaseLost:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        lease.transact(put={f"{name}.value": "parent"})
    assert etcd_value(etcd_server, name) == ""
