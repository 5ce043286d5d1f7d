"""One at a time, in order, by a deadline: who uses a session just now.

Contract: `enter` is True if the gate is yours, and then `leave` must follow. An interrupt between
the two leaves it closed for ever; whoever must not depend on it gives up at a deadline.
"""

from __future__ import annotations

from collections import deque

from holdfast.core.port import Event, Port

__all__ = ["Gate"]


class Gate:
    __slots__ = ("_line", "_port", "_taken")

    def __init__(self, port: Port) -> None:
        self._port = port
        self._taken = False
        self._line: deque[Event] = deque()

    @property
    def taken(self) -> bool:
        return self._taken

    def try_enter(self) -> bool:
        with self._port.mutex():
            if self._taken:
                return False
            self._taken = True
            return True

    async def enter(self, deadline: float) -> bool:
        if self.try_enter():
            return True
        event = self._port.event()
        with self._port.mutex():
            if not self._taken:
                self._taken = True
                return True
            self._line.append(event)
        entered = False
        try:
            entered = await event.wait(deadline)
        finally:
            if not entered:
                with self._port.mutex():
                    if event in self._line:
                        self._line.remove(event)
                    elif event.is_set():  # called while giving up: the next one may
                        self.leave()
        return entered

    def leave(self) -> None:
        with self._port.mutex():
            if self._line:
                self._line.popleft().set()
            else:
                self._taken = False
