"""One entrant in a process of its own, in its own environment: does what it is told, line by line.

Contract: `python work.py NAME HOST:PORT HEX...` imports the standard library and the one package
that is measured. Commands on stdin, answers on stdout, both JSON: {"do": "pairs", "count": 100}
gives the nanoseconds of so many acquire and release pairs; {"do": "hand-overs", "count": 100} those
from the call of release by one client to the return of acquire in another, which waits.
The floors have nothing of a lock: pre-encoded requests over grpcio.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import uuid
from importlib import import_module
from typing import Any

now = time.perf_counter_ns


def address(at: str) -> tuple[str, int]:
    host, _, port = at.partition(":")
    return host, int(port)


class Threads:
    """Two clients of a blocking library."""

    def make(self) -> Any:
        raise NotImplementedError

    def pairs(self, count: int) -> list[int]:
        lock = self.make()
        taken = []
        for _ in range(count):
            start = now()
            if not lock.acquire():
                raise RuntimeError("somebody else has it")
            lock.release()
            taken.append(now() - start)
        return taken

    def hand_overs(self, count: int) -> list[int]:
        """The other waits before we release: it is given a moment for that."""
        mine, others = self.make(), self.make()
        taken: list[int] = []
        released = 0
        waits, got, go_on = (threading.Semaphore(0) for _ in range(3))

        def other() -> None:
            for _ in range(count):
                waits.release()
                others.acquire()
                taken.append(now() - released)
                got.release()
                others.release()
                go_on.acquire()

        thread = threading.Thread(target=other)
        mine.acquire()
        thread.start()
        for number in range(count):
            waits.acquire()
            time.sleep(0.01)
            released = now()
            mine.release()
            got.acquire()
            while number < count - 1 and not mine.acquire():
                pass
            go_on.release()
        thread.join()
        return taken


class Tasks(Threads):
    """Two clients of an asyncio library; `make` is a coroutine."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()

    def pairs(self, count: int) -> list[int]:
        return self.runner.run(self._pairs(count))

    async def _pairs(self, count: int) -> list[int]:
        lock = await self.make()
        taken = []
        for _ in range(count):
            start = now()
            await lock.acquire()
            await lock.release()
            taken.append(now() - start)
        return taken

    def hand_overs(self, count: int) -> list[int]:
        return self.runner.run(self._hand_overs(count))

    async def _hand_overs(self, count: int) -> list[int]:
        mine, others = await self.make(), await self.make()
        taken: list[int] = []
        for _ in range(count):
            await mine.acquire()
            waiting = asyncio.ensure_future(others.acquire())
            await asyncio.sleep(0.01)
            released = now()
            await mine.release()
            await waiting
            taken.append(now() - released)
            await others.release()
        return taken


# -- entrants -------------------------------------------------------------------------------------


class _Lease:
    """holdfast's lock, with the lease kept as the others keep theirs."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def acquire(self) -> Any:
        self.lease = self.lock.acquire()
        return self.lease

    def release(self) -> Any:
        return self.lease.release()


class _AioLease(_Lease):
    async def acquire(self) -> Any:
        self.lease = await self.lock.acquire()
        return self.lease


class Holdfast(Threads):
    def __init__(self, at: str, *_: str) -> None:
        self.at = at

    def make(self) -> Any:
        holdfast = import_module("holdfast")
        return _Lease(holdfast.connect(f"etcd://{self.at}").lock("holdfast", ttl=60))


class HoldfastAio(Tasks):
    def __init__(self, at: str, *_: str) -> None:
        super().__init__()
        self.at = at

    async def make(self) -> Any:
        aio = import_module("holdfast.aio")
        return _AioLease(aio.connect(f"etcd://{self.at}").lock("holdfast aio", ttl=60))


class Etcd3(Threads):
    def __init__(self, at: str, *_: str) -> None:
        self.host, self.port = address(at)

    def make(self) -> Any:
        etcd3 = import_module("etcd3")
        return etcd3.client(self.host, self.port).lock("etcd3", ttl=60)

    def hand_overs(self, count: int) -> list[int]:
        raise NotImplementedError(
            "waiting raises TypeError with any tenacity that Python 3.11 runs"
        )


class Aetcd(Tasks):
    def __init__(self, at: str, *_: str) -> None:
        super().__init__()
        self.host, self.port = address(at)

    async def make(self) -> Any:
        aetcd = import_module("aetcd")
        client = aetcd.Client(self.host, self.port)
        await client.connect()
        return client.lock(b"aetcd", ttl=60)


class Etcd3gw(Threads):
    """It does not wait: whoever wants the lock asks again and again."""

    def __init__(self, at: str, *_: str) -> None:
        self.host, self.port = address(at)

    def make(self) -> Any:
        etcd3gw = import_module("etcd3gw")
        return etcd3gw.client(self.host, self.port).lock("etcd3gw", ttl=60)

    def hand_overs(self, count: int) -> list[int]:
        raise NotImplementedError("it does not wait")


class Tooz(Threads):
    def __init__(self, at: str, *_: str) -> None:
        self.at = at

    def make(self) -> Any:
        coordination = import_module("tooz.coordination")
        member = uuid.uuid4().hex.encode()
        coordinator = coordination.get_coordinator(f"etcd3+http://{self.at}?timeout=60", member)
        coordinator.start()
        return coordinator.get_lock(b"tooz")


class Etcdctl(Threads):
    """A process for each hold, as in a script."""

    def __init__(self, at: str, *_: str) -> None:
        self.at = at

    def pairs(self, count: int) -> list[int]:
        taken = []
        for _ in range(count):
            start = now()
            subprocess.run(
                ["etcdctl", f"--endpoints={self.at}", "lock", "etcdctl", "true"],
                check=True, env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"},
            )  # fmt: skip
            taken.append(now() - start)
        return taken

    def hand_overs(self, count: int) -> list[int]:
        raise NotImplementedError("only from process to process")


TXN, DELETE, RANGE = (f"/etcdserverpb.KV/{method}" for method in ("Txn", "DeleteRange", "Range"))
WATCH = "/etcdserverpb.Watch/Watch"


def same(data: bytes) -> bytes:
    return data


class Floor(Threads):
    """One transaction and one deletion; for a hand-over one deletion, one event, one read."""

    def __init__(self, at: str, *requests: str) -> None:
        grpc = import_module("grpc")
        self.channel = grpc.insecure_channel(at)
        self.put, self.delete, self.range, self.watch = map(bytes.fromhex, requests)
        self._call = {path: self.channel.unary_unary(path, same, same)
                      for path in (TXN, DELETE, RANGE)}  # fmt: skip

    def pairs(self, count: int) -> list[int]:
        txn, delete = self._call[TXN], self._call[DELETE]
        taken = []
        for _ in range(count):
            start = now()
            txn(self.put)
            delete(self.delete)
            taken.append(now() - start)
        return taken

    def hand_overs(self, count: int) -> list[int]:
        more = threading.Event()

        def requests() -> Any:
            yield self.watch
            more.wait()

        events = self.channel.stream_stream(WATCH, same, same)(requests())
        next(events)
        taken: list[int] = []
        heard = threading.Semaphore(0)
        released = 0

        def other() -> None:
            for _ in range(count):
                next(events)
                self._call[RANGE](self.range)
                taken.append(now() - released)
                heard.release()

        thread = threading.Thread(target=other)
        thread.start()
        for _ in range(count):
            self._call[TXN](self.put)
            time.sleep(0.01)
            released = now()
            self._call[DELETE](self.delete)
            heard.acquire()
        thread.join()
        more.set()
        events.cancel()
        return taken


class FloorAio(Tasks):
    def __init__(self, at: str, *requests: str) -> None:
        super().__init__()
        self.at = at
        self.put, self.delete, self.range, self.watch = map(bytes.fromhex, requests)

    async def _pairs(self, count: int) -> list[int]:
        grpc = import_module("grpc")
        async with grpc.aio.insecure_channel(self.at) as channel:
            txn = channel.unary_unary(TXN, same, same)
            delete = channel.unary_unary(DELETE, same, same)
            taken = []
            for _ in range(count):
                start = now()
                await txn(self.put)
                await delete(self.delete)
                taken.append(now() - start)
            return taken

    async def _hand_overs(self, count: int) -> list[int]:
        grpc = import_module("grpc")
        async with grpc.aio.insecure_channel(self.at) as channel:
            txn = channel.unary_unary(TXN, same, same)
            delete = channel.unary_unary(DELETE, same, same)
            read = channel.unary_unary(RANGE, same, same)
            stream = channel.stream_stream(WATCH, same, same)()
            await stream.write(self.watch)
            await stream.read()
            taken = []
            for _ in range(count):
                await txn(self.put)
                await asyncio.sleep(0.01)

                async def other() -> None:
                    await stream.read()
                    await read(self.range)

                waiting = asyncio.ensure_future(other())
                await asyncio.sleep(0)
                released = now()
                await delete(self.delete)
                await waiting
                taken.append(now() - released)
            stream.cancel()
            return taken


ENTRANTS: dict[str, type[Threads]] = {
    "floor": Floor,
    "floor aio": FloorAio,
    "holdfast": Holdfast,
    "holdfast aio": HoldfastAio,
    "etcd3": Etcd3,
    "aetcd": Aetcd,
    "etcd3gw": Etcd3gw,
    "tooz": Tooz,
    "etcdctl lock": Etcdctl,
}


def main() -> None:
    entrant = ENTRANTS[sys.argv[1]](*sys.argv[2:])
    for line in sys.stdin:
        asked = json.loads(line)
        work = entrant.pairs if asked["do"] == "pairs" else entrant.hand_overs
        try:
            answer: Any = work(asked["count"])
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"[:200]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
