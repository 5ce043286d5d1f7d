"""The asyncio half: all nodes are asked at once, each on one connection that everybody shares.

Contract: as `crew.py`. A request that its node does not answer in time ends its connection (the
link sees to that), whether somebody still waits for it or not. Who is cancelled leaves the answers
to nobody; a farewell among them that fails is then owed to its node.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any

from holdfast.backends.redis.loops import CONNECT, Link, LoopTransport
from holdfast.backends.redis.transport import ORDINARY
from holdfast.backends.redis.wire import NoAnswer, NotSent, ReplyError
from holdfast.backends.redlock.ballot import Ballot
from holdfast.backends.redlock.letters import Letter
from holdfast.backends.redlock.nodes import Debt, Member, NodeSettings, places_to_ask
from holdfast.backends.redlock.wires import unknown
from holdfast.errors import Misconfigured
from holdfast.ports.clock import now

__all__ = ["LoopCouncil"]


class Sent:
    """The receipt of a letter."""

    __slots__ = ("_future", "line")

    def __init__(self, line: Link, future: asyncio.Future[Any]) -> None:
        self.line = line
        self._future = future

    @property
    def answered(self) -> bool:
        future = self._future
        return future.done() and not future.cancelled() and future.exception() is None


class Round:
    """One letter, and how far it has come."""

    __slots__ = ("_done", "ballot", "deadline", "letter", "open", "over")

    def __init__(self, letter: Letter, ballot: Ballot, deadline: float) -> None:
        self.letter = letter
        self.ballot = ballot
        self.deadline = deadline
        self.open: set[int] = set()  # who has not answered
        self.over = False
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hear(self, place: int, replies: list[Any]) -> None:
        if not self.over:
            self.open.discard(place)
            self.ballot.hear(place, replies)
            self._look()

    def fail(self, place: int, error: Exception) -> None:
        if not self.over:
            self.open.discard(place)
            self.ballot.fail(place, error)
            self._look()

    def _look(self) -> None:
        if (self.ballot.decided or not self.open) and not self._done.done():
            self._done.set_result(None)

    async def wait(self) -> None:
        if not self.open or self.ballot.decided:
            self.over = True
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(max(0.0, self.deadline - now()), self._time_out)
        try:
            await self._done
        finally:
            self.over = True
            timer.cancel()

    def _time_out(self) -> None:
        for place in list(self.open):
            self.fail(place, NoAnswer("no answer in time"))


class LoopCouncil:
    """All nodes, as tasks reach them."""

    def __init__(self, members: Sequence[Member], settings: NodeSettings, patience: float) -> None:
        self.members = members
        self.settings = settings
        self._transport = LoopTransport(settings)
        self._patience = patience
        self._connecting: set[asyncio.Task[None]] = set()
        self._farewells: set[asyncio.Future[Any]] = set()

    async def ask(
        self,
        letter: Letter,
        ballot: Ballot,
        deadline: float,
        lane: int,
        places: Sequence[int] | None = None,
    ) -> None:
        round_ = Round(letter, ballot, deadline)
        if places is None:
            places = places_to_ask(self.members, ballot.quorum)
            for place in set(range(len(self.members))).difference(places):
                self._owe(letter, place)
                ballot.fail(place, self.members[place].absence)
        round_.open.update(places)
        connecting: dict[int, asyncio.Task[None]] = {}
        for place in places:
            link = self._link(place, lane)
            if link is not None:
                self._send(round_, place, link, letter.words(place, link))
            else:
                connecting[place] = self._connect(self._connected(round_, place, lane))
        await round_.wait()
        task = asyncio.current_task()
        if connecting and task is not None and task.cancelling():
            # The loop may be about to end, and nobody else would wait for these.
            await self._stop(connecting, lane)

    def _link(self, place: int, lane: int) -> Link | None:
        """A renewal takes the others' connection until it has its own: to make one takes several
        times as long as a node may take to answer."""
        links: list[Link | None] = self.members[place].links
        link = links[lane]
        if link is not None and link.usable:
            return link
        link = links[ORDINARY]
        if link is None or not link.usable:
            return None
        task = asyncio.current_task()
        if task is not None and not task.cancelling():  # else the loop may be about to end
            self._connect(self._prepared(place, lane))
        return link

    async def _prepared(self, place: int, lane: int) -> None:
        with contextlib.suppress(NotSent, NoAnswer, Misconfigured):
            await self._transport.link_of(self.members[place], lane, now() + CONNECT)

    def _connect(self, connecting: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(connecting)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return task

    async def _stop(self, connecting: dict[int, asyncio.Task[None]], lane: int) -> None:
        opening = [self.members[place].opening[lane] for place in connecting]
        tasks = [task for task in (*connecting.values(), *opening) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _connected(self, round_: Round, place: int, lane: int) -> None:
        member, letter = self.members[place], round_.letter
        try:
            link = await self._transport.link_of(member, lane, now() + self._patience)
        except (NotSent, NoAnswer, Misconfigured) as error:
            member.failed(error)
            self._owe(letter, place)
            round_.fail(place, error)
            return
        except BaseException:
            self._owe(letter, place)
            raise
        if round_.over:
            self._owe(letter, place)  # what is not wanted any more is not sent; a farewell is owed
        else:
            self._send(round_, place, link, letter.words(place, link))

    def _send(self, round_: Round, place: int, link: Link, data: bytes) -> None:
        letter, member = round_.letter, self.members[place]
        limit = now() + self._patience if round_.ballot.decided else round_.deadline
        try:
            for debt in member.due() if member.debts else ():
                self._pay(member, debt, link.request(debt.data, 1, limit))
                member.paid([debt])
            future = link.request(data, letter.count, limit)
        except NotSent as error:
            self._owe(letter, place)
            round_.fail(place, error)
            return
        if letter.receipts is not None:
            letter.receipts[place] = Sent(link, future)
        if letter.debt(place) is not None:
            self._farewells.add(future)
        future.add_done_callback(lambda future: self._answered(round_, place, link, future))

    @staticmethod
    def _pay(member: Member, debt: Debt, paid: asyncio.Future[Any]) -> None:
        def look(future: asyncio.Future[Any]) -> None:
            if future.cancelled() or future.exception() is not None:
                member.owe(debt)
            elif isinstance(refusal := future.result(), ReplyError):
                member.failed(refusal)
                member.owe(debt)

        paid.add_done_callback(look)

    def _answered(self, round_: Round, place: int, link: Link, future: asyncio.Future[Any]) -> None:
        letter = round_.letter
        self._farewells.discard(future)
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
            self._owe(letter, place)
            if isinstance(error, Exception):
                self.members[place].failed(error)
                round_.fail(place, error)
            link.retire()
            return
        replies = [future.result()] if letter.count == 1 else future.result()
        if any(map(unknown, replies)):
            if round_.over:
                self._owe(letter, place)
            else:
                self._send(round_, place, link, letter.spelled_out(place, link))
            return
        refusal = next((reply for reply in replies if isinstance(reply, ReplyError)), None)
        if refusal is not None and letter.debt(place) is not None:
            self.members[place].failed(refusal)
            self._owe(letter, place)
        round_.hear(place, replies)

    def _owe(self, letter: Letter, place: int) -> None:
        debt = letter.debt(place)
        if debt is not None:
            self.members[place].owe(debt)

    async def settle(self) -> None:
        if self._farewells:
            await asyncio.wait(self._farewells, timeout=self._patience)

    async def close(self) -> None:
        for task in list(self._connecting):
            task.cancel()
        if self._connecting:
            await asyncio.wait(self._connecting)
        await self._transport.close(list(self.members))
