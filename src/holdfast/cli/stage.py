"""Where `holdfast demo` and `holdfast lab` are shown: titles, dated lines, a timeline that grows,
and the verdicts.

Contract: on a terminal the timeline is drawn while it happens, else once at its end; dated lines
stand above it in either case. Partners: `screen.py`, which draws; `demo.py`; `lab/scene.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from rich.live import Live
from rich.text import Text

import holdfast
from holdfast.cli import kernel
from holdfast.cli.screen import PALETTE, Row, Screen, legend, shown, timeline
from holdfast.cli.troupe import Player, Said, Troupe

__all__ = ["COLOURS", "Broken", "Stage"]

COLOURS = {"ada": "blue", "bob": "orange", "cleo": "green", "dan": "pink"}
"""Of the actors; whatever else something happens to (a server, a network) is grey."""
PATIENCE = 30.0
"""A scene that takes longer is broken: it waits for something that must have happened."""


class Broken(Exception):
    """Something that must happen did not."""


class Stage:
    def __init__(
        self, screen: Screen, troupe: Troupe, locks: holdfast.Locks, pace: float = 1.0
    ) -> None:
        self.screen = screen
        self.troupe = troupe
        self.locks = locks
        self.pace = pace
        self.rows: dict[str, Row] = {}
        self.verdicts: list[tuple[bool, str]] = []
        self.margin = 5  # as wide as the longest name
        self.shown: list[str] = []  # kinds of spans that can be seen in the last timeline
        self._began = 0.0

    # -- a scene ----------------------------------------------------------------------------------

    def scene(self, title: str, text: str, parts: Mapping[str, tuple[str, Said]]) -> list[Player]:
        """Introduce it, and start its actors, each a new process: name -> role and figures."""
        self.troupe.dismiss()  # of the scene before
        self.screen.print()
        self.screen.paint(title, "bold")
        if text:
            self.screen.paint(text)
            self.screen.print()
        self.rows = {name: Row(name, COLOURS[name]) for name in parts}
        self._began = kernel.now()
        players = [self.troupe.hire(name, *part) for name, part in parts.items()]
        ready = 0
        while ready < len(players):
            for player, said in self.listen():
                if said["what"] == "gone":
                    raise Broken(f"the process of {player.name} ended before it was ready")
                ready += said["what"] == "ready"
        self.begin_now()
        return players

    def begin_now(self) -> float:
        """What came before was preparation: the scene's time counts from here."""
        self._began = kernel.now()
        return self._began

    def passed(self, moment: float | None = None) -> float:
        """Seconds since the scene began."""
        return (kernel.now() if moment is None else moment) - self._began

    def listen(self) -> list[tuple[Player, Said]]:
        """What was said in the last moments; `Broken` if the scene lasts for ever."""
        if self.passed() > PATIENCE:
            raise Broken(f"something that must happen did not, for {PATIENCE:g} s")
        return self.troupe.listen(0.04)

    @contextmanager
    def showing(self, length: float) -> Generator[Callable[[], None]]:
        """The timeline, drawn live where that is possible. Yields what draws it now."""

        def picture() -> Text:
            now, rows = self.passed(), list(self.rows.values())
            self.shown = shown(rows, now, max(now, length), self.screen)
            return timeline(rows, now, max(now, length), self.screen)

        if not self.screen.moves:
            yield lambda: None
            self.screen.print(picture())
            return
        with Live(picture(), console=self.screen, auto_refresh=False) as live:
            yield lambda: live.update(picture(), refresh=True)

    def event(self, moment: float, who: str, text: str) -> None:
        """A dated line."""
        head = Text(f"{self.passed(moment):6.2f} s  ")
        self.screen.hang(
            head.append(f"{who:<{self.margin}} ", PALETTE[COLOURS.get(who, "grey")]), text
        )

    def legend(self) -> None:
        self.screen.print(legend(self.shown, self.screen))

    # -- the end ----------------------------------------------------------------------------------

    def verdict(self, kept: bool, promise: str) -> None:
        self.verdicts.append((kept, promise))

    def until_nothing_is_held(self, patience: float = 2.0) -> list[holdfast.LockInfo]:
        """What is still in use after the actors have gone; they may take a moment."""
        deadline = kernel.now() + patience
        while left := self.locks.inspect():
            if kernel.now() > deadline:
                break
            time.sleep(0.02)
        return left

    def farewell(self) -> int:
        """What this run showed; its exit status."""
        self.screen.print()
        self.screen.paint("What this run showed", "bold")
        for kept, promise in self.verdicts:
            sign, colour = ("  + ", "green") if kept else ("  ! NOT KEPT: ", "red")
            self.screen.hang(Text(sign, PALETTE[colour]), promise, "" if kept else "red")
        self.screen.print()
        self.screen.paint("Next: holdfast run NAME -- COMMAND, holdfast watch, holdfast --help")
        return 0 if self.verdicts and all(kept for kept, _ in self.verdicts) else 1
