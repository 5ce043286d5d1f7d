"""The blocking half: all nodes are asked at once by one thread, without a thread for each.

Contract: a crew is one connection to each node, used by one thread at a time. A letter is written
to every socket, then all are polled with one deadline, until the ballot is decided. Whoever has not
answered by then is not waited for: its reply is skipped when the crew is used again, and its
connection is given up if it has then been silent for longer than a node may be. Nothing here
suspends. Taking a crew is one atomic `deque.pop`, and so is giving it back; what is interrupted
closes its crew. Partners: `wires.py`; `loops.py` is the same for asyncio.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Sequence

from holdfast.backends.quiet import milliseconds
from holdfast.backends.redis.wire import NoAnswer, NotSent
from holdfast.backends.redlock.ballot import Ballot
from holdfast.backends.redlock.letters import Letter
from holdfast.backends.redlock.nodes import Member, NodeSettings, places_to_ask
from holdfast.backends.redlock.wires import DEAD, READY, Wire
from holdfast.ports.clock import now

__all__ = ["ThreadCouncil"]

IN, IN_OUT = select.POLLIN, select.POLLIN | select.POLLOUT

MOST_IDLE = 8
"""So many crews are kept for later."""

UNSEEN = 0.005
"""Seconds after which a crew is looked after before it is used: until then what came late is read
with the next answers, and who died costs a vote."""

CONNECT = 1.0
"""Seconds in which a connection is made, or given up."""


class Crew:
    def __init__(self, members: Sequence[Member], settings: NodeSettings, patience: float) -> None:
        self._members = members
        self._settings = settings
        self._patience = patience
        self._wires: list[Wire | None] = [None] * len(members)
        self._by_fd: dict[int, Wire] = {}
        self._poll = select.poll()
        self._looked = 0.0  # when it was last looked after

    def ask(
        self, letter: Letter, ballot: Ballot, places: Sequence[int] | None, deadline: float
    ) -> None:
        """Until the ballot is decided, everybody has answered, or the deadline."""
        moment = now()
        if moment - self._looked > UNSEEN:
            self._look_around(moment)
        if places is None:
            places = places_to_ask(self._members, ballot.quorum)
            if len(places) < len(self._members):
                self._pass_over(places, letter, ballot)
        waiting = 0
        for place in places:
            wire = self._wires[place]
            if wire is not None:
                wire.post(letter)
                if wire.state == DEAD:  # it had died in the pool, and the letter with it
                    self._drop(wire)
                    wire = None
            if wire is None:
                wire = self._begin(place, letter, ballot)
                if wire is None:
                    continue
            if wire.out and not wire.polled_out:
                self._poll_for(wire)
            waiting += 1
        poll, by_fd = self._poll.poll, self._by_fd
        while waiting and not ballot.decided:
            ready = poll(milliseconds(deadline))
            late = now() >= deadline
            for fd, _ in ready:
                wire = by_fd[fd]
                self._pump(wire)
                if wire.waited_for and (wire.answered or wire.state == DEAD):
                    waiting -= self._settle(wire, letter, ballot)
            if late:  # what has come is read; a node may go on for ever
                break
        if waiting:
            self._give_up(ballot)

    def _pass_over(self, places: Sequence[int], letter: Letter, ballot: Ballot) -> None:
        for place in set(range(len(self._members))).difference(places):
            member = self._members[place]
            debt = letter.debt(place)
            if debt is not None:
                member.owe(debt)
            ballot.fail(place, member.absence)

    def _begin(self, place: int, letter: Letter, ballot: Ballot) -> Wire | None:
        """Begin to connect, and leave the letter there."""
        member = self._members[place]
        try:
            wire = Wire(member, place, self._settings)
        except OSError as error:
            member.failed(NotSent(f"could not connect: {error}"))
            self._pass_over([p for p in range(len(self._members)) if p != place], letter, ballot)
            return None
        self._wires[place] = wire
        self._by_fd[wire.fd] = wire
        self._poll.register(wire.fd, IN_OUT)
        wire.post(letter)
        return wire

    def _pump(self, wire: Wire) -> None:
        wire.pump()
        if wire.state == DEAD:
            self._drop(wire)
        elif wire.polled_out or wire.out:
            self._poll_for(wire)

    def _poll_for(self, wire: Wire) -> None:
        """What it waits for now."""
        if wire.polled_out != wire.writes:
            wire.polled_out = wire.writes
            self._poll.modify(wire.fd, IN_OUT if wire.polled_out else IN)

    def _settle(self, wire: Wire, letter: Letter, ballot: Ballot) -> bool:
        """Whether it need not be waited for any more."""
        if wire.state == DEAD:
            error = wire.error or NoAnswer("the connection broke")
            if isinstance(error, NoAnswer) and not wire.reached:
                error = NotSent(str(error))
            wire.forget()
            ballot.fail(wire.place, error)
            return True
        if wire.spell_out(letter):
            return False
        wire.waited_for = False
        ballot.hear(wire.place, wire.fresh)
        return True

    def _look_around(self, moment: float) -> None:
        """What came since the crew was last used, and who has been silent for too long."""
        self._looked = moment
        for fd, _ in self._poll.poll(0):
            self._pump(self._by_fd[fd])
        for wire in list(self._by_fd.values()):
            if wire.state != READY:
                limit = max(CONNECT, self._patience)
            elif wire.owed:
                limit = self._patience
            else:
                continue
            if moment - wire.since > limit:
                wire.die(NoAnswer("it is silent"))
                self._drop(wire)

    def _give_up(self, ballot: Ballot) -> None:
        """On whoever has not answered yet. One that is late may be a black hole, and is not used
        again; one that was only slower than the others is."""
        late = not ballot.decided
        for wire in list(self._by_fd.values()):
            if not wire.waited_for:
                continue
            reached = wire.reached
            wire.forget()
            if not late:
                continue
            ballot.fail(wire.place, (NoAnswer if reached else NotSent)("no answer in time"))
            if reached:
                wire.die(NoAnswer("it is silent"))
                self._drop(wire)
            else:
                wire.node.failed(NotSent("no connection in time"))

    def _drop(self, wire: Wire) -> None:
        self._wires[wire.place] = None
        if self._by_fd.pop(wire.fd, None) is not None:
            self._poll.unregister(wire.fd)

    def settle(self, deadline: float) -> None:
        """Let what was said arrive, if it does soon. **Hazard**: a connection that is closed before
        an answer was read is reset, and takes along what its node has not read."""
        while any(wire.owed for wire in self._by_fd.values()):
            for fd, _ in self._poll.poll(milliseconds(deadline)):
                self._pump(self._by_fd[fd])
            if now() >= deadline:
                break

    def close(self) -> None:
        """At once. What is owed on its wires is owed to their nodes."""
        for wire in list(self._by_fd.values()):
            wire.die(NoAnswer("the connection was closed"), blame=False)
            self._drop(wire)


class ThreadCouncil:
    """All nodes, as threads reach them."""

    def __init__(self, members: Sequence[Member], settings: NodeSettings, patience: float) -> None:
        self.members = members
        self.settings = settings
        self._patience = patience
        self._free: deque[Crew] = deque()

    async def ask(
        self,
        letter: Letter,
        ballot: Ballot,
        deadline: float,
        lane: int,
        places: Sequence[int] | None = None,
    ) -> None:
        try:
            crew = self._free.pop()
        except IndexError:
            crew = Crew(self.members, self.settings, self._patience)
        try:
            crew.ask(letter, ballot, places, deadline)
            if len(self._free) < MOST_IDLE:
                self._free.append(crew)
                return
        except BaseException:
            crew.close()
            raise
        crew.settle(now() + self._patience)
        crew.close()

    async def settle(self) -> None:
        deadline = now() + self._patience
        for _ in range(len(self._free)):
            try:
                crew = self._free.pop()
            except IndexError:  # another thread was quicker
                return
            try:
                crew.settle(deadline)
            except BaseException:
                crew.close()
                raise
            self._free.appendleft(crew)

    async def close(self) -> None:
        while self._free:
            try:
                self._free.pop().close()
            except IndexError:
                break
