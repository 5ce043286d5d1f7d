"""python -m bench.etcd [--rounds N] [--members 1|3] [--quick]

Uncontended pairs and hand-overs of holdfast, its peers and the floors, in turns on one quiet etcd;
then what crowds and many leases cost in requests, counted by a proxy. Writes
results/etcd-MEMBERS.json and prints the tables of docs/backends/etcd.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.servers import EtcdCluster, EtcdServer

import holdfast
from bench.etcd.work import ENTRANTS
from holdfast import aio
from holdfast.backends.etcd import wire
from holdfast.testing import FaultProxy

HERE = Path(__file__).resolve().parent
VENVS = HERE.parents[1] / "build" / "bench-venvs"

ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "floor": ("grpcio==1.85.1",),
    "etcd3": ("etcd3==0.12.0", "protobuf<4", "tenacity<9"),  # it cannot be imported with others
    "aetcd": ("aetcd==1.0.0",),
    "etcd3gw": ("etcd3gw==2.7.0",),
    "tooz": ("tooz[etcd3gw]==9.1.0",),
}
SLOW = {("pairs", "etcdctl lock"): 10, ("hand-overs", "tooz"): 3}
"""How many in a round, where a hundred would take too long."""


class Worker:
    def __init__(self, name: str, at: str, *requests: str) -> None:
        self.name = name
        python = sys.executable
        environment = name.removesuffix(" aio")
        if environment in ENVIRONMENTS:
            python = _python(environment, ENVIRONMENTS[environment])
        self._process = subprocess.Popen(
            [python, str(HERE / "work.py"), name, at, *requests],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE.parents[1],
        )  # fmt: skip

    def ask(self, do: str, count: int) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, "count": count}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline() or '"it died"')

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _python(name: str, packages: tuple[str, ...]) -> str:
    folder = VENVS / name
    stamp = folder / "etcd.stamp"
    if not stamp.exists() or stamp.read_text() != repr(packages):
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", *packages]
        subprocess.run(pip, check=True, stdin=subprocess.DEVNULL)
        stamp.write_text(repr(packages))
    return str(folder / "bin" / "python")


def floor_requests(server: EtcdServer) -> list[str]:
    lease = int(server.api("/v3/lease/grant", {"TTL": 3600})["ID"])
    line, key = b"floor/", b"floor/%x" % lease
    first = wire.op_get(wire.get(line, wire.after(line), limit=1, order=wire.ASCENDING))
    put = wire.txn(
        [wire.absent(key)],
        [wire.op_put(key, b"", lease), first],
        [wire.op_get(wire.get(key)), first],
    )
    return [
        request.hex()
        for request in (
            put,
            wire.delete(key),
            wire.get(line, wire.after(line), limit=1, order=wire.ASCENDING),
            wire.watch_create(1, key, b"", 0, False, False),
        )
    ]


def measure(at: str, requests: list[str], do: str, rounds: int, count: int) -> dict[str, Any]:
    """Each in its turn, again and again, so that what the machine does meanwhile meets all."""
    workers = [Worker(name, at, *requests) for name in ENTRANTS]
    taken: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    try:
        for number in range(rounds + 1):
            for worker in workers:
                if worker.name in failed:
                    continue
                answer = worker.ask(do, SLOW.get((do, worker.name), count))
                if isinstance(answer, str):
                    failed[worker.name] = answer
                elif number:  # the first round is to warm up
                    median = statistics.median(answer) / 1e3
                    taken.setdefault(worker.name, []).append(median)
    finally:
        for worker in workers:
            worker.close()
    table: dict[str, Any] = {}
    for name, medians in taken.items():
        floor = taken["floor aio" if name.endswith("aio") or name == "aetcd" else "floor"]
        ratios = [one / other for one, other in zip(medians, floor, strict=False)]
        table[name] = {
            "p50_us": round(statistics.median(medians)),
            "ratio": round(statistics.median(ratios), 2),
            "ratio_low": round(min(ratios), 2),
            "ratio_high": round(max(ratios), 2),
        }
    return {"table": table, "not measured": failed}


async def crowds(proxy: FaultProxy, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Requests for each hand-over, and who was overtaken, by how many stand in line."""
    found: dict[str, Any] = {}
    async with aio.connect(f"etcd://{proxy.host}:{proxy.port}") as locks:
        for size in sizes:
            lock = locks.lock(f"crowd {size}", ttl=120)
            served: list[int] = []

            async def turn(number: int, lock: aio.Lock = lock, served: list[int] = served) -> None:
                lease = await lock.acquire()
                assert lease is not None
                served.append(number)
                await lease.release()

            first = await lock.acquire()
            assert first is not None
            tasks = []
            for number in range(size):
                tasks.append(asyncio.create_task(turn(number)))
                while sum(len(i.waiters) for i in await locks.inspect(lock.name)) <= number:
                    await asyncio.sleep(0)
            before, began = proxy.requests, time.perf_counter()
            await first.release()
            await asyncio.gather(*tasks)
            found[str(size)] = {
                "requests per hand-over": round((proxy.requests - before - 1) / size, 2),
                "ms per hand-over": round((time.perf_counter() - began) / size * 1e3, 2),
                "overtakes": sum(a > b for a, b in itertools.pairwise(served)),
                "connections": len(proxy.connections),
            }
    return found


def held(proxy: FaultProxy, count: int, ttl: float) -> dict[str, Any]:
    """What so many held locks cost in one ttl, in which each is renewed three times."""
    with holdfast.connect(f"etcd://{proxy.host}:{proxy.port}") as locks:
        leases = [locks.lock(f"held {number}", ttl=ttl).acquire() for number in range(count)]
        time.sleep(ttl / 3)
        proxy.forget()
        before = proxy.requests
        time.sleep(ttl)
        cost = proxy.requests - before
        beats = sum(b"LeaseKeepAlive" in frame for frame in proxy.frames("to_server"))
        assert all(lease is not None and lease.held for lease in leases)
        return {"locks": count, "intervals": 3, "keep-alives": beats, "requests": cost}


async def waiting(proxy: FaultProxy, count: int) -> dict[str, Any]:
    async with aio.connect(f"etcd://{proxy.host}:{proxy.port}") as locks:
        lease = await locks.lock("waiting", ttl=120).acquire()
        assert lease is not None
        tasks = [
            asyncio.create_task(locks.lock("waiting", ttl=120).acquire()) for _ in range(count)
        ]
        while sum(len(info.waiters) for info in await locks.inspect("waiting")) < count:
            await asyncio.sleep(0.2)
        before = proxy.requests
        await asyncio.sleep(3)
        silent = proxy.requests - before
        connections = len(proxy.connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return {"waiters": count, "connections": connections, "requests in 3 s": silent}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.etcd", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--members", type=int, choices=(1, 3), default=1)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    rounds, count = (1, 20) if asked.quick else (asked.rounds, 100)
    server: EtcdServer | EtcdCluster = EtcdServer() if asked.members == 1 else EtcdCluster()
    with server:
        one = server if isinstance(server, EtcdServer) else server.wait_leader()
        at = f"127.0.0.1:{one.port}"
        requests = floor_requests(one)
        result: dict[str, Any] = {
            "etcd": one.version(),
            "members": asked.members,
            "uncontended": measure(at, requests, "pairs", rounds, count),
            "hand-over": measure(at, requests, "hand-overs", rounds, count // 2),
        }
        with FaultProxy(("127.0.0.1", one.port), framing="http2") as proxy:
            result["crowd"] = asyncio.run(crowds(proxy, (2, 20) if asked.quick else (2, 20, 200)))
            result["held"] = held(proxy, 100 if asked.quick else 1000, 6.0)
            result["waiting"] = asyncio.run(waiting(proxy, 100 if asked.quick else 1000))
    print(json.dumps(result, indent=2))
    if not asked.quick:
        path = HERE.parent / "results" / f"etcd-{asked.members}.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
