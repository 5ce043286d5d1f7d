"""A world with a fake clock, in which everything happens one step at a time, by choice.

Contract: a third port (beside threads and asyncio) for the core. Every await of the core is a point
where this world may do something else: run another task, deliver, lose or delay a message, let time
pass, pause or kill a client. Whoever owns the world decides which; nothing happens by itself and
nothing waits for real time, so a run is replayed by deciding the same. Partner: `core/port.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from holdfast.core.port import Main
from holdfast.types import Unknown

__all__ = ["Cancelled", "Fiber", "Host", "Message", "World", "WorldEvent", "WorldLink", "WorldPort"]

T = TypeVar("T")


class Cancelled(BaseException):
    """What a cancelled fiber receives at its await, as `asyncio.CancelledError` elsewhere."""


class Park:
    """What a fiber waits for: a condition, or a moment."""

    __slots__ = ("ready", "wake_at")

    def __init__(self, ready: Callable[[], bool], wake_at: float) -> None:
        self.ready = ready
        self.wake_at = wake_at

    def __await__(self) -> Generator[Park, None, None]:
        yield self


class Fiber:
    """A coroutine in this world."""

    def __init__(self, host: Host, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
        self.host = host
        self.name = name
        self.coroutine = coroutine
        self.park: Park | None = None
        self.done = False
        self.error: BaseException | None = None

    def runnable(self, now: float) -> bool:
        park = self.park
        return not self.done and (park is None or park.ready() or now >= park.wake_at)

    def kill(self) -> None:
        """End it without its say: `finally` blocks run, but on a crashed host they reach nobody."""
        self.done = True
        for _ in range(10):
            try:
                self.coroutine.close()
            except RuntimeError:  # it awaited something on its way out
                continue
            return

    def step(self, throw: BaseException | None = None) -> None:
        world, previous = self.host.world, self.host.world.current
        world.current = self
        try:
            if throw is None:
                self.park = self.coroutine.send(None)
            else:
                self.park = self.coroutine.throw(throw)
        except StopIteration:
            self.done = True
        except BaseException as error:  # noqa: BLE001 - kept for whoever looks at the fiber
            self.done, self.error = True, error
        finally:
            world.current = previous


class Message:
    """A request on its way to the store, then its answer on the way back; or a call from the
    store, which is an answer that nobody asked for."""

    def __init__(
        self, host: Host, request: Callable[[], Any] | None, receive: Callable[[Any], None]
    ) -> None:
        self.host = host
        self.sent = host.world.time
        self.request = request  # None once the store has run it
        self.receive = receive
        self.answer: Any = None
        self.broken = False  # the connection is gone; what was sent may still arrive


class Host:
    """A client's machine: its fibers run, pause and die together."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.paused_until = 0.0
        self.crashed = False

    @property
    def running(self) -> bool:
        return not self.crashed and self.world.time >= self.paused_until


class World:
    def __init__(self) -> None:
        self.time = 1000.0
        self.fibers: list[Fiber] = []
        self.mail: list[Message] = []
        self.current: Fiber | None = None
        self.steps = 0

    def now(self) -> float:
        return self.time

    def spawn(self, host: Host, coroutine: Coroutine[Any, Any, Any], name: str) -> Fiber:
        fiber = Fiber(host, coroutine, name)
        self.fibers.append(fiber)
        return fiber

    def runnable(self) -> list[Fiber]:
        self.fibers = [fiber for fiber in self.fibers if not fiber.done]
        return [f for f in self.fibers if f.host.running and f.runnable(self.time)]

    def next_moment(self) -> float:
        """The earliest moment at which somebody wakes by itself."""
        moments = [f.park.wake_at for f in self.fibers if f.park and not f.host.crashed]
        moments += [f.host.paused_until for f in self.fibers if not f.host.crashed]
        return min((m for m in moments if m > self.time), default=math.inf)

    def crash(self, host: Host) -> None:
        """kill -9: nothing of the host runs again; what it sent is still under way."""
        host.crashed = True
        for fiber in self.fibers:
            if fiber.host is host and not fiber.done:
                fiber.kill()

    def deliver(self, message: Message) -> None:
        """One hop: to the store, which answers, or from the store to the host."""
        if message.request is not None:
            request, message.request = message.request, None
            message.answer = request()
        else:
            self.mail.remove(message)
            if not message.host.crashed and not message.broken:
                message.receive(message.answer)

    def lose(self, message: Message) -> None:
        self.mail.remove(message)


class WorldEvent:
    def __init__(self, world: World) -> None:
        self._world = world
        self._flag = False

    def set(self) -> None:
        self._flag = True

    def clear(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    async def wait(self, deadline: float | None) -> bool:
        moment = math.inf if deadline is None else deadline
        if not self._flag and self._world.time < moment:
            await Park(self.is_set, moment)
        return self._flag


class WorldTask:
    def __init__(self, host: Host, main: Main, name: str) -> None:
        self._host = host
        self._main = main
        self._name = name
        self._fiber: Fiber | None = None

    def start(self) -> None:
        self._fiber = self._host.world.spawn(self._host, self._main(), self._name)
        if self._host.crashed:
            self._fiber.kill()

    @property
    def alive(self) -> bool:
        return self._fiber is not None and not self._fiber.done

    async def join(self, deadline: float) -> bool:
        if self.alive:
            await Park(lambda: not self.alive, deadline)
        return not self.alive


class WorldPort:
    """core.port.Port, on a host of a world."""

    asynchronous = True

    def __init__(self, host: Host) -> None:
        self._host = host
        self._world = host.world
        self.now = host.world.now

    def random(self) -> float:
        return 0.5  # jitter would only blur what the choices decide

    async def sleep(self, seconds: float) -> None:
        await Park(lambda: False, self._world.time + seconds)

    def event(self) -> WorldEvent:
        return WorldEvent(self._world)

    def nested(self) -> bool:
        return False

    def mutex(self) -> AbstractContextManager[None]:
        return nullcontext()

    def task(self, main: Main, farewell: Main, name: str) -> WorldTask:
        return WorldTask(self._host, main, name)

    def waits(self) -> None: ...

    def prepare_call(self) -> None: ...

    def call(self, callback: Callable[[Any], Any], argument: Any) -> None:
        callback(argument)

    def context(self) -> object:
        return self._world.current

    def incarnation(self) -> int:
        return 0


class WorldLink:
    """The way between a host and the store, for `MemoryBackend(store, link)`: each request and each
    answer is a message that the world delivers when it chooses, or never."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._world = host.world

    async def ask(self, deadline: float, request: Callable[[], T]) -> T | Unknown:
        answers: list[T] = []
        message = Message(self._host, request, answers.append)
        if not self._host.crashed:
            self._world.mail.append(message)
        await Park(lambda: bool(answers) or message.broken, deadline)
        return answers[0] if answers else Unknown("no answer")

    def after(self, work: Callable[[], None]) -> None:
        work()

    def caller(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        def later(held: Any) -> None:
            message = Message(self._host, None, call)
            message.answer = held
            self._world.mail.append(message)

        return later
