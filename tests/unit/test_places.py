"""So many at once, and a line: nobody is forgotten, wherever an interrupt strikes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.waiting import until

from holdfast.backends.places import Places, Turns
from holdfast.ports.thread import ThreadPort, drive

pytestmark = [pytest.mark.req("B3", "KeyboardInterrupt at any line")]


class Struck(ThreadPort):
    """Ctrl-C in the call of `mutex` with this number, before it is locked."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number

    def mutex(self) -> Any:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super().mutex()


@pytest.mark.parametrize("number", range(1, 12))
def test_an_interrupt_keeps_no_place_and_no_place_in_line(number: int) -> None:
    """Who stood in line stayed there: nobody was given a place any more, though all were free."""
    port = Struck(number + 1)  # the first is that of who has the place
    turns = Turns(port, 1)
    turn = drive(turns.turn(5.0, port.now() + 5.0))
    struck = False
    try:
        drive(turns.turn(0.02, port.now() + 0.02))
        turn.over(True)
        drive(turns.turn(0.02, port.now() + 0.02)).over(True)
    except KeyboardInterrupt:
        struck = True
    assert struck == (port.left <= 0)
    port.left = 0
    del turn
    assert turns.taken == 0
    assert drive(turns.place(lambda: port.now() - 1)) is not None


def test_the_line_is_served_in_order_and_nobody_waits_beside_a_free_place() -> None:
    port = ThreadPort()
    places = Places(port, 2)
    first, second = (drive(places.place(lambda: 0.0)) for _ in range(2))
    assert first is not None
    assert second is not None
    assert drive(places.place(lambda: 0.0)) is None
    served: list[int] = []

    def wait(number: int) -> None:
        place = drive(places.place(lambda: port.now() + 20))
        served.append(number)
        places.leave(place)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(5)]
    for number, thread in enumerate(threads):
        thread.start()
        until(lambda number=number: len(places._line) > number, "in line")  # type: ignore[misc]
    places.leave(first)
    for thread in threads:
        thread.join(20)
    assert served == sorted(served)
    assert places.taken == 1
