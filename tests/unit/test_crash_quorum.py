"""The crash detector over a quorum, under random schedules, on a fake clock.

As `test_crash_model.py`, whose clients and troubles these are, with three nodes: the real link of
`redlock/presence.py`, its rule who is absent, and its inexact stamps. A claim is believed in while
a quorum has voted for it; nothing that somebody believes in may lose its quorum.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, cast

import pytest
from tests.unit import test_crash_model as model

from holdfast.backends.redis.wire import NoAnswer
from holdfast.backends.redlock.presence import AFTERWARDS, EXACTLY, Ends, RedlockLink, present
from holdfast.core.presence import Look, Suspect
from holdfast.errors import Unavailable
from holdfast.testing.world import Host, WorldPort
from holdfast.types import Busy, Claim, Grant, Lost, Released, Renewed, Unknown

pytestmark = pytest.mark.req("R23", "R34", "law 5")

NODES, QUORUM = 3, 2
PATIENCE = 0.3


class Connection(model.Connection):
    def __init__(self, presence: str, node: int) -> None:
        super().__init__(presence)
        self.node = node


class Nodes(model.Store):
    """Independent nodes; a vote is (client, claim, when it was last renewed, in milliseconds)."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__(dice)
        self.votes: list[dict[str, model.Held]] = [{} for _ in range(NODES)]

    def cuts(self, share: float) -> bool:
        return self.dice.random() < share

    @property
    def clock(self) -> int:
        return int(self.world.time * 1000)

    def has(self, owner: str) -> int:
        return sum(held.claim.owner == owner for votes in self.votes for held in votes.values())

    def vote(self, node: int, client: model.Client, claim: Claim) -> bool:
        held = self.votes[node].setdefault(claim.name, model.Held(client, claim, self.clock))
        return held.claim.owner == claim.owner

    def prolong(self, node: int, claim: Claim) -> bool:
        held = self.votes[node].get(claim.name)
        if held is None or held.claim.owner != claim.owner:
            return False
        held.stamp = self.clock
        return True

    def unvote(self, node: int, claim: Claim) -> bool:
        held = self.votes[node].get(claim.name)
        if held is not None and held.claim.owner == claim.owner:
            del self.votes[node][claim.name]
        return True

    def reap(self, node: int, suspect: Suspect) -> bool:
        held = self.votes[node].get(suspect.name)
        seen = suspect.stamp.by_place.get(node, 0)
        if held is None or held.claim.owner != suspect.token or abs(held.stamp - seen) > EXACTLY:
            return False
        client, owner, now = held.client, held.claim.owner, self.world.time
        before = self.has(owner)
        del self.votes[node][suspect.name]
        self.freed += 1
        if before >= QUORUM > before - 1:
            if client.certain.get(owner, -math.inf) > now:
                self.wrong.append(f"{now:.3f}: {suspect.name} is freed, {client.name} held it")
            elif owner in client.certain and not client.stood_still(now):
                self.wrong.append(f"{now:.3f}: {suspect.name} is freed, {client.name} not told")
        return True


class Ear:
    """One connection of a link."""

    def __init__(self, store: Nodes, host: Host, connection: Connection) -> None:
        self._store, self._host, self._connection = store, host, connection

    async def request(self, data: bytes, count: int, deadline: float) -> Any:
        def touch() -> None:
            if not self._connection.alive:
                raise Unavailable("cut")

        try:
            touch()
            await self._store.ask(self._host, touch, deadline)
        except Unavailable as error:
            raise NoAnswer(str(error)) from None
        return [data.split(b"\r\n")[4], 0]

    def cut(self) -> None:
        self._connection.alive = False

    close = cut


class Member:
    def failed(self, error: Exception) -> None:
        pass


class Inner(model.Inner):
    """Nodes are asked one after the other: slower than all at once, and as far apart."""

    _store: Nodes

    async def _all(self, request: Any, deadline: float) -> list[Any]:
        answers: list[Any] = []
        for node in range(NODES):
            limit = min(deadline, self._port.now() + PATIENCE)
            try:
                answers.append(await self._ask(partial(request, node), limit))
            except Unavailable:
                answers.append(None)
        return answers

    async def attempt(self, claim: Claim, queue: bool, deadline: float) -> Grant | Busy | Unknown:
        sent, store, client = self._port.now(), self._store, self._client
        votes = await self._all(lambda node: store.vote(node, client, claim), deadline)
        if votes.count(True) >= QUORUM:
            return Grant(claim, sent + claim.ttl)
        return Unknown("too few votes")  # and it is withdrawn

    async def renew(
        self, grants: Sequence[Grant], deadline: float
    ) -> list[Renewed | Lost | Unknown]:
        results: list[Renewed | Lost | Unknown] = []
        for grant in grants:
            sent = self._port.now()
            claim = grant.claim
            said = await self._all(
                lambda node, claim=claim: self._store.prolong(node, claim), deadline
            )
            if said.count(True) >= QUORUM:
                results.append(Renewed(sent + model.TTL))
            elif said.count(False) >= QUORUM:
                results.append(Lost("gone"))
            else:
                results.append(Unknown("too few answers"))
        return results

    async def withdraw(self, claim: Claim, tombstone: bool, deadline: float) -> Released | Unknown:
        said = await self._all(lambda node: self._store.unvote(node, claim), deadline)
        return Released() if said.count(True) >= QUORUM else Unknown("too few answers")

    async def appear(self, presence: str, deadline: float) -> Any:
        members: dict[Any, Any] = {}
        for node in range(NODES):

            def connect(node: int = node) -> Connection:
                connection = Connection(presence, node)
                self._store.connections.append(connection)
                return connection

            try:
                made = await self._ask(connect, min(deadline, self._port.now() + PATIENCE))
            except Unavailable:
                continue
            members[Member()] = Ear(self._store, self._client.host, made)
        if len(members) < QUORUM:
            for ear in members.values():
                ear.close()
            raise Unavailable("too few nodes")
        return RedlockLink(cast(Any, self._port), NODES, members, "key", PATIENCE)


class Client(model.Client):
    inner = Inner

    def check(self) -> None:
        """What it believes to hold has a quorum."""
        store = cast(Nodes, self.store)
        now = store.world.time
        for owner, until in self.certain.items():
            if until > now and self.host.running and store.has(owner) < QUORUM:
                store.wrong.append(f"{now:.3f}: {owner} has no quorum, {self.name} believes in it")


class Roll:
    complete = True

    def __init__(self, store: Nodes, host: Host) -> None:
        self._store, self._host = store, host
        self._port = WorldPort(host)
        self._searched = 0.0

    async def _all(self, request: Any, deadline: float) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        for node in self._store.dice.sample(range(NODES), NODES):
            try:
                answers[node] = await self._store.ask(
                    self._host, partial(request, node), self._port.now() + PATIENCE
                )
            except Unavailable:
                pass
        return answers

    async def look(self, deadline: float) -> Look:
        await self._port.sleep(max(0.0, self._searched + AFTERWARDS - self._port.now()))
        links = self._store.connections
        answers = await self._all(
            lambda node: {
                c.presence for c in links if c.alive and cast(Connection, c).node == node
            },
            deadline,
        )
        if len(answers) < QUORUM:
            raise Unavailable("too few nodes answered")
        return Look("these nodes", present(list(answers.values()), QUORUM))

    async def claims(self, here: Collection[str], deadline: float) -> list[Suspect]:
        store = self._store
        found: dict[tuple[str, str], Suspect] = {}
        read = await self._all(
            lambda node: [
                (name, held.client.presence, held.claim.owner, held.stamp)
                for name, held in store.votes[node].items()
            ],
            deadline,
        )
        for node, votes in read.items():
            for name, presence, owner, stamp in votes:
                if presence not in here:
                    suspect = found.setdefault(
                        (name, owner), Suspect(name, presence, owner, {}, Ends(), owner)
                    )
                    suspect.stamp.by_place[node] = stamp + store.dice.choice((-1, 0, 1))
        self._searched = self._port.now()
        return list(found.values())

    async def free(self, suspects: Sequence[Suspect], deadline: float) -> list[bool | None]:
        dice = self._store.dice
        if dice.random() < 0.3:  # stopped between the look and this
            await self._port.sleep(dice.random() * 3)
        said = await self._all(
            lambda node: [self._store.reap(node, suspect) for suspect in suspects], deadline
        )
        if not said:
            return [None] * len(suspects)
        return [any(freed) for freed in zip(*said.values(), strict=True)]

    async def close(self) -> None: ...


def test_nothing_loses_its_quorum_that_somebody_believes_to_hold() -> None:
    freed = 0
    for seed in range(30):
        store = model.play(seed, 25, kinds=(Nodes, Client, Roll))
        assert store.wrong == [], f"seed {seed}"
        freed += store.freed
    assert freed > 20, "nothing was tried"
