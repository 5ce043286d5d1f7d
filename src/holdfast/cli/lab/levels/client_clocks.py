"""client-clocks: the expiry is a time in the value, and every client reads its own clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.cli.lab.history import History
from holdfast.cli.lab.level import NOT_SHOWN, Finding, Level, judge_exclusion, naive, ours
from holdfast.cli.lab.naive import NaiveLock

if TYPE_CHECKING:
    from holdfast.cli.lab.scene import Scene

TTL, AHEAD = 10.0, 3600.0


class ClientClocks(NaiveLock):
    def attempt(self) -> bool:
        mine = str(time.time() + self.ttl)
        if self.redis.call("SETNX", self.key, mine) == 1:
            return True
        expiry = self.redis.call("GET", self.key)
        if expiry is None or float(str(expiry)) > time.time():  # by whose clock?
            return False
        return self.redis.call("GETSET", self.key, mine) == expiry  # only one of many gets it

    def release(self) -> None:
        self.redis.call("DEL", self.key)


def play(scene: Scene) -> None:
    scene.ask("ada")
    scene.until("ada", "hold")
    scene.rest(0.2)
    scene.ask("bob")
    answer = scene.until("bob", "hold", "refused")
    scene.rest(0.3)
    scene.release("ada")
    if answer == "refused":
        scene.until("bob", "hold")
        scene.rest(0.2)
    scene.release("bob")


def judge(history: History) -> Finding:
    asked = history.first("bob", "wait"), history.first("ada", "wait")
    if not all(asked):
        return Finding("unclear", f"{NOT_SHOWN}somebody did not ask")
    bob, ada = (float(event.figures["clock"]) if event else 0.0 for event in asked)
    if bob - ada < AHEAD / 2:
        return Finding("unclear", f"{NOT_SHOWN}bob's clock was right")
    return judge_exclusion(history, "ada", "bob", "ada", "bob")


LEVEL = Level(
    name="client-clocks",
    title="The expiry is a value, compared with the client's clock",
    fault="bob's wall clock is an hour ahead. ada holds the lock, with seconds to go; bob asks.",
    why="A time that one host wrote means something else on a host whose clock differs. holdfast "
    "counts on the server's clock alone, and a holder counts elapsed time, never the time of day.",
    ttl=TTL,
    cast=("ada", "bob"),
    forms=(
        naive("SETNX stock <time+ttl>   GET, compare, GETSET   ...   DEL", ClientClocks),
        ours(TTL),
    ),
    play=play,
    judge=judge,
    clocks={"bob": AHEAD},
)
