"""An access token that many processes share, of a service that forgets the old one at a refresh.

    python examples/access_token.py [URL] [--processes 50] [--seconds 5]

Three times the same work: each process calls the service again and again, with the token that it
finds. Without a lock, everybody who finds the token expired asks for a new one, which makes the
tokens of all others worthless. With `locks.once` one asks, for everybody: a call may come too late
by a moment, and then reading the token again is enough. With `hold()` not even that happens: the
token is not replaced while somebody uses it.

The service is a number in shared memory, so that the example needs nothing but holdfast.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import holdfast

TTL, AHEAD = 2.4, 0.4
"""Seconds for which a token is good, and how long before its end a new one is fetched."""

fork = mp.get_context("fork")  # the processes begin at once, without importing everything again


class TokenService:
    """Knows one token at a time, as the real one does."""

    def __init__(self) -> None:
        self.current = fork.Value("q", 0)
        self.refreshes = fork.Value("q", 0)

    def refresh(self) -> str:
        with self.current.get_lock():
            self.current.value += 1
            self.refreshes.value += 1
            token = self.current.value
        time.sleep(0.005)  # the answer is on its way, and the old token is worthless already
        return f"token-{token}"

    def call(self, token: str) -> bool:
        return token == f"token-{self.current.value}"


class Tally:
    """What the processes have seen, all together, and when it is enough."""

    def __init__(self, processes: int, seconds: float) -> None:
        self.calls = fork.Value("q", 0)
        self.reread = fork.Value("q", 0)
        self.failed = fork.Value("q", 0)
        self.start = fork.Barrier(processes, self._begin)
        self.begun = fork.Value("d", 0.0)
        self.wanted = 3 * processes  # a busy machine takes longer for them
        self.seconds = seconds

    def _begin(self) -> None:
        self.begun.value = time.monotonic()

    def add(self, reread: bool, failed: bool) -> None:
        for counter, number in ((self.calls, 1), (self.reread, reread), (self.failed, failed)):
            with counter.get_lock():
                counter.value += number

    @property
    def took(self) -> float:
        return time.monotonic() - float(self.begun.value)

    def enough(self, way: str) -> bool:
        """Chance decides when it fails without a lock: it may take some periods."""
        shown = self.failed.value > 0 or way != "without a lock"
        done = self.took > self.seconds and self.calls.value >= self.wanted and shown
        return done or self.took > 60


def without_a_lock(service: TokenService, cache: Path, locks: holdfast.Locks) -> tuple[bool, bool]:
    """One call: (whether the token was read again, whether the call failed in the end)."""

    def token() -> str:
        try:
            said = json.loads(cache.read_text())
        except (OSError, ValueError):
            said = {"until": 0.0}
        if said["until"] <= time.time():
            said = {"token": service.refresh(), "until": time.time() + TTL - AHEAD}
            part = cache.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(said))
            part.replace(cache)
        return str(said["token"])

    if service.call(token()):
        return False, False
    return True, not service.call(token())


def with_once(service: TokenService, cache: Path, locks: holdfast.Locks) -> tuple[bool, bool]:
    token = locks.once("access-token", TTL, service.refresh, ahead=AHEAD)
    mine = token.get()
    if service.call(mine):
        return False, False
    token.invalidate(mine)  # unless it was replaced already
    return True, not service.call(token.get())


def with_hold(service: TokenService, cache: Path, locks: holdfast.Locks) -> tuple[bool, bool]:
    token = locks.once("held-access-token", TTL, service.refresh, ahead=AHEAD)
    with token.hold() as using:
        return False, not service.call(using.value)


WAYS = {"without a lock": without_a_lock, "with once": with_once, "with once, held": with_hold}


def process(way: str, url: str, service: TokenService, tally: Tally, cache: Path) -> None:
    with holdfast.connect(url, request_timeout=30) as locks:
        tally.start.wait()
        while not tally.enough(way):
            tally.add(*WAYS[way](service, cache, locks))
            time.sleep(random.uniform(0.02, 0.06))


def run(way: str, url: str, processes: int, seconds: float, folder: Path) -> bool:
    """Whether it went as it should."""
    service, tally = TokenService(), Tally(processes, seconds)
    work = (way, url, service, tally, folder / "cache.json")
    crew = [fork.Process(target=process, args=work) for _ in range(processes)]
    for one in crew:
        one.start()
    for one in crew:
        one.join()
    refreshes = service.refreshes.value
    periods = int(tally.took / (TTL - AHEAD)) + 1  # that have begun
    print(
        f"{way:16} {tally.calls.value:6} calls, {refreshes:4} refreshes in {periods} periods, "
        f"{tally.reread.value:4} read again, {tally.failed.value:4} failed"
    )
    if any(one.exitcode for one in crew):
        return False
    if way == "without a lock":
        return bool(tally.failed.value)  # as was to be shown
    allowed = way == "with once"  # to read it again
    return not tally.failed.value and refreshes <= periods and (allowed or not tally.reread.value)


def main() -> int:
    parser = argparse.ArgumentParser(description="One refreshes, all others use the result.")
    parser.add_argument("url", nargs="?", help="the store; without it a file of this run's own")
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=5.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = asked.url or f"sqlite://{folder}/locks.db"
        went = [run(way, url, asked.processes, asked.seconds, Path(folder)) for way in WAYS]
    return 0 if all(went) else 1


if __name__ == "__main__":
    sys.exit(main())
