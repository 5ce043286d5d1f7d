"""Redlock's rules as a model, searched exhaustively: is there any order of events that breaks them?

Contract: three nodes, a few clients that each acquire once, and an adversary who decides about
everything else: which message arrives when (late, in any order, or never), how long anybody pauses,
when a node restarts with or without its memory, when a vote ends early (somebody evicts the lock,
or a node's clock is stepped), and how far the nodes' clocks are apart. Time is counted in ticks, and
any number of events fits into one. What a client does between two events takes no time: a pause
before it is the same as messages that arrive later.

Checked in every state:

- *exclusion*: no two leases at the same time. Only without votes that end early: no lock keeps that
  promise when an operator takes it away.
- *fencing*: no two grants have the same token; and who began after another was granted has a larger
  one, whatever has happened.

Each rule can be taken out, and must then be missed: `tests/unit/test_redlock_model.py`. The rules
are those of `backends/redlock`: `ballot.py` (quorum, token), `quarantine.py`, `scripts/*.lua`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Rules", "Violation", "World", "search"]

NODES = 3
QUORUM = 2
TTL = 2
QUARANTINE = 4  # longer than a lease, and than the clocks are apart
ALL = (1 << NODES) - 1

IDLE, ASKING, WRITING, HOLDING, OVER = range(5)


@dataclass(frozen=True)
class Rules:
    floor: bool = True
    """A token is not smaller than the latest clock of those who vote."""
    owner: bool = True
    """A token is written only where the writer still has the vote."""
    quarantine: bool = True
    """A node that restarted does not count for a while."""


@dataclass(frozen=True)
class World:
    clients: int = 2
    ends: int = 7
    """The last tick."""
    crashes: int = 0
    """How many restarts that lose the memory."""
    restarts: int = 0
    """How many that do not."""
    drops: int = 0
    """How many votes end early."""
    skew: tuple[int, ...] = (0, 0, 0)
    """How far each node's clock is ahead."""


class Node(NamedTuple):
    owner: int = -1  # whom it votes for
    expires: int = 0
    token: int = 0
    counts_at: int = 0


class Client(NamedTuple):
    phase: int = IDLE
    sent: int = 0
    asking: int = 0  # attempts under way: a bit for each node
    votes: int = 0
    largest: int = 0
    latest: int = 0
    token: int = 0
    writing: int = 0  # commits under way
    written: int = 0
    leaving: int = 0  # farewells under way
    granted: int = -1  # when


class State(NamedTuple):
    now: int
    nodes: tuple[Node, ...]
    clients: tuple[Client, ...]
    crashes: int
    restarts: int
    drops: int
    before: tuple[int, ...] = ()  # for each client: who had been granted when it began


class Violation(NamedTuple):
    what: str
    trace: list[str]


def begin(world: World) -> State:
    """The nodes are long up, and know nothing."""
    return State(
        0, (Node(),) * NODES, (Client(),) * world.clients, world.crashes, world.restarts,
        world.drops, (0,) * world.clients,
    )  # fmt: skip


def search(world: World, rules: Rules) -> tuple[int, Violation | None]:
    """How many states there are, and the first violation found, by the fewest events."""
    first = begin(world)
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
    events: list[str] = []
    while (step := came[state]) is not None:
        before, event = step
        events.append(f"{before.now}: {event}")
        state = before
    return events[::-1]


def broken(state: State, world: World) -> str:
    held = [(number, client) for number, client in enumerate(state.clients) if client.granted >= 0]
    for number, client in held:
        for other, earlier in held:
            if number == other:
                continue
            if client.token == earlier.token:
                return f"clients {other} and {number} have the same token {client.token}"
            if state.before[number] >> other & 1 and client.token < earlier.token:
                return (
                    f"client {number} began after {other} was granted, and its token "
                    f"{client.token} is smaller than {earlier.token}"
                )
    if not world.drops:
        now = [number for number, client in held if _holds(client, state.now)]
        if len(now) > 1:
            return f"clients {now} hold at the same time"
    return ""


def _holds(client: Client, now: int) -> bool:
    return client.phase == HOLDING and now < client.sent + TTL


def events(state: State, world: World, rules: Rules) -> Iterator[tuple[str, State]]:
    if state.now < world.ends:
        yield "a tick", _tick(state)
    for number, client in enumerate(state.clients):
        yield from _of_client(state, number, client, world, rules)
    for place, node in enumerate(state.nodes):
        yield from _of_node(state, place, node, rules)


def _tick(state: State) -> State:
    """Whoever cannot win any more is over: less to search."""
    now = state.now + 1
    clients = tuple(
        client._replace(phase=OVER, writing=0)
        if client.phase in (ASKING, WRITING, HOLDING) and now >= client.sent + TTL
        else client
        for client in state.clients
    )
    return state._replace(now=now, clients=clients)


def _of_client(
    state: State, number: int, client: Client, world: World, rules: Rules
) -> Iterator[tuple[str, State]]:
    if client.phase == IDLE:
        # They are alike: the lower number begins first.
        if number == 0 or state.clients[number - 1].phase != IDLE:
            granted = sum(1 << n for n, other in enumerate(state.clients) if other.granted >= 0)
            before = (*state.before[:number], granted, *state.before[number + 1 :])
            new = client._replace(phase=ASKING, sent=state.now, asking=ALL)
            yield f"client {number} begins", _put(state._replace(before=before), number, new)
        return
    for place in range(NODES):
        bit = 1 << place
        if client.asking & bit:
            yield _attempt(state, number, client, place, world, rules)
        if client.writing & bit:
            yield _commit(state, number, client, place, rules)
        if client.leaving & bit and not client.asking & bit:  # behind it, on the same connection
            yield _leave(state, number, client, place)
    if client.phase == HOLDING:
        new = client._replace(phase=OVER, leaving=ALL, writing=0)
        yield f"client {number} releases", _put(state, number, new)


def _of_node(state: State, place: int, node: Node, rules: Rules) -> Iterator[tuple[str, State]]:
    counts_at = state.now + QUARANTINE if rules.quarantine else 0
    if state.crashes and (node.owner >= 0 or node.token):
        after = _set(state, place, Node(counts_at=counts_at))
        yield f"node {place} forgets everything", after._replace(crashes=state.crashes - 1)
    if state.restarts:
        after = _set(state, place, node._replace(counts_at=counts_at))
        yield f"node {place} restarts", after._replace(restarts=state.restarts - 1)
    if state.drops and node.owner >= 0:
        after = _set(state, place, node._replace(owner=-1, expires=0))
        yield f"the vote of node {place} ends early", after._replace(drops=state.drops - 1)


def _attempt(
    state: State, number: int, client: Client, place: int, world: World, rules: Rules
) -> tuple[str, State]:
    node, now = state.nodes[place], state.now
    client = client._replace(asking=client.asking & ~(1 << place))
    event = f"the attempt of client {number} arrives at node {place}"
    if node.owner not in (-1, number) and now < node.expires:
        return f"{event}: refused", _put(state, number, client)
    state = _set(state, place, node._replace(owner=number, expires=now + TTL))
    if client.phase == ASKING and now >= node.counts_at:
        client = client._replace(
            votes=client.votes + 1,
            largest=max(client.largest, node.token),
            latest=max(client.latest, now + world.skew[place]),
        )
        if client.votes == QUORUM:
            floor = client.latest if rules.floor else 0
            token = max(client.largest + 1, floor)
            # What was learned on the way is forgotten: less to tell states apart by.
            client = client._replace(
                phase=WRITING, token=token, writing=ALL, votes=0, largest=0, latest=0
            )
    return event, _put(state, number, client)


def _commit(
    state: State, number: int, client: Client, place: int, rules: Rules
) -> tuple[str, State]:
    node, now = state.nodes[place], state.now
    client = client._replace(writing=client.writing & ~(1 << place))
    event = f"the token {client.token} of client {number} arrives at node {place}"
    if client.asking & (1 << place):  # it is behind the attempt, which never came: nor will this
        return f"{event}, and is lost", _put(state, number, client)
    if rules.owner and (node.owner != number or now >= node.expires):
        return f"{event}: refused", _put(state, number, client)
    state = _set(state, place, node._replace(token=max(node.token, client.token)))
    if client.phase == WRITING:
        client = client._replace(written=client.written + 1)
        if client.written == QUORUM:  # and validity is checked last: a tick would have ended it
            client = client._replace(phase=HOLDING, granted=now, written=0)
    return event, _put(state, number, client)


def _leave(state: State, number: int, client: Client, place: int) -> tuple[str, State]:
    node = state.nodes[place]
    client = client._replace(leaving=client.leaving & ~(1 << place))
    if node.owner == number:
        state = _set(state, place, node._replace(owner=-1, expires=0))
    return f"client {number} leaves node {place}", _put(state, number, client)


def _put(state: State, number: int, client: Client) -> State:
    clients = state.clients
    return state._replace(clients=(*clients[:number], client, *clients[number + 1 :]))


def _set(state: State, place: int, node: Node) -> State:
    nodes = state.nodes
    return state._replace(nodes=(*nodes[:place], node, *nodes[place + 1 :]))
