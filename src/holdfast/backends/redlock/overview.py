"""Who holds, for operators: what the nodes say about a name, put together.

Contract: changes nothing, never uses KEYS, stops at its deadline, and waits for no node so long
that there is no time left for the others. Shown is who has a quorum of
votes, or may have one as far as the nodes that answered can tell; `nodes` in its metadata says how
many it has. Who waits is not known: waiters stand in no store.
Partner: `scripts/overview.lua`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.backends.addresses import share
from holdfast.backends.common import info_of, public_id
from holdfast.backends.redis.transport import ORDINARY
from holdfast.backends.redis.wire import pack
from holdfast.backends.redlock.ballot import Everybody, explain, hopeless, quorum_of
from holdfast.backends.redlock.council import Council
from holdfast.backends.redlock.letters import Letter, Writer
from holdfast.errors import Unavailable
from holdfast.ports.clock import now
from holdfast.types import ClaimInfo, LockInfo, Mode

__all__ = ["Scan", "ask_everybody", "inspect"]

READING = 1.0
"""Seconds that a node has for one answer to an operator."""

BATCH = 500
"""So many names are looked for, and read, at a time."""


class Scan(Letter):
    """One step through the keys of a node."""

    __slots__ = ()

    def __init__(self, cursor: bytes, pattern: str) -> None:
        super().__init__()
        self.count = 1
        self.data = pack("SCAN", cursor, "MATCH", pattern, "COUNT", str(BATCH))


async def ask_everybody(council: Council, letter: Letter, deadline: float) -> Everybody:
    """The answers of as many as can be had, and of a quorum at least."""
    ballot = Everybody(len(council.members))
    await council.ask(letter, ballot, min(deadline, now() + READING), ORDINARY)
    if lack := ballot.lack([str(member) for member in council.members]):
        raise lack
    return ballot


async def inspect(
    council: Council, writer: Writer, prefix: str, exact: bool, deadline: float
) -> list[LockInfo]:
    names = [prefix] if exact else await _names(council, writer, prefix, deadline)
    found: list[LockInfo] = []
    for start in range(0, len(names), BATCH):
        batch = names[start : start + BATCH]
        ballot = await ask_everybody(council, writer.overview(batch), deadline)
        for number, name in enumerate(batch):
            said = [replies[number] for replies in ballot.answers.values()]
            info = _line(name, said, ballot.nodes, ballot.quorum)
            if info.holders:
                found.append(info)
    return found


async def _names(council: Council, writer: Writer, prefix: str, deadline: float) -> list[str]:
    pattern = writer.keys.pattern(prefix)
    names: set[str] = set()
    through = 0
    nodes = len(council.members)
    failures: dict[int, Exception] = {}
    for place in range(nodes):
        cursor = b"0"
        limit = share(deadline, nodes - place + 1)  # and one for what is read then
        while True:
            ballot = Everybody(nodes, 1)
            soon = min(limit, now() + READING)
            await council.ask(Scan(cursor, pattern), ballot, soon, ORDINARY, [place])
            if not ballot.answers:
                failures.update(ballot.failures)
                break
            cursor, keys = ballot.answers[place][0]
            names.update(name for key in keys if (name := writer.keys.name(key)) is not None)
            if cursor == b"0":
                through += 1
                break
    if through < quorum_of(nodes):
        shown = [str(member) for member in council.members]
        raise hopeless(failures, shown) or Unavailable(
            f"too few nodes could be read ({explain(failures, shown)})"
        )
    return sorted(name for name in names if name.startswith(prefix))


def _line(name: str, said: Sequence[Any], nodes: int, quorum: int) -> LockInfo:
    votes: dict[bytes, list[Any]] = {}
    last = 0
    for reply in said:
        lock, _, fence, _ = reply
        last = max(last, _token(fence)[0])
        if lock:
            votes.setdefault(lock, []).append(reply)
    silent = nodes - len(said)
    holders = tuple(
        _holder(lock, replies, nodes)
        for lock, replies in votes.items()
        if len(replies) + silent >= quorum
    )
    return LockInfo(name, holders, (), last or None)


def _token(fence: bytes | None) -> tuple[int, bytes]:
    """What a node remembers, and who wrote it; 0: nothing, or what no client of ours wrote."""
    token, _, writer = (fence or b"").partition(b" ")
    return (int(token) if token.isdigit() else 0), writer


def _holder(lock: bytes, replies: Sequence[Any], nodes: int) -> ClaimInfo:
    owner, _, info = lock.partition(b" ")
    tokens = [_token(fence) for _, _, fence, _ in replies]
    fences = [token for token, writer in tokens if writer == owner and token]
    fence = max(fences, default=None)
    clock = max(moment for _, _, _, moment in replies)
    left = min(remaining for _, remaining, _, _ in replies)
    return ClaimInfo(
        id=public_id(owner.decode(errors="replace")),
        mode=Mode.EXCLUSIVE,
        since=max(0.0, (clock - fence) / 1e6) if fence else 0.0,  # a token is the time of its grant
        remaining=left / 1e3 if left >= 0 else None,
        fence=fence,
        info={**info_of(info), "nodes": f"{len(replies)}/{nodes}"},
    )
