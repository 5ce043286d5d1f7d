"""Redlock's rules as a model, searched exhaustively: is there any order of events that breaks them?

Contract: three nodes, a few clients that each acquire once and may renew, and an adversary who
decides about everything else: which message arrives when (late, in any order, or never), how long
anybody pauses, when a node restarts with or without its memory, when a vote ends early (somebody
evicts the lock, or a node's clock is stepped), and how far the nodes' clocks are apart. Time is
counted in ticks; any number of events fits into one. What a client does between two events takes no
time: a pause before it is the same as messages that arrive later. What arrives for a client that
holds already, or has failed, is left out: a vote or a token that nobody counts can only make others
fail. Nodes whose clocks agree are alike, and so are clients: what differs only in their names is
one state.

Checked in every state:

- *exclusion*: no two leases at the same time. Only without votes that end early: no lock keeps that
  promise when an operator takes it away.
- *fencing*: no two grants have the same token; and who began after another was granted has a larger
  one, whatever has happened.

Each rule can be taken out, and must then be missed: `tests/model/test_redlock.py`. The rules
are those of `backends/redlock`: `ballot.py` (quorum, token), `quarantine.py`, `scripts/*.lua`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

__all__ = ["Rules", "Violation", "World", "search"]

QUORUM = 2  # of three nodes
TTL = 2
QUARANTINE = 3  # longer than a lease, and than the clocks are apart (and so much more, if `longer`)

IDLE, ASKING, WRITING, HOLDING, OVER = range(5)
ATTEMPT, COMMIT, LEAVE = 1, 2, 4  # messages of a client that are under way to a node
VOTED = 8  # and whether its vote was counted
RENEW, INSTALL = 16, 32
FORGOT = 64  # it has said that it does not vote for the client


@dataclass(frozen=True)
class Rules:
    floor: bool = True
    """A token is not smaller than the latest clock of those who vote."""
    owner: bool = True
    """A token is written only where the writer still has the vote."""
    quarantine: bool = True
    """A node that restarted does not count for a while."""
    voters: bool = True
    """Only who voted before the token was chosen counts when it is written."""
    renewals: bool = True
    """Quarantine is for renewals, too."""


@dataclass(frozen=True)
class World:
    clients: int = 2
    ends: int = 5
    """The last tick."""
    crashes: int = 0
    """How many restarts that lose the memory."""
    restarts: int = 0
    """How many that do not."""
    drops: int = 0
    """How many votes end early."""
    skew: tuple[int, int, int] = (0, 0, 0)
    """How far each node's clock is ahead."""
    renewals: int = 0
    """How many of them."""
    longer: int = 0
    """How much longer the leases of all clients but the first are."""
    fenced: bool = True
    """Whether tokens are given out."""

    def ttl(self, number: int) -> int:
        return TTL + (self.longer if number else 0)


class Node(NamedTuple):
    skew: int
    owner: int = -1  # whom it votes for
    expires: int = 0
    token: int = 0
    counts_at: int = 0
    mail: tuple[int, ...] = ()  # for each client, what is under way


class Client(NamedTuple):
    phase: int = IDLE
    sent: int = 0
    votes: int = 0  # while asking; then, who has written the token down
    largest: int = 0
    latest: int = 0
    token: int = 0
    granted: bool = False
    above: int = 0  # the largest token of those who had been granted when it began
    renews: int = -1  # since when a renewal is under way


class State(NamedTuple):
    now: int
    nodes: tuple[Node, ...]  # sorted
    clients: tuple[Client, ...]
    crashes: int
    restarts: int
    drops: int
    renewals: int


class Violation(NamedTuple):
    what: str
    trace: list[str]


Event = tuple[str, State]


def search(world: World, rules: Rules) -> tuple[int, Violation | None]:
    """How many states there are, and the first violation found, by the fewest events."""
    nothing = (0,) * world.clients
    nodes = tuple(sorted(Node(skew, mail=nothing) for skew in world.skew))
    first = State(
        0, nodes, (Client(),) * world.clients, world.crashes, world.restarts, world.drops,
        world.renewals,
    )  # fmt: skip
    came: dict[State, tuple[State, str] | None] = {first: None}
    layer = [first]
    while layer:
        following: list[State] = []
        for state in layer:
            for event, after in events(state, world, rules):
                if after in came:
                    continue
                came[after] = state, event
                what = broken(after, world)
                if what:
                    return len(came), Violation(what, _trace(came, after))
                following.append(after)
        layer = following
    return len(came), None


def _trace(came: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    happened: list[str] = []
    while (step := came[state]) is not None:
        before, event = step
        happened.append(f"at {before.now}: {event}")
        state = before
    return happened[::-1]


def broken(state: State, world: World) -> str:
    tokens: set[int] = set()
    holding = 0
    for number, client in enumerate(state.clients):
        if client.granted and world.fenced:
            if client.token in tokens:
                return f"two clients have the same token {client.token}"
            tokens.add(client.token)
            if client.token <= client.above:
                return (
                    f"client {number} began when the token {client.above} had been given out, and "
                    f"has {client.token}"
                )
        holding += client.phase == HOLDING
    if holding > 1 and not world.drops:
        return "two hold at the same time"
    return ""


def events(state: State, world: World, rules: Rules) -> Iterator[Event]:
    if state.now < world.ends and state.clients[0].phase != IDLE:  # nothing happens before
        yield "a tick", _tick(state, world)
    for number, client in enumerate(state.clients):
        if client.phase == IDLE:
            if number == 0 or state.clients[number - 1].phase != IDLE:  # the lower number first
                yield _begin(state, number)
        elif client.phase == HOLDING:
            yield _release(state, number, client)
            if state.renewals and client.renews < 0:
                yield _renew(state, number, client)
    for place, node in enumerate(state.nodes):
        for number, mail in enumerate(node.mail):
            if mail & ATTEMPT:
                yield _attempt(state, place, node, number, rules, world)
            elif mail & COMMIT:
                yield _commit(state, place, node, number, rules)
            if mail & LEAVE:
                yield _leave(state, place, node, number)
            if mail & RENEW:
                yield _renewed(state, place, node, number, rules, world)
            if mail & INSTALL:
                yield _install(state, place, node, number, world)
        yield from _misfortunes(state, place, node, rules, world)


def _tick(state: State, world: World) -> State:
    """And what is over by then is cleared away: less to tell states apart by."""
    now = state.now + 1
    nodes, clients = state.nodes, state.clients
    for number, client in enumerate(clients):
        if client.phase in (ASKING, WRITING, HOLDING) and now >= client.sent + world.ttl(number):
            clients = _put(clients, number, _ended(client))
            nodes = _mail(nodes, number, 0)
    nodes = tuple(
        Node(
            node.skew,
            node.owner if now < node.expires else -1,
            node.expires if now < node.expires else 0,
            node.token,
            node.counts_at if now < node.counts_at else 0,
            node.mail,
        )
        for node in nodes
    )
    return state._replace(now=now, clients=clients, nodes=tuple(sorted(nodes)))


def _begin(state: State, number: int) -> Event:
    above = max(other.token if other.granted else 0 for other in state.clients)
    client = Client(ASKING, sent=state.now, above=above)
    return f"client {number} begins", _with(
        state, _mail(state.nodes, number, ATTEMPT), _put(state.clients, number, client)
    )


def _release(state: State, number: int, client: Client) -> Event:
    nodes = tuple(
        node._replace(mail=_put(node.mail, number, LEAVE if node.owner == number else 0))
        for node in state.nodes
    )
    return f"client {number} releases", _with(
        state, nodes, _put(state.clients, number, _ended(client))
    )


def _misfortunes(
    state: State, place: int, node: Node, rules: Rules, world: World
) -> Iterator[Event]:
    counts_at = state.now + QUARANTINE + world.longer if rules.quarantine else 0
    if state.crashes and (node.owner >= 0 or node.token):
        new = Node(node.skew, counts_at=counts_at, mail=node.mail)
        after = _with(state, _put(state.nodes, place, new), state.clients)
        yield f"{_name(node)} forgets everything", after._replace(crashes=state.crashes - 1)
    if state.restarts:
        new = node._replace(counts_at=counts_at)
        after = _with(state, _put(state.nodes, place, new), state.clients)
        yield f"{_name(node)} restarts", after._replace(restarts=state.restarts - 1)
    if state.drops and node.owner >= 0:
        new = node._replace(owner=-1, expires=0)
        after = _with(state, _put(state.nodes, place, new), state.clients)
        yield f"the vote of {_name(node)} ends early", after._replace(drops=state.drops - 1)


def _renew(state: State, number: int, client: Client) -> Event:
    nodes = tuple(
        node._replace(mail=_put(node.mail, number, node.mail[number] & INSTALL | RENEW))
        for node in state.nodes
    )
    clients = _put(state.clients, number, client._replace(renews=state.now, votes=0))
    after = _with(state, nodes, clients)
    return f"client {number} renews", after._replace(renewals=state.renewals - 1)


def _renewed(
    state: State, place: int, node: Node, number: int, rules: Rules, world: World
) -> Event:
    """When a quorum has confirmed it, who had forgotten it is told; what is late is left out."""
    now, clients, client = state.now, state.clients, state.clients[number]
    event = f"the renewal of client {number} arrives at {_name(node)}"
    mail = node.mail[number] & ~RENEW
    if node.owner != number:
        node = node._replace(mail=_put(node.mail, number, mail | FORGOT))
        return f"{event}: not its", _with(state, _put(state.nodes, place, node), clients)
    node = node._replace(mail=_put(node.mail, number, mail), expires=now + world.ttl(number))
    nodes = _put(state.nodes, place, node)
    if now >= node.counts_at or not rules.renewals:
        client = client._replace(votes=client.votes + 1)
        if client.votes == QUORUM:
            client = client._replace(sent=client.renews, renews=-1, votes=0)
            told = (INSTALL if node.mail[number] & (FORGOT | INSTALL) else 0 for node in nodes)
            nodes = tuple(
                node._replace(mail=_put(node.mail, number, mail))
                for node, mail in zip(nodes, told, strict=True)
            )
        clients = _put(clients, number, client)
    return event, _with(state, nodes, clients)


def _install(state: State, place: int, node: Node, number: int, world: World) -> Event:
    event = f"client {number} tells {_name(node)} again"
    node = node._replace(mail=_put(node.mail, number, node.mail[number] & ~INSTALL))
    if node.owner == -1:
        node = node._replace(owner=number, expires=state.now + world.ttl(number))
    return event, _with(state, _put(state.nodes, place, node), state.clients)


def _attempt(
    state: State, place: int, node: Node, number: int, rules: Rules, world: World
) -> Event:
    now, clients, client = state.now, state.clients, state.clients[number]
    event = f"the attempt of client {number} arrives at {_name(node)}"
    node = node._replace(mail=_put(node.mail, number, node.mail[number] & ~ATTEMPT))
    if node.owner not in (-1, number):
        return f"{event}: refused", _with(state, _put(state.nodes, place, node), clients)
    counted = client.phase == ASKING and now >= node.counts_at
    mail = _put(node.mail, number, node.mail[number] | VOTED) if counted else node.mail
    node = node._replace(owner=number, expires=now + world.ttl(number), mail=mail)
    nodes = _put(state.nodes, place, node)
    if counted:
        votes = client.votes + 1
        largest = max(client.largest, node.token)
        latest = max(client.latest, now + node.skew)
        client = client._replace(votes=votes, largest=largest, latest=latest)
        if votes == QUORUM:
            token = max(largest + 1, latest if rules.floor else 0)
            client = Client(WRITING, client.sent, token=token, above=client.above)
            if world.fenced:
                nodes = tuple(_written_to(node, number, rules) for node in nodes)
            else:
                client = Client(HOLDING, client.sent, granted=True)
                nodes = _mail(nodes, number, 0)
        clients = _put(clients, number, client)
    return event, _with(state, nodes, clients)


def _written_to(node: Node, number: int, rules: Rules) -> Node:
    """A token that does not count may as well not arrive. Where it does, it is behind the attempt,
    on the same connection."""
    mail = node.mail[number]
    if mail & VOTED or not rules.voters:
        return node._replace(mail=_put(node.mail, number, (mail | COMMIT) & ~VOTED))
    return node._replace(mail=_put(node.mail, number, 0))


def _commit(state: State, place: int, node: Node, number: int, rules: Rules) -> Event:
    clients, client = state.clients, state.clients[number]
    event = f"the token {client.token} of client {number} arrives at {_name(node)}"
    node = node._replace(mail=_put(node.mail, number, 0))
    if rules.owner and node.owner != number:
        return f"{event}: refused", _with(state, _put(state.nodes, place, node), clients)
    nodes = _put(state.nodes, place, node._replace(token=max(node.token, client.token)))
    client = client._replace(votes=client.votes + 1)
    if client.votes == QUORUM:  # validity is checked last: a tick would have ended it
        client = client._replace(phase=HOLDING, granted=True, votes=0)
        nodes = _mail(nodes, number, 0)
    return event, _with(state, nodes, _put(clients, number, client))


def _leave(state: State, place: int, node: Node, number: int) -> Event:
    event = f"client {number} leaves {_name(node)}"
    node = node._replace(mail=_put(node.mail, number, 0))
    if node.owner == number:
        node = node._replace(owner=-1, expires=0)
    return event, _with(state, _put(state.nodes, place, node), state.clients)


def _ended(client: Client) -> Client:
    if not client.granted:
        return Client(OVER)
    return Client(OVER, token=client.token, granted=True, above=client.above)


def _name(node: Node) -> str:
    votes = f"votes for {node.owner}" if node.owner >= 0 else "is free"
    return f"a node ({votes}, token {node.token}, clock +{node.skew})"


T = TypeVar("T")


def _put(items: tuple[T, ...], place: int, item: T) -> tuple[T, ...]:
    return (*items[:place], item, *items[place + 1 :])


def _mail(nodes: tuple[Node, ...], number: int, mail: int) -> tuple[Node, ...]:
    return tuple(node._replace(mail=_put(node.mail, number, mail)) for node in nodes)


def _with(state: State, nodes: tuple[Node, ...], clients: tuple[Client, ...]) -> State:
    return State(
        state.now, tuple(sorted(nodes)), clients, state.crashes, state.restarts, state.drops,
        state.renewals,
    )  # fmt: skip
