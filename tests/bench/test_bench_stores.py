"""Who is measured beside whom, on which core the server is, and what it says it had to do.

Peers that need a package do not take part: their environments come from a package index.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.crew import PLACEMENTS, SAME, SPLIT, Crew, cores
from bench.entrants import Entrant, Field, fields
from bench.meter import Meter, Reading, between, meter_of, reading
from bench.peers import EVERY, KINDS, PEERS, PROCESSES, TASKS, THREADS
from bench.peers.base import Adapter
from bench.scenarios import SCENARIOS, handover, uncontended
from bench.servers import PLACEHOLDERS, Servers
from bench.session import Goal
from bench.stats import Turn
from bench.stores import EMBEDDED, ETCD, REDIS, STORES, THREE, store_of
from bench.work import Order, contend_threads

import holdfast

FLOOR = "SET and EVALSHA"


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as running:
        yield running


# -- who takes part --------------------------------------------------------------------------------


class Named(Servers):
    """Starts nothing."""

    def named_in(self, target: str) -> None:
        return None


def chosen(
    monkeypatch: pytest.MonkeyPatch,
    *,
    stores: tuple[str, ...] = (),
    urls: tuple[str, ...] = (),
    peers: tuple[str, ...] = (),
) -> dict[str, tuple[list[str], list[str]]]:
    """Of each store: its targets, its peers."""
    monkeypatch.setattr("bench.entrants.python_of", lambda name: sys.executable)
    found = fields(Path("/nowhere"), Named(), stores=stores, urls=urls, peers=peers)
    return {
        field.store.name: (field.urls, [p.label for p in field.peers(*KINDS)]) for field in found
    }


def of(store: str) -> list[str]:
    return [name for name, peer in PEERS.items() if peer.store == store]


def test_every_store_that_there_is_has_its_own_targets_and_peers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.entrants.schemes", lambda: ["memory", "sqlite"])
    assert chosen(monkeypatch) == {"embedded": (list(EMBEDDED.targets), of("embedded"))}


def test_a_target_chooses_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, urls=("memory://a",)) == {
        "embedded": (["memory://a"], of("embedded"))
    }
    both = chosen(monkeypatch, urls=("memory://a",), peers=("flock", "redis-py"))
    assert both == {"embedded": (["memory://a"], ["flock"]), "redis": ([], ["redis-py"])}


def test_a_peer_chooses_its_store_and_meets_whoever_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.entrants.schemes", lambda: ["memory", "sqlite"])
    assert chosen(monkeypatch, peers=("tooz",)) == {"redis": ([], ["tooz"])}
    assert chosen(monkeypatch, stores=("redis",)) == {"redis": ([], of("redis"))}
    assert chosen(monkeypatch, stores=("redis",), peers=("none",)) == {"redis": ([], [])}
    assert chosen(monkeypatch, peers=("none",)) == {"embedded": (list(EMBEDDED.targets), [])}


def test_what_a_module_registered_is_measured_beside_what_needs_no_server() -> None:
    assert store_of("served") is EMBEDDED
    assert [store_of(scheme) for scheme in ("memory", "sqlite", "redis")] == [
        EMBEDDED,
        EMBEDDED,
        REDIS,
    ]


def test_the_registries_fit_together() -> None:
    for name, peer in EVERY.items():
        assert peer.store in STORES, name
        assert all("==" in package for package in peer.requires), name
    for store in STORES.values():
        assert set(store.without) <= set(SCENARIOS)
        assert set(store.floors.values()) <= set(EVERY)
        named = [kind for kind in PLACEHOLDERS for url in store.targets if f"{{{kind}}}" in url]
        assert bool(named) is store.served
    titles = [store.title(name) for store in STORES.values() for name in SCENARIOS]
    assert len(set(titles)) == len(titles)


def test_pollers_that_hardly_differ_are_not_everywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bench.entrants.python_of", lambda name: sys.executable)
    field = Field(tmp_path, Named(), REDIS, [], of("redis"))
    few = [peer.label for peer in field.peers(PROCESSES, everybody=False)]
    assert few == ["redis-py", "python-redis-lock"]
    assert set(few) < {peer.label for peer in field.peers(PROCESSES)}
    assert [peer.label for peer in field.peers(TASKS)] == ["redis.asyncio"]


# -- goals -----------------------------------------------------------------------------------------


def holdfast_over(scheme: str) -> Entrant:
    return Entrant(f"holdfast {scheme}://", "", "", "", KINDS, scheme=scheme)


def said(goals: Iterator[Goal]) -> set[str]:
    return {str(goal) for goal in goals}


def test_what_redis_is_to_show() -> None:
    ours = holdfast_over("redis")
    same, split = (said(uncontended.goals(ours, placement)) for placement in PLACEMENTS)
    assert {f"p50 at most 2.2 x {FLOOR}", "p50 at most 0.455 x redis-py"} <= same
    assert f"p50 at most 1.4 x {FLOOR}" in split
    assert "p50 at most 0.5 x redis.asyncio" in same & split
    two, fifty = (said(handover.goals(ours, THREADS, waiters)) for waiters in (2, 50))
    assert "changes per s at least 100 x redis-py" in two
    assert "changes per s at least 10 x redis-py" in fifty
    for goals in (two, fifty):
        assert {
            "overtakes at most 0",
            "changes per s at least 2 x python-redis-lock",
            "hand-over p99 at most 0.2 x redis-py",
            "store requests per change at most 2.5",
            "jain at least 0.99",
        } <= goals
    tasks = said(handover.goals(ours, TASKS, 10))
    assert "changes per s at least 10 x redis.asyncio" in tasks
    assert not any("python-redis-lock" in goal for goal in tasks)
    assert not any(
        "redis" in goal for goal in said(handover.goals(holdfast_over("sqlite"), TASKS, 2))
    )


def test_what_etcd_is_to_show() -> None:
    ours = holdfast_over("etcd")
    for floor in ("txn and delete", "txn and delete of three"):
        assert f"p50 at most 1.2 x {floor}" in said(uncontended.goals(ours, SAME, floor))
    for floor in ("bare mutex", "bare mutex of three"):
        assert {
            "overtakes at most 0",
            "store requests per change at most 4.2",
            f"hand-over p50 at most 1.3 x {floor}",
        } <= said(handover.goals(ours, THREADS, 200, floor))


def test_one_member_and_three_are_two_stores() -> None:
    assert store_of("etcd://{etcd}/bench") is store_of("etcd://somewhere") is ETCD
    assert store_of("etcd://{etcd-cluster}/bench") is THREE


def test_who_cannot_wait_is_measured_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bench.entrants.python_of", lambda name: sys.executable)
    field = Field(tmp_path, Named(), ETCD, [], of("etcd"))
    waiting = {peer.label for peer in field.peers(*KINDS)}
    assert waiting == {"aetcd", "tooz on etcd"}
    alone = {peer.label for peer in field.peers(*KINDS, alone=True)}
    assert alone - waiting == {"etcd3", "etcd3gw", "etcdctl lock"}


@pytest.mark.servers
def test_etcd_says_what_it_was_asked(servers: Servers) -> None:
    served = servers.named_in("etcd://{etcd}/bench")
    assert served is not None
    assert served.books is not None
    meter = meter_of(served.books)
    before = meter.read()
    with holdfast.connect(f"etcd://{served.address}") as locks:
        for _ in range(10):
            with locks.lock("x"):
                pass
        after = meter.read()
        assert 20 <= between(before, after).requests <= 23  # a session, and the keeper's
        assert after.connections - before.connections in (1, 2)


# -- the end of a contest --------------------------------------------------------------------------


class Poller(Adapter):
    """Locks of this process whose `acquire` is false when the time is up, or `early`."""

    gives_up = True

    def __init__(self, early: bool = False) -> None:
        self._lock, self._early = threading.Lock(), early
        self.patience: list[float | None] = []

    def make(self, name: str) -> Poller:
        return self

    def acquire(self, timeout: float | None) -> bool:
        self.patience.append(timeout)
        if self._early:
            return False
        return self._lock.acquire(timeout=-1 if timeout is None else timeout)

    def release(self) -> None:
        self._lock.release()


def order(seconds: float) -> Order:
    start = time.monotonic_ns()
    return Order("one", [0, 1], start, start, start + int(seconds * 1e9), "does nothing")


def test_who_can_give_up_does_so_at_the_end() -> None:
    poller = Poller()
    assert poller.acquire(None)  # for good: nobody gets it
    asked = order(0.3)
    assert contend_threads(poller, asked, None)["turns"] == []
    assert time.monotonic_ns() >= asked.stop
    assert all(limit is not None and 0 < limit <= 0.4 for limit in poller.patience[1:])


def test_who_cannot_waits_for_its_turn() -> None:
    patient = Poller()
    patient.gives_up = False
    turns = contend_threads(patient, order(3.0), None)["turns"]
    assert turns
    assert set(patient.patience) == {None}


@pytest.mark.parametrize("gives_up", [True, False])
def test_an_acquire_that_fails_before_the_end_is_no_figure(gives_up: bool) -> None:
    early = Poller(early=True)
    early.gives_up = gives_up
    with pytest.raises(RuntimeError, match="acquire gave up"):
        contend_threads(early, order(5.0), None)


# -- the server's books ----------------------------------------------------------------------------


INFO = (
    "# Stats\r\ntotal_commands_processed:100\r\ntotal_reads_processed:60\r\n"
    "total_net_output_bytes:1234\r\n"
    "# Clients\r\nconnected_clients:4\r\n"
    "# Commandstats\r\ncmdstat_evalsha:calls=20,usec=5,rejected_calls=0\r\n"
    "cmdstat_eval:calls=3,usec=5\r\ncmdstat_get:calls=70,usec=1\r\n"
)


def test_a_reading_leaves_the_meter_out() -> None:
    found = reading(INFO, 7, reads=2, commands=1, connections=1)
    assert found == Reading(7, reads=58, scripts=23, commands=99, connections=3, sent=1234)


def test_a_batch_of_scripts_is_as_many_requests() -> None:
    start = Reading(0, 10, 0, 0, 1)
    assert between(start, Reading(2 * 10**9, 30, 5, 60, 1)) == (2.0, 20, 60, 0)
    assert between(start, Reading(10**9, 11, 50, 200, 1, 7)) == (1.0, 50, 200, 7)


def test_requests_are_counted_for_the_changes_between_the_readings() -> None:
    turns = [Turn(n % 2, 0, None, moment, moment) for n, moment in enumerate((5, 15, 25, 35))]
    before, after = Reading(10, 100, 0, 100, 1), Reading(30, 106, 0, 112, 1)
    figures = handover.asked(turns, before, after)
    assert figures["store requests per change"] == 3
    assert figures["store commands per change"] == 6
    nobody = handover.asked([], before, after)
    assert (
        nobody["store requests per change"] != nobody["store requests per change"]
    )  # not a number


@pytest.mark.servers
def test_the_floor_is_two_requests_and_four_commands(tmp_path: Path, servers: Servers) -> None:
    field = Field(tmp_path, servers, REDIS)
    with Crew(field.floor(FLOOR)) as crew:
        assert crew.version.startswith("Redis ")
        crew.ask("cycles", name="one", seconds=0.0)
        [first] = crew.ask("meter")
        [taken] = crew.ask("cycles", name="one", seconds=0.02)
        [second] = crew.ask("meter")
        used = between(Reading(*first), Reading(*second))
        assert used.requests == 2 * len(taken)
        assert used.commands == 4 * len(taken)  # SET; EVALSHA, which does GET and DEL
        assert (
            Reading(*second).connections == 1
        )  # the connection of the floor, not that of the meter


@pytest.mark.servers
def test_the_server_is_on_the_client_s_core_or_on_the_other(
    tmp_path: Path, servers: Servers
) -> None:
    field = Field(tmp_path, servers, REDIS)
    with Crew(field.floor(FLOOR), 2) as crew:
        server = crew.entrant.server
        assert server is not None
        first, second = cores()
        for placement, core in ((SAME, first), (SPLIT, second), (SAME, first)):
            crew.place(placement)
            threads = [int(thread) for thread in os.listdir(f"/proc/{server.pid}/task")]
            assert [os.sched_getaffinity(thread) for thread in threads] == [{core}] * len(threads)
            clients = [os.sched_getaffinity(worker.process.pid) for worker in crew.workers]
            assert clients == [{first}, {core}]


@pytest.mark.servers
def test_a_run_has_one_server_and_ends_it(tmp_path: Path) -> None:
    with Servers() as servers:
        server = servers.named_in("redis://{redis}/0")
        assert server is not None
        assert servers.named_in("{redis}") is server
        assert servers.named_in("memory://x") is None
        floor = Field(tmp_path, servers, REDIS).floor(FLOOR)
        assert floor.target == f"redis://{server.address}/0"
        assert floor.server is server
        meter = Meter(server.address)
        assert meter.read().connections == 0
        meter.close()
    host, _, port = server.address.rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 1.0).close()
