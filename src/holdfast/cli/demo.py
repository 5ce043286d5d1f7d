"""`holdfast demo`: real processes, a real store, two scenes; what happened is measured and judged.

Contract: nothing shown is written in advance. The actors (`actor.py`, each a process) say what
happens to them; texts and timelines are made from these records, and a record that contradicts what
holdfast promises is said in red and makes the exit status 1. However it ends, no process and no
file of it stays behind. Partners: `troupe.py` starts and ends the actors, `stage.py` shows them,
`judge.py` decides.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import holdfast
from holdfast.cli.judge import (
    Account,
    Hold,
    Line,
    Pause,
    Refused,
    judge_contention,
    judge_crash,
    judge_pause,
)
from holdfast.cli.screen import open_screen
from holdfast.cli.stage import Broken, Stage
from holdfast.cli.troupe import Player, Said, Troupe, orderly_end

__all__ = ["play", "store_url"]


def store_url(folder: str) -> str:
    """Where the demonstration keeps its locks."""
    return f"sqlite://{Path(folder) / 'demo.db'}"


def play(out: TextIO | None = None, pace: float = 1.0) -> int:
    """The demonstration; its exit status. `pace` shortens it, for tests."""
    screen = open_screen(out)
    screen.paint(f"holdfast {holdfast.__version__}", "bold")
    screen.paint(
        "Locks that are handed over in order, and that tell you when they are no longer yours. "
        "Everything below happens now, in processes of its own, and is measured."
    )
    with orderly_end(), tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        troupe = Troupe(store_url(folder))
        try:
            with holdfast.connect(store_url(folder), label="demo") as locks:
                stage = Stage(screen, troupe, locks, pace)
                try:
                    Contention(stage).play()
                    Interruption(stage).play()
                    left = stage.until_nothing_is_held()
                    stage.verdict(not left, f"locks still in use at the end: {len(left)}")
                except Broken as error:
                    stage.verdict(False, str(error))
        finally:
            troupe.close()
    return stage.farewell()


class Contention:
    """The first scene: four workers, and one of them is killed while it holds."""

    LENGTH, TTL = 4.5, 3.0

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.length = self.LENGTH * stage.pace
        self.holds: list[Hold] = []
        self.lines: list[Line] = []
        self.asked: dict[str, float] = {}
        self.killed = 0.0
        self.warned = self.stopped = False

    def play(self) -> None:
        stage = self.stage
        shortest, longest = 0.05 * stage.pace, 0.16 * stage.pace
        figures = {"name": "printer", "ttl": self.TTL, "shortest": shortest, "longest": longest}
        players = stage.scene(
            "1. Four processes, one lock; one is killed while it holds",
            f"Each asks for the lock, works under it for {shortest * 1e3:.0f} to "
            f"{longest * 1e3:.0f} ms, and asks again. Who asked first has it first. "
            "Then a holder gets SIGKILL.",
            dict.fromkeys(("ada", "bob", "cleo", "dan"), ("worker", figures)),
        )
        with stage.showing(self.length) as draw:
            for player in players:
                player.tell(do="begin")
            while not all(player.gone for player in players):
                for player, said in stage.listen():
                    self.heard(player, said)
                self.look_at_the_line()
                self.direct(players)
                draw()
        stage.legend()
        judge_contention(stage.verdict, self.holds, [line for line in self.lines if len(line) > 1])
        crash_release = stage.locks.capabilities.crash_release
        promise = self.TTL + 1.0 if crash_release == "ttl" else 1.0
        judge_crash(stage.verdict, self.holds, self.killed, promise)

    def heard(self, player: Player, said: Said) -> None:
        row, at = self.stage.rows[player.name], float(said["at"])
        match said["what"]:
            case "wait":
                row.begin("wait", self.stage.passed(at))
                self.asked[player.name] = at
            case "hold":
                row.begin("hold", self.stage.passed(at))
                asked, fence = self.asked[player.name], int(said["fence"])
                self.holds.append(Hold(player.name, int(said["turn"]), asked, at, fence))
            case "free":
                row.end(self.stage.passed(at))
                self.last(player).end = at
            case "done":
                row.end(self.stage.passed(at))
                player.finished = True
            case "gone" if not player.finished and not player.killed:
                raise Broken(f"the process of {player.name} ended, and nobody had ended it")
            case _:
                pass

    def last(self, player: Player) -> Hold:
        return next(hold for hold in reversed(self.holds) if hold.name == player.name)

    def look_at_the_line(self) -> None:
        waiters = [w.info for info in self.stage.locks.inspect("printer") for w in info.waiters]
        self.lines.append([(info["worker"], int(info["turn"])) for info in waiters])

    def direct(self, players: list[Player]) -> None:
        stage, victim = self.stage, players[1]
        passed = stage.passed()
        if not self.warned and passed > 0.4 * self.length:
            self.warned = True
            victim.tell(do="hold long")  # so that it is surely holding when the signal comes
        elif self.warned and not self.killed and self.holds and self.holds[-1].name == victim.name:
            hold = self.last(victim)
            if hold.end is None and stage.passed(hold.start) < passed - 0.3 * stage.pace:
                self.killed = hold.end = victim.signal(signal.SIGKILL)
                stage.rows[victim.name].begin("dead", stage.passed(self.killed))
                stage.rows[victim.name].end(stage.passed(self.killed) + self.length / 30)
        elif self.killed and not self.stopped and passed > 0.85 * self.length:
            self.stopped = True
            for player in players:
                player.tell(do="stop")


class Interruption:
    """The second scene: a holder is stopped for longer than its lease, and writes all the same."""

    TTL, START, ADAS, BOBS = 1.2, 100, 20, 50

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.pause = Pause(ttl=self.TTL * max(stage.pace, 0.5))
        self.accounts = Account(self.START, checks=False), Account(self.START, checks=True)
        self.unread: list[tuple[Player, Said]] = []
        self.draw: Callable[[], None] = lambda: None

    def play(self) -> None:
        stage, pause = self.stage, self.pause
        ada, bob = stage.scene(
            "2. A holder is stopped for longer than its lease",
            f"ada reads a balance of {self.START} under the lock and is stopped (SIGSTOP) before "
            f"she writes {self.START + self.ADAS}. bob is next and pays in {self.BOBS}. Then ada "
            "goes on, and does not look. Two accounts get the same writes; one checks the tokens.",
            {
                "ada": ("writer", {"name": "account:7", "ttl": pause.ttl, "amount": self.ADAS}),
                "bob": ("writer", {"name": "account:7", "ttl": 30.0, "amount": self.BOBS}),
            },
        )
        with stage.showing(3.0 * stage.pace) as self.draw:
            ada.tell(do="begin")
            pause.fence = int(self.until(ada, "hold")["fence"])
            ada.tell(balance=self.accounts[1].balance)
            self.rest(0.3)
            pause.stopped = ada.signal(signal.SIGSTOP)
            stage.rows["ada"].begin("paused", stage.passed(pause.stopped))
            stage.event(pause.stopped, "ada", "is stopped (SIGSTOP): nothing renews her lease")
            bob.tell(do="begin")
            granted = self.until(bob, "hold")
            pause.next_start, pause.next_fence = float(granted["at"]), int(granted["fence"])
            bob.tell(balance=self.accounts[1].balance)
            self.rest(0.5)
            bob.tell(do="go on")
            self.write(bob, self.until(bob, "write"))
            self.until(bob, "free")
            self.rest(0.3)
            woken = ada.signal(signal.SIGCONT)
            stage.rows["ada"].begin("stale", stage.passed(woken))
            stage.event(woken, "ada", "goes on (SIGCONT)")
            self.rest(0.3)
            ada.tell(do="go on")
            pause.held_on_waking = bool(self.until(ada, "look")["held"])
            self.write(ada, self.until(ada, "write"))
            pause.kept = bool(self.until(ada, "free")["kept"])
            self.draw()
        stage.legend()
        pause.careless, pause.careful = (account.balance for account in self.accounts)
        pause.expected = self.START + self.BOBS
        judge_pause(stage.verdict, pause)

    def rest(self, seconds: float) -> None:
        """Let it be seen."""
        end = self.stage.passed() + seconds * self.stage.pace
        while self.stage.passed() < end:
            self.listen()

    def listen(self) -> None:
        for heard in self.stage.listen():
            self.show(*heard)
            self.unread.append(heard)
        self.draw()

    def until(self, player: Player, what: str) -> Said:
        """Wait until this one says that; meanwhile everything is shown."""
        while True:
            for heard in self.unread:
                if heard[0] is player and heard[1]["what"] == what:
                    self.unread.remove(heard)
                    return heard[1]
            self.listen()

    def show(self, player: Player, said: Said) -> None:
        stage, at, name = self.stage, float(said["at"]), player.name
        row = stage.rows[name]
        match said["what"]:
            case "wait":
                row.begin("wait", stage.passed(at))
            case "hold":
                row.begin("hold", stage.passed(at))
                stage.event(at, name, f"has the lock, token {said['fence']}")
            case "look":
                stage.event(at, name, f"sees at the first look: lease.held is {said['held']}")
            case "free":
                row.end(stage.passed(at))
                stage.event(at, name, f"releases: lease.release() returned {said['kept']}")
            case "done":
                player.finished = True
            case "gone" if not player.finished:
                raise Broken(f"the process of {name} ended, and nobody had ended it")
            case _:
                pass

    def write(self, player: Player, said: Said) -> None:
        """Both accounts get the write; the writer goes on when they have answered."""
        careless, careful = self.accounts
        balance, fence = int(said["balance"]), int(said["fence"])
        careless.write(balance, fence)
        try:
            careful.write(balance, fence)
            answer = "both accounts accept it"
        except Refused as refusal:
            self.pause.refused += (player.name,)
            answer = f"the careful account refuses it: {refusal}"
        self.stage.event(float(said["at"]), player.name, f"writes {balance}: {answer}")
        player.tell(answer=answer)
