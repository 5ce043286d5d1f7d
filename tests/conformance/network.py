"""A network between the client's half of a local backend and its store: delays, holds and loses.

Contract: `NetworkStrategy` has the hooks that break the way there; what is tested is the backend
itself, only its link is ours. Thread-safe; the store's calls to waiters pass through it too.
Partners: `memory.py`, `sqlite.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.backends.local import Held
from holdfast.core.port import Event, Port
from holdfast.errors import Unavailable
from holdfast.testing.conformance import Strategy
from holdfast.types import Unknown

T = TypeVar("T")
Run = Callable[[Callable[[], Any]], Any]


class Network:
    """Between one store and all its clients. Thread-safe; the store's calls pass through it too."""

    def __init__(self) -> None:
        self.requests = 0
        self._mutex = threading.Lock()
        self._timers: list[threading.Timer] = []
        self.heal()

    def heal(self) -> None:
        self.severed = self.hanging = False
        self.drop_replies = 0
        self.delay = self.delay_next = 0.0
        self.hold: list[Callable[[], None]] | None = None

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.join()

    def let_go(self) -> None:
        with self._mutex:
            held, self.hold = self.hold or [], None
        for arrive in held:
            arrive()

    def send(self, arrive: Callable[[], None]) -> bool:
        """Bring a request to the store: now, later or never. False: it is surely not under way."""
        with self._mutex:
            self.requests += 1
            if self.severed:
                return False
            if self.hanging:
                return True
            if self.hold is not None:
                self.hold.append(arrive)
                return True
            delay, self.delay_next = self.delay + self.delay_next, 0.0
            if delay:
                timer = threading.Timer(delay, arrive)
                self._timers.append(timer)
                timer.start()
                return True
        arrive()
        return True

    def loses_reply(self) -> bool:
        with self._mutex:
            lost = self.drop_replies > 0
            self.drop_replies -= lost
            return lost

    def push(self, call: Callable[[Held | None], None], held: Held | None) -> None:
        """The store calls a waiter. It runs inside the store, so it must not wait for anything."""
        if self.severed or self.hanging:
            return
        if (parcels := self.hold) is not None:
            parcels.append(lambda: call(held))
        else:
            call(held)


class BrokenLink:
    def __init__(self, network: Network, port: Port, run: Run = lambda request: request()) -> None:
        self._network = network
        self._port = port
        self._run = run  # how the store is entered

    async def ask(self, deadline: float, request: Callable[[], T]) -> T | Unknown:
        network, port = self._network, self._port
        answered = port.event()
        answers: list[T | Unknown] = []

        def arrive() -> None:
            answer = self._run(request)
            answers.append(Unknown("the connection broke") if network.loses_reply() else answer)
            answered.set()

        await self._suspend()
        if not network.send(arrive):
            raise Unavailable("the network is cut")
        await self._wait(answered, deadline)
        await self._suspend()
        return answers[0] if answers else Unknown("no answer")

    async def _wait(self, answered: Event, deadline: float) -> None:
        if not answered.is_set():
            await answered.wait(deadline)

    async def _suspend(self) -> None:
        """A place where a cancellation can strike, as every real request has."""
        if self._port.asynchronous:
            await self._port.sleep(0)

    def after(self, work: Callable[[], None]) -> None:
        work()

    def caller(self, call: Callable[[Held | None], None]) -> Callable[[Held | None], None]:
        return lambda held: self._network.push(call, held)


class NetworkStrategy(Strategy):
    network: Network

    def heal(self) -> None:
        self.network.let_go()
        self.network.heal()

    def stop_server(self) -> None:
        self.network.close()

    def sever_connections(self) -> None:
        self.network.severed = True

    def hang(self) -> None:
        self.network.hanging = True

    def drop_next_reply(self) -> None:
        self.network.drop_replies += 1

    def delay_next_request(self, seconds: float) -> None:
        self.network.delay_next = seconds

    def delay_requests(self, seconds: float) -> None:
        self.network.delay = seconds

    def hold_requests(self) -> None:
        self.network.hold = []

    def release_requests(self) -> None:
        self.network.let_go()

    def pause_server(self) -> None:
        self.network.hold = []

    def resume_server(self) -> None:
        self.network.let_go()

    def requests(self) -> int:
        return self.network.requests
