"""Redisson beside `?dialect=redisson`: exclusion, wake-ups, losses, names, a crowd of both."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import redis

import holdfast
from holdfast.ports import clock
from tests.servers import RedisServer

HERE = Path(__file__).parent
NEWEST = "4.7.0"
ROUNDS, THREADS = 300, 3


class Java:
    """A Redisson client in a process of its own."""

    def __init__(self, classes: str, port: int) -> None:
        self._process = subprocess.Popen(
            ["java", "-Xmx200m", "-cp", classes, "Peer", str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )  # fmt: skip
        while (line := self.answer()) != "ready":
            assert line or self._process.poll() is None, "Java did not start"

    def tell(self, verb: str, name: str, number: int = 0) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{verb} {name} {number}\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, verb: str, name: str, number: int = 0) -> str:
        self.tell(verb, name, number)
        return self.answer()

    def end(self) -> None:
        self._process.communicate()


def build(version: str, folder: Path) -> str:
    """Fetch Redisson and compile the peer; the class path."""
    jars = folder / "jars"
    fetch = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), f"-Dredisson={version}"]
    subprocess.run(
        [*fetch, "dependency:copy-dependencies", f"-DoutputDirectory={jars}"], check=True
    )
    subprocess.run(
        ["javac", "-cp", f"{jars}/*", "-d", str(folder), str(HERE / "Peer.java")], check=True
    )
    return f"{folder}:{jars}/*"


def exclusion(ours: holdfast.Locks, java: Java) -> None:
    with ours.lock("a"):
        assert java.ask("try", "a") == "false"
        assert java.ask("locked", "a") == "true"
        assert java.ask("unlock", "a") == "not mine"
    assert java.ask("try", "a") == "true"
    assert java.ask("try", "a") == "true"
    assert ours.lock("a").acquire(timeout=0.2) is None
    assert java.ask("unlock", "a") == "done"
    assert ours.lock("a").acquire(blocking=False) is None, "it had entered twice"
    assert java.ask("unlock", "a") == "done"


def wake_ups(ours: holdfast.Locks, java: Java) -> None:
    """Nothing but the message wakes within thirty seconds."""
    answers: list[tuple[holdfast.Lease | None, float]] = []

    def wait() -> None:
        lease = ours.lock("b").acquire(timeout=20)
        answers.append((lease, clock.now()))

    assert java.ask("try", "b") == "true"
    for _ in range(5):
        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.3)
        assert not answers
        freed = clock.now()
        assert java.ask("unlock", "b") == "done"
        waiter.join()
        lease, woken = answers.pop()
        assert lease is not None
        java.tell("wait", "b", 20_000)
        time.sleep(0.3)
        released = clock.now()
        lease.release()
        assert java.answer() == "true"
        there = clock.now() - released
        assert max(woken - freed, there) < 2
        print(f"  they wake us in {1e3 * (woken - freed):.1f} ms, we them in {1e3 * there:.1f} ms")
    assert java.ask("unlock", "b") == "done"


def losses(ours: holdfast.Locks, java: Java) -> None:
    lease = ours.lock("c", renew=0.1).acquire()
    assert lease is not None
    assert java.ask("force", "c") == "true"
    assert lease.lost.wait(5)
    assert lease.release() is False
    assert java.ask("try", "c") == "true"
    assert ours.evict("c") == 1
    assert java.ask("unlock", "c") == "not mine"
    assert java.ask("lease", "c", 500) == "true"
    with ours.lock("c", timeout=5):
        pass
    fixed = ours.lock("c", ttl=0.5, renew=False).acquire()
    assert fixed is not None
    assert java.ask("wait", "c", 5_000) == "true"
    assert fixed.release() is False
    assert java.ask("unlock", "c") == "done"


def names(ours: holdfast.Locks, java: Java) -> None:
    for name in ("{d}e", "d}e", "Käse", "d:e"):
        lease = ours.lock(name).acquire()
        assert lease is not None
        java.tell("wait", name, 20_000)
        time.sleep(0.3)
        released = clock.now()
        lease.release()
        assert java.answer() == "true"
        assert clock.now() - released < 2, f"{name}: another channel"
        assert java.ask("unlock", name) == "done"


def crowd(ours: holdfast.Locks, javas: list[Java], theirs: redis.Redis) -> None:
    def turns() -> None:
        for _ in range(ROUNDS):
            with ours.lock("f", timeout=60):
                before = int(theirs.get("f-sum") or 0)
                time.sleep(0.001)
                theirs.set("f-sum", before + 1)

    threads = [threading.Thread(target=turns) for _ in range(THREADS)]
    for java in javas:
        java.tell("count", "f", ROUNDS)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for java in javas:
        assert java.answer() == "done"
    counted, expected = int(theirs.get("f-sum") or 0), ROUNDS * (THREADS + len(javas))
    print(f"  {counted} of {expected} holds counted")
    assert counted == expected


def main(version: str) -> None:
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        classes = build(version, Path(folder))
        javas = [Java(classes, server.port) for _ in range(2)]
        url = f"{server.url}?dialect=redisson&window=60&heartbeat=30"
        with holdfast.connect(url) as ours, redis.Redis(port=server.port) as theirs:
            for part in (exclusion, wake_ups, losses, names):
                print(part.__name__)
                part(ours, javas[0])
            print("crowd")
            crowd(ours, javas, theirs)
        for java in javas:
            java.end()
    print(f"Redisson {version} and holdfast understand one another")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [NEWEST]))
