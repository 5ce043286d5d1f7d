"""The redlock backend: a claim holds when a quorum of independent masters votes for it.

Contract: `core/backend.py`, exclusive claims only. What the nodes answer is counted in `ballot.py`;
the clock starts before the first byte leaves (law 1), and validity is what is left of the ttl when
the last step is done, less the drift. An attempt that fails is undone at every node, also at those
that refused it or did not answer. Which nodes may count is said in `quarantine.py`, and why tokens
grow in docs/concepts/redlock.md. Waiting is done in the lobby of `backends/redis`: releases are
announced on every node, and one of them is listened to.
Partners: `council.py` asks all nodes at once; `letters.py` spells; `scripts/*.lua`, a node's half.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence

from holdfast.backends.common import NoCells, holder_of
from holdfast.backends.redis.lobby import Lobby, Sight
from holdfast.backends.redis.transport import ORDINARY, RENEWALS
from holdfast.backends.redlock import overview
from holdfast.backends.redlock.ballot import (
    Ballot,
    Batch,
    Commit,
    Heard,
    Nobody,
    Tally,
    Votes,
    explain,
)
from holdfast.backends.redlock.letters import Sheet, Writer
from holdfast.backends.redlock.payer import Payer
from holdfast.backends.redlock.presence import RedlockRoll, appear
from holdfast.backends.redlock.setting import Setting
from holdfast.core.backend import Signals
from holdfast.core.lease import valid_until
from holdfast.core.port import Port
from holdfast.core.presence import Link, Roll
from holdfast.errors import Misconfigured, Unavailable
from holdfast.types import (
    AlreadyLost,
    Buried,
    Busy,
    Capabilities,
    Claim,
    Grant,
    LockInfo,
    Lost,
    Mode,
    Released,
    Renewed,
    Unknown,
)

__all__ = ["Backend"]

RELEASED = Released()

COURTESY = 0.05
"""Seconds that nodes have at least, or `node_timeout` if that is less."""

AT_ONCE = 100
"""Renewals in one letter for which a node has as much time as for one, and once more."""

LOOKS = 4
"""So often a waiter that was called looks again, after pauses that grow, before it trusts that
there will be another call."""

NOT_OURS = "a quorum of the nodes has it no longer: it expired, was evicted, or they forgot it"

WHY_NOT = (
    "one quorum excludes another, and that is all it does: two readers would each need a majority "
    "that the other has, and permits counted by different majorities add up to more than there are"
)


class Backend(NoCells):
    no_cells = (
        "redlock:// keeps no values, and so has no once, latch or barrier: a value needs one "
        "place whose word counts. Use redis://, etcd:// or another store for them"
    )

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._sheets: dict[str, Sheet] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            modes=frozenset({Mode.EXCLUSIVE}),
            fairness="best effort",
            fencing=frozenset({Mode.EXCLUSIVE}) if self._setting.fencing else frozenset(),
            crash_release="ttl",
            failover=(
                "nothing while a majority of the nodes keeps its memory, or sits out max_ttl after "
                "losing it (quarantine), and the nodes' clocks run alike; otherwise two may hold "
                "at once until the old lease ends"
                + (", and the tokens still tell them apart" if self._setting.fencing else "")
            ),
            cells=False,
            inspection=False,
            why_not=WHY_NOT,
        )

    def open(self, port: Port, signals: Signals) -> None:
        setting = self._setting
        self._port = port
        self._council = council = setting.council(port.asynchronous)
        self._members = members = council.members
        self._writer = writer = Writer(setting.prefix, setting.fencing, setting.memory)
        self._names = [str(member) for member in members]
        self._payer = Payer(port, council, setting.patience)
        own = f"{setting.prefix}:call:{secrets.token_hex(8)}"
        self._ears = setting.ears(council, port.asynchronous)
        self._room = self._ears.room(port, own, setting.heartbeat)
        self._lobby = Lobby(port, self._room, writer.channel, setting.heartbeat, setting.poll)

    async def close(self) -> None:
        self._lobby.close()
        self._room.close()
        await self._room.emptied(self._port.now() + 1)
        await self._payer.close()
        await self._council.close()
        await self._ears.close()

    # -- taking -----------------------------------------------------------------------------------

    async def attempt(
        self, claim: Claim, queue: bool, deadline: float
    ) -> Grant | Busy | Buried | Unknown:
        setting, port = self._setting, self._port
        if claim.ttl > setting.max_ttl:
            raise Misconfigured(
                f"ttl={claim.ttl:g} is longer than max_ttl={setting.max_ttl:g}: a node that "
                "restarts sits out max_ttl, so that no lease can be older. Give every client of "
                "these nodes the same, larger max_ttl, or use a shorter lease, which is renewed"
            )
        sheet = self._sheets.get(claim.owner)
        if sheet is not None and sheet.grant is not None:
            same = await self._again(sheet, sheet.grant, deadline)
            if same is not None:
                return same
            sheet = None
        if sheet is None:
            sheet = self._sheets[claim.owner] = Sheet(claim, len(self._members))
        heard = self._lobby.asks(claim)
        tries = 0
        while True:
            sent = port.now()
            votes = Votes(len(self._members), self._counting(sent))
            letter = self._writer.attempt(sheet)
            await self._council.ask(letter, votes, self._limit(sent, deadline), ORDINARY)
            ballot: Votes | Commit = votes
            if votes.won:
                if not setting.fencing or self._until(claim, sent) <= port.now():
                    return self._granted(sheet, sent, None)  # or it is over before it began
                ballot = commit = Commit(len(self._members), frozenset(votes.voters))
                token = votes.token
                letter = self._writer.commit(sheet, token)
                limit = self._limit(port.now(), deadline)
                await self._council.ask(letter, commit, limit, ORDINARY)
                if commit.held:
                    return self._granted(sheet, sent, token)
            await self._undo(sheet)
            if votes.buried:
                self._forget(claim)
                return Buried()
            took = port.now() - sent
            again = ballot.answered and not votes.taken and tries < setting.retries
            if not (again and await self._pause(took, tries, deadline)):
                if not queue:
                    self._forget(claim)  # nothing of it is left, and nobody need withdraw it
                return self._refused(sheet, votes, ballot, heard, took)
            tries += 1

    def _limit(self, sent: float, deadline: float) -> float:
        """However short the caller's patience, nodes have a moment to answer: else a busy lock is
        called unavailable, and connections are given up that are only slower than that."""
        return min(max(deadline, sent + COURTESY), sent + self._setting.patience)

    def _counting(self, sent: float) -> Callable[[int], bool]:
        """Whose votes count that were asked for then; known when they have answered."""
        members = self._members
        return lambda place: members[place].memory.counts(sent)

    async def _again(self, sheet: Sheet, grant: Grant, deadline: float) -> Grant | Unknown | None:
        """Asking twice is asking once, as long as it lasts (law 2). What is over is asked for anew:
        somebody may have had it in between, with a larger token."""
        [result] = await self.renew([grant], deadline)
        if isinstance(result, Renewed) and self._port.now() < grant.until:
            return sheet.grant
        if isinstance(result, Renewed):
            await self._undo(sheet)
        return result if isinstance(result, Unknown) else None

    def _granted(self, sheet: Sheet, sent: float, token: int | None) -> Grant:
        claim = sheet.claim
        grant = Grant(claim, self._until(claim, sent), token)
        sheet.held, sheet.grant = True, grant
        self._lobby.granted(claim, grant.until)
        return grant

    def _until(self, claim: Claim, sent: float) -> float:
        return valid_until(sent, claim.ttl, self._setting.drift)

    async def _undo(self, sheet: Sheet) -> None:
        """It did not come to a grant: no node keeps a vote for it, whatever it has said."""
        until = self._port.now() + sheet.claim.ttl
        letter = self._writer.leave(sheet, until, tombstone=False).unheard()
        await self._council.ask(letter, Nobody(len(self._members)), until, ORDINARY)
        sheet.next_round()

    async def _pause(self, took: float, tries: int, deadline: float) -> bool:
        """Votes were split: come back when the others have, or have not (R35)."""
        port = self._port
        longest = min(max(4 * took, 0.002) * 2**tries, self._setting.patience)
        seconds = longest * port.random()
        if port.now() + seconds + took >= deadline:
            return False
        await port.sleep(seconds)
        return True

    def _refused(
        self, sheet: Sheet, votes: Votes, last: Votes | Commit, heard: int, took: float
    ) -> Busy | Unknown:
        """`last`: the votes, or what became of the token of those who won them."""
        claim, now = sheet.claim, self._port.now()
        if last.answered:
            ends = now + votes.remaining / 1e3 if votes.remaining >= 0 else math.inf
            # The node we listen to may be the first to free it, and the others only about to.
            sheet.looks = 0 if heard != sheet.heard else sheet.looks + 1
            sheet.heard = heard
            sight = Sight(took, heard, ends, votes.taken and sheet.looks >= LOOKS)
            return Busy(holder_of(votes.info), None, sight)
        self._lobby.failed(claim)
        if error := last.hopeless(self._names):
            self._forget(claim)
            raise error
        reason = self._shortage(votes, last, now)
        if last.unsent:
            self._forget(claim)
            raise Unavailable(reason)
        return Unknown(reason)

    def _shortage(self, votes: Votes, last: Ballot, now: float) -> str:
        reason = (
            f"{votes.yes} of {votes.nodes} nodes voted for it, and {votes.quorum} are needed"
            if not votes.won
            else f"too few of the {votes.nodes} nodes have written its token down"
        )
        if last.failures:
            reason += f" ({explain(last.failures, self._names)})"
        if votes.shy:
            waits = max(self._members[place].memory.remaining(now) for place in votes.shy)
            who = ", ".join(self._names[place] for place in votes.shy)
            reason += (
                f". Quarantined: {who}. They were started, or restarted, less than max_ttl="
                f"{self._setting.max_ttl:g} s ago and may have forgotten a lock that is still "
                f"held, so they count again in {waits:.0f} s. If these nodes are new and nobody "
                "can hold anything, connect with quarantine=off this once"
            )
        return reason

    async def wait(self, claim: Claim, busy: Busy, deadline: float) -> None:
        await self._lobby.wait(claim, busy.token, deadline)

    # -- giving up --------------------------------------------------------------------------------

    def _forget(self, claim: Claim) -> None:
        self._sheets.pop(claim.owner, None)

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        self._lobby.leave(claim)
        ballot = Heard(len(self._members))
        await self._leave(claim, tombstone, ballot, deadline)
        if not ballot.answered:
            return Unknown(explain(ballot.failures, self._names))
        self._forget(claim)
        return RELEASED

    async def release(
        self, grant: Grant, tombstone: bool, deadline: float
    ) -> Released | AlreadyLost | Unknown:
        ballot = Tally(len(self._members))
        await self._leave(grant.claim, tombstone, ballot, deadline)
        if not ballot.answered:
            return Unknown(explain(ballot.failures, self._names))
        self._forget(grant.claim)
        return AlreadyLost(NOT_OURS) if ballot.lost else RELEASED

    async def _leave(self, claim: Claim, tombstone: bool, ballot: Ballot, deadline: float) -> None:
        port = self._port
        sheet = self._sheets.get(claim.owner)
        known = sheet is not None
        if sheet is None:
            sheet = Sheet(claim, len(self._members))
            sheet.held = True  # for all we know
        with port.mutex():
            sheet.left = True  # nothing is installed from now on
            tombstone = tombstone or sheet.installing
        now = port.now()
        letter = self._writer.leave(sheet, now + claim.ttl, tombstone=tombstone, sent=known)
        await self._council.ask(
            letter, ballot, min(deadline, now + self._setting.patience), ORDINARY
        )

    # -- keeping ----------------------------------------------------------------------------------

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> Sequence[Renewed | Lost | Unknown]:
        nodes = len(self._members)
        sheets = [
            self._sheets.get(grant.claim.owner) or Sheet(grant.claim, nodes) for grant in grants
        ]
        sent = self._port.now()
        ballot = Batch(nodes, len(grants), self._counting(sent))
        limit = min(deadline, sent + self._setting.patience * (1 + len(grants) / AT_ONCE))
        await self._council.ask(self._writer.renew(sheets, grants), ballot, limit, RENEWALS)
        results: list[Renewed | Lost | Unknown] = []
        missing: dict[int, list[Sheet]] = {}  # by the nodes that have forgotten them
        for grant, sheet, tally, forgot in zip(
            grants, sheets, ballot.tallies, ballot.forgot, strict=True
        ):
            if tally.held:
                for place in forgot:
                    missing.setdefault(place, []).append(sheet)
                until = self._until(grant.claim, sent)
                sheet.grant = Grant(grant.claim, until, grant.fence)
                results.append(Renewed(until))
            elif tally.lost:
                await self._undo(sheet)  # a minority may still have it, and the core will not ask
                self._forget(grant.claim)
                results.append(Lost(NOT_OURS))
            else:
                results.append(Unknown(explain(ballot.failures, self._names)))
        for place, forgotten in missing.items():
            await self._install(place, forgotten)
        return results

    async def _install(self, place: int, sheets: Sequence[Sheet]) -> None:
        """This node has forgotten them, or never heard of them; a quorum has just confirmed them.
        Not what is being released: then a tombstone would be too late for it."""
        with self._port.mutex():
            known = self._sheets
            sheets = [one for one in sheets if not one.left and one.claim.owner in known]
            for sheet in sheets:
                sheet.installing = True
        if sheets:
            letter, ballot = self._writer.install(sheets), Nobody(len(self._members))
            await self._council.ask(letter, ballot, self._port.now(), RENEWALS, [place])

    # -- operators --------------------------------------------------------------------------------

    async def inspect(self, prefix: str, exact: bool, deadline: float) -> list[LockInfo]:
        return await overview.inspect(self._council, self._writer, prefix, exact, deadline)

    async def evict(self, name: str, deadline: float) -> int:
        ballot = await overview.ask_everybody(self._council, self._writer.evict(name), deadline)
        return int(any(replies[0] for replies in ballot.answers.values()))

    # -- for the crash detector -------------------------------------------------------------------

    async def appear(self, presence: str, deadline: float) -> Link:
        key, patience = self._writer.keys.lock(f"{presence} 0"), self._setting.patience
        return await appear(
            self._port, self._ears, self._council, key, patience, presence, deadline
        )

    def roll(self) -> Roll:
        return RedlockRoll(self._port, self._council, self._writer, self._setting.patience)
