"""A level played with one of its forms: real processes on a real server, and the record of it all.

Contract: everything in the record was said by a process when it happened, or done here at that
moment. The methods are the words in which levels write their plays; each returns when what it names
has happened, or raises `Broken`. Partners: `level.py`, `actor.py`, `stage.py`, `servers.py`.
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import holdfast
from holdfast.cli import kernel
from holdfast.cli.judge import Account, Refused
from holdfast.cli.lab.drawing import rows
from holdfast.cli.lab.history import Event, History
from holdfast.cli.lab.level import NOT_SHOWN, Finding, Form, Level
from holdfast.cli.lab.resp import Redis, RedisError, through
from holdfast.cli.lab.servers import Masters, Replicated
from holdfast.cli.lab.words import words
from holdfast.cli.outcome import redact
from holdfast.cli.stage import Broken, Stage
from holdfast.cli.troupe import Player, Said
from holdfast.testing import FaultProxy

__all__ = ["Scene"]

UNENDING = 30.0
"""How long those to whom nothing happens wait."""


class Scene:
    def __init__(self, stage: Stage, level: Level, form: Form, url: str) -> None:
        self.stage = stage
        self.level = level
        self.form = form
        self.history = History()
        self.began = 0.0
        self._url = url
        self._lock = f"lab-{secrets.token_hex(4)}-stock"
        self._players: dict[str, Player] = {}
        self._proxies: dict[str, FaultProxy] = {}
        self._account = Account(100, checks=True)
        self._unread: list[Event] = []
        self._draw: Callable[[], None] = lambda: None
        self._replicated: Replicated | None = None
        self._masters: Masters | None = None

    def play(self) -> Finding:
        with ExitStack() as stack:
            try:
                self._prepare(stack)
                self.level.play(self)
            except BrokenPipeError:  # nobody looks on any more
                raise
            except (Broken, OSError, RedisError, holdfast.HoldfastError) as error:
                return Finding("unclear", f"{NOT_SHOWN}{redact(str(error), self._url)}")
        return self.level.judge(self.history)

    def _prepare(self, stack: ExitStack) -> None:
        level, stage = self.level, self.stage
        if level.replicated:
            self._replicated = Replicated()
            stack.callback(self._replicated.close)
            self._url = self._replicated.master.url
        if level.masters:
            self._masters = Masters()
            stack.callback(self._masters.close)
            self._url = self._masters.url
        stack.callback(self._clean_up)
        for who in level.proxied:
            proxy = FaultProxy(Redis(self._url).address, framing="resp")
            self._proxies[who] = stack.enter_context(proxy)
        parts = {who: ("actor", self._part(who)) for who in level.cast}
        stack.callback(stage.troupe.dismiss)
        stage.margin = 7  # "network"
        players = stage.scene(f"{self.form.name}: {self.form.text}", "", parts)
        self._players = dict(zip(level.cast, players, strict=True))
        self.began = kernel.now()
        stack.callback(stage.legend)
        self._draw = stack.enter_context(stage.showing(level.length))
        self._show()

    def _part(self, who: str) -> Said:
        url = self._url
        if self._replicated and who in self.level.cold:
            url = self._replicated.replica.url
        if proxy := self._proxies.get(who):
            url = through(url, proxy.address)
        return {
            "level": self.level.name,
            "form": self.form.name,
            "url": url,
            "lock": self._lock,
            "ttl": self.level.ttl if who == "ada" else self.level.others_ttl,
            "clock": self.level.clocks.get(who, 0.0),
            "warm": who not in self.level.cold,
        }

    def _clean_up(self) -> None:
        """The keys of a naive form that broke; holdfast's own end by themselves."""
        if self._replicated is None and self._masters is None:
            try:
                with Redis(self._url) as redis:
                    redis.call("DEL", self._lock)
            except (OSError, RedisError):
                pass

    # -- the record -------------------------------------------------------------------------------

    def note(self, who: str, what: str, at: float | None = None, **figures: Any) -> Event:
        event = Event(kernel.now() if at is None else at, who, what, figures)
        self.history.add(event)
        if text := words(event):
            self.stage.event(event.at, who, text)
        self._show()
        return event

    def _show(self) -> None:
        drawn = rows(self.history, self.level.cast, self.began)
        self.stage.rows = {row.name: row for row in drawn}
        self._draw()

    def _heard(self, player: Player, said: Said) -> None:
        figures = {key: value for key, value in said.items() if key not in ("at", "what")}
        if "error" in figures:  # a server may quote what it was sent
            figures["error"] = redact(figures["error"], self._url)
        if said["what"] == "gone":
            if player.killed:
                return
            raise Broken(f"the process of {player.name} ended, and nobody had ended it")
        if said["what"] == "write":
            figures |= self._write(player.name, said["fence"])
        event = self.note(player.name, said["what"], float(said["at"]), **figures)
        self._unread.append(event)

    def _write(self, who: str, fence: int | None) -> Said:
        """The resource. It checks tokens, of those who have one."""
        try:
            if fence is not None:
                self._account.write(0, fence)
        except Refused as refusal:
            return {"accepted": False, "refusal": str(refusal)}
        return {"accepted": True}

    # -- words for plays --------------------------------------------------------------------------

    def tell(self, who: str, **order: Any) -> None:
        self._players[who].tell(**order)

    def ask(self, who: str, patience: float = UNENDING, *, attempt: bool = True) -> None:
        """It asks for the lock: first without waiting (the answer is "hold" or "refused"; not if
        `attempt` is false), and then it waits."""
        self.tell(who, do="ask", patience=patience, attempt=attempt)

    def until(self, who: str, *whats: str, seconds: float | None = None) -> str:
        """Wait until it says one of these, and say which; with `seconds`, no longer than that: "".
        `Broken` if it was refused for good meanwhile."""
        end = None if seconds is None else kernel.now() + seconds
        while end is None or kernel.now() < end:
            for event in self._unread:
                if event.who == who and event.what in (*whats, "gave up", "failed"):
                    self._unread.remove(event)
                    if event.what not in whats:
                        raise Broken(f"{who} {words(event)}")
                    return event.what
            self._listen()
        return ""

    def _listen(self) -> None:
        for player, said in self.stage.listen():
            self._heard(player, said)
        self._show()

    def rest(self, seconds: float) -> None:
        """Let it be seen: nothing depends on it."""
        self.until("", seconds=seconds * self.stage.pace)

    def release(self, who: str) -> None:
        self.tell(who, do="release")
        self.until(who, "released", "failed")

    def look(self, who: str) -> None:
        """It looks whether it still has the lock."""
        self.tell(who, do="look")
        self.until(who, "look")

    def write(self, who: str) -> None:
        """It writes to the resource, with its token if it has one."""
        self.tell(who, do="write")
        self.until(who, "write")

    def kill(self, who: str) -> None:
        self.note(who, "killed", self._players[who].signal(signal.SIGKILL))

    def stop(self, who: str) -> None:
        self.note(who, "stopped", self._players[who].signal(signal.SIGSTOP))

    def wake(self, who: str) -> None:
        self.note(who, "woken", self._players[who].signal(signal.SIGCONT))

    # -- the network ------------------------------------------------------------------------------

    @property
    def _word(self) -> bytes:
        return self._lock.encode()

    def lose_the_reply(self, who: str) -> None:
        """The reply to its next command about the lock is lost; the command is done."""
        self._proxies[who].forget()
        self._proxies[who].drop_reply(to=self._word)

    def until_the_reply_is_lost(self, who: str) -> None:
        self.until(who, "wait")
        self._proxies[who].wait_for_request(self._word)
        self._proxies[who].wait_for_reply()
        self.note("network", "swallowed", whose=who)

    @contextmanager
    def delay_changes(self, who: str) -> Generator[None]:
        """Its commands about the lock, except those that only read, are on their way meanwhile."""
        proxy = self._proxies[who]

        def changes(frame: bytes) -> bool:
            return self._word in frame and b"\r\nGET\r\n" not in frame

        with proxy.hold("to_server", matching=changes):
            yield
            proxy.forget()

    def until_a_change_is_delayed(self, who: str) -> None:
        self.until(who, "free")
        self._proxies[who].wait_for_held()
        self.note("network", "delayed", whose=who)

    def until_the_change_arrived(self, who: str) -> None:
        self._proxies[who].wait_for_reply()
        self.note("network", "arrived", whose=who)

    # -- the server -------------------------------------------------------------------------------

    def look_at_the_key(self) -> None:
        """What the server has of the lock. holdfast's form is asked for by its own API."""
        if self.form.name != "naive":
            found = [info for info in self.stage.locks.inspect(self._lock) if info.holders]
            held = found[0].holders[0] if found else None
            left = held.remaining if held else None
            milliseconds = -2 if held is None else -1 if left is None else int(left * 1000)
            value = held.info.get("label") if held else None
            self.note("server", "key", there=bool(found), pttl=milliseconds, value=value)
            return
        with Redis(self._url) as redis:
            pttl, owner = redis.call("PTTL", self._lock), redis.call("GET", self._lock)
        self.note("server", "key", there=pttl != -2, pttl=pttl, value=owner)

    def cut_replication(self) -> None:
        assert self._replicated is not None
        self._replicated.cut()
        self.note("network", "cut")

    def lose_the_master(self) -> None:
        assert self._replicated is not None
        self.note("master", "killed")
        self._replicated.fail_over()
        self.note("replica", "promoted")

    def until_the_masters_are(self, seconds: float, *, begin: bool = False) -> None:
        """Old enough by what they say themselves. `begin`: it was preparation until now, and the
        scene's time counts from here."""
        assert self._masters is not None
        while self._masters.age() < seconds:
            self.until("", seconds=0.1)
        if begin:
            self.began = self.stage.begin_now()
        self.note("masters", "old", seconds=seconds)

    def lose_a_node(self, number: int) -> None:
        assert self._masters is not None
        self._masters.nodes[number].kill()
        self.note(f"node {number}", "killed")

    def bring_a_node_back(self, number: int) -> None:
        """With nothing of what it knew."""
        assert self._masters is not None
        self._masters.nodes[number].restart()
        self.note(f"node {number}", "restarted")
