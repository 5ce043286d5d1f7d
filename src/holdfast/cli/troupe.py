"""The processes of `holdfast demo` and `holdfast lab`: started, listened to, and ended, however it
ends.

Contract: `close` leaves no process behind, stopped ones included. Partners: `actor.py` (the lab:
`lab/actor.py`), which runs in each of them; `demo.py`, `lab/scene.py`.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from holdfast.cli import kernel

__all__ = ["Player", "Said", "Troupe", "orderly_end", "uninterrupted"]

Said = dict[str, Any]
"""What an actor said: `at` (CLOCK_BOOTTIME), `what`, and figures."""


class Player:
    """One process, as the director sees it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.process = process
        self.gone = False
        self.killed = False  # by us
        self.finished = False  # by its own word
        self._heard = b""

    def tell(self, **order: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:  # it has ended, as `listen` will say
            pass

    def signal(self, number: int) -> float:
        """Send it, and say when: before it can have had any effect."""
        self.killed = self.killed or number == signal.SIGKILL
        moment = kernel.now()
        self.process.send_signal(number)
        return moment

    def read(self) -> list[Said]:
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 65536)
        if not data:
            self.gone = True
            return [{"at": kernel.now(), "what": "gone"}]
        *lines, self._heard = (self._heard + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        self.process.kill()  # ends a stopped one, too
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except BrokenPipeError:  # something it will never read
                pass


class Troupe:
    def __init__(self, url: str, module: str = "holdfast.cli.actor") -> None:
        self._url = url
        self._module = module
        self._players: list[Player] = []
        self._selector = selectors.DefaultSelector()

    def hire(self, name: str, role: str, figures: Said) -> Player:
        """Start a process; it says "ready" and then waits to be told to begin."""
        debug = os.environ.get("HOLDFAST_DEBUG") == "1"
        with uninterrupted():  # a process that was started must be known
            process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if debug else subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the director alone
            )
            player = Player(name, process)
            self._players.append(player)
        self._selector.register(player.process.stdout or 0, selectors.EVENT_READ, player)
        first = {"url": self._url, "director": os.getpid(), "name": name, "role": role}
        player.tell(**first, **{"with": figures})
        return player

    def listen(self, patience: float) -> list[tuple[Player, Said]]:
        """What was said; waits so long for the first word."""
        heard: list[tuple[Player, Said]] = []
        for key, _ in self._selector.select(patience):
            player: Player = key.data
            heard += [(player, said) for said in player.read()]
            if player.gone:
                self._selector.unregister(key.fileobj)
        return sorted(heard, key=lambda one: float(one[1]["at"]))

    def dismiss(self) -> None:
        """End those that are still there, before the next scene."""
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
        while self._players:
            self._players[-1].end()
            self._players.pop()

    def close(self) -> None:
        with uninterrupted():
            self.dismiss()
            self._selector.close()


@contextmanager
def uninterrupted() -> Generator[None]:
    """Ctrl-C and its like come afterwards. (An actor inherits that: it has to be killed.)"""
    ends = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def orderly_end() -> Generator[None]:
    """TERM and HUP end it as Ctrl-C does: by way of every `finally`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
