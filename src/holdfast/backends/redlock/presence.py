"""For the crash detector: a link is a connection to each node, and who is absent on a quorum is.

Contract: `core/presence.py`; the argument is in docs/backends/redlock.md. A link has its members
from the beginning, a quorum of them at least, and loses them one by one; **it never gets another
one**: a member that came after a look was absent in that look and is not gone. A ping counts when a
quorum of the link's own members has answered it. So of any look in which a client was absent on a
quorum, and any ping, one node took part in both: what is absent has had its last ping.

A stamp is, for each node, when the vote ends, to within `EXACTLY`: nodes tell the rest of its time
in milliseconds. A renewal so soon after the vote that the two look alike was before the look that
follows a search, because that waits a little longer; and then its link is known to be gone.
Hazard: nodes restart, and answer on new connections; that is no other ground. What matters is that
each of a quorum lists its clients, and who has no connection there has none.
Partners: `scripts/reap.lua`; `redis/presence.py`, the same for one Redis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.backends.addresses import share
from holdfast.backends.common import info_of, public_id
from holdfast.backends.quiet import not_for_children
from holdfast.backends.redis.presence import LINKS
from holdfast.backends.redis.transport import ORDINARY, Ear
from holdfast.backends.redis.wire import NoAnswer, NotSent, ReplyError, pack, trouble
from holdfast.backends.redlock import overview
from holdfast.backends.redlock.ballot import Everybody, explain, hopeless, quorum_of
from holdfast.backends.redlock.council import Council
from holdfast.backends.redlock.ears import Ears
from holdfast.backends.redlock.letters import Letter, Writer
from holdfast.backends.redlock.nodes import Member
from holdfast.core.port import Port
from holdfast.core.presence import KEY, NAME, Look, Suspect
from holdfast.errors import HoldfastError, Misconfigured, Unavailable

__all__ = ["AFTERWARDS", "EXACTLY", "Ends", "RedlockLink", "RedlockRoll", "appear", "present"]

EXACTLY = 5
"""Milliseconds."""

AFTERWARDS = 0.03
"""Seconds between a search and the look after it; several times `EXACTLY`."""

COMPLETE = 10.0
"""Seconds after which a link that lacks members is made anew."""


class RedlockLink:
    def __init__(
        self, port: Port, nodes: int, members: dict[Member, Ear], key: str, patience: float
    ) -> None:
        self._port = port
        self._nodes = nodes
        self._members = members
        self._touch = pack("DEL", key)  # of nothing; a replica refuses it, and nobody looks there
        self._patience = patience
        self._made = port.now()
        self._over = port.event()
        self._pings = 0

    async def ping(self, deadline: float) -> None:
        self._pings += 1
        said = b"%d" % self._pings
        question = pack("PING", said) + self._touch
        answered, quorum = 0, quorum_of(self._nodes)
        members = list(self._members.items())
        first = self._pings % (len(members) or 1)  # each has its turn: the dead are to be noticed
        for member, ear in (*members[first:], *members[:first]):
            if answered == quorum:
                break  # more would take longer, and prove no more
            limit = min(deadline, self._port.now() + self._patience)
            try:
                echo, touched = await ear.request(question, 2, limit)
            except (NoAnswer, NotSent) as error:
                self._lose(member, error)
                continue
            if echo != said:
                self._lose(member, NoAnswer("it answered something else than it was asked"))
            elif isinstance(touched, ReplyError):
                self._lose(member, touched)
            else:
                answered += 1
        if self._over.is_set():
            raise Unavailable("the link was closed")
        if answered < quorum:
            raise Unavailable(f"{answered} of {self._nodes} nodes still see this client")
        if len(self._members) < self._nodes and self._port.now() > self._made + COMPLETE:
            raise Unavailable("the link is made anew, since nodes are missing in it")

    def _lose(self, member: Member, error: Exception) -> None:
        self._members.pop(member).close()
        member.failed(error)

    async def rest(self, until: float) -> None:
        """The end of one member is seen by the next ping; only the end of many matters."""
        if await self._over.wait(until):
            raise Unavailable("the link was closed")

    def cut(self) -> None:
        self._over.set()
        for ear in list(self._members.values()):
            ear.cut()

    def close(self) -> None:
        self._over.set()
        members, self._members = self._members, {}
        for ear in members.values():
            ear.close()


async def appear(
    port: Port,
    ears: Ears,
    council: Council,
    key: str,
    patience: float,
    presence: str,
    deadline: float,
) -> RedlockLink:
    nodes = council.members
    failures: dict[int, Exception] = {}
    members: dict[Member, Ear] = {}
    done = False
    try:
        for place, member in enumerate(nodes):
            limit = min(share(deadline, len(nodes) - place), port.now() + 2 * patience)
            try:
                ear = members[member] = await ears.line(member, limit)
                not_for_children(ear.sock.fileno())
                reply = await ear.request(pack("CLIENT", "SETNAME", NAME + presence), 1, limit)
                if isinstance(reply, ReplyError):
                    raise trouble(reply, str(member)) or Unavailable(str(reply))
            except (NoAnswer, NotSent, HoldfastError) as error:
                failures[place] = error
                member.failed(error)
                if member in members:
                    members.pop(member).close()
        if len(members) < quorum_of(len(nodes)):
            names = [str(member) for member in nodes]
            said = explain(failures, names)
            kind = Misconfigured if hopeless(failures, names) else Unavailable
            raise kind(f"{len(members)} of {len(nodes)} nodes can be linked to ({said})")
        done = True
        return RedlockLink(port, len(nodes), members, key, patience)
    finally:
        if not done:
            for ear in members.values():
                ear.close()


class Roster(Letter):
    """Who is connected."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.count = 1
        self.data = pack("CLIENT", "LIST", "TYPE", "normal")


class Ends:
    """When votes end, by the places of their nodes. Equal as far as they are known alike: a node
    that is silent now and then changes nothing."""

    def __init__(self) -> None:
        self.by_place: dict[int, int] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ends):
            return False
        both = self.by_place.keys() & other.by_place.keys()
        near = (abs(self.by_place[place] - other.by_place[place]) <= EXACTLY for place in both)
        return bool(both) and all(near)

    __hash__ = None  # type: ignore[assignment]  # it is near, not equal


class Enough(Everybody):
    """A quorum of answers: who is absent on that many is absent, whatever the others say."""

    @property
    def decided(self) -> bool:
        return super().decided or len(self.answers) >= self.quorum


class Those(Everybody):
    """Of so many nodes, all but some are waited for."""

    def __init__(self, nodes: int, asked: Collection[int], unawaited: Collection[int]) -> None:
        super().__init__(nodes, len(asked))
        self._awaited = set(asked).difference(unawaited) or set(asked)

    @property
    def decided(self) -> bool:
        return self._awaited <= self.answers.keys() | self.failures.keys()


class Scans(overview.Scan):
    """A step through the keys of each node, wherever it stands there."""

    __slots__ = ("_cursors", "_pattern")

    def __init__(self, cursors: Mapping[int, bytes], pattern: str) -> None:
        super().__init__(b"0", pattern)
        self._cursors = cursors
        self._pattern = pattern

    def words(self, place: int, line: object) -> bytes:
        return overview.Scan(self._cursors[place], self._pattern).data


def present(lists: Collection[Collection[str]], quorum: int) -> dict[str, None]:
    """Who is not absent on a quorum of the nodes that have told whom they see."""
    times = Counter(who for seen in lists for who in seen)
    return {who: None for who, seen in times.items() if len(lists) - seen < quorum}


class RedlockRoll:
    complete = True

    def __init__(self, port: Port, council: Council, writer: Writer, patience: float) -> None:
        self._port = port
        self._council = council
        self._writer = writer
        self._patience = patience
        self._searched = -AFTERWARDS
        self._silent: set[int] = set()  # the nodes that did not answer the last search

    async def look(self, deadline: float) -> Look:
        await self._port.sleep(max(0.0, self._searched + AFTERWARDS - self._port.now()))
        ballot = Enough(len(self._council.members))
        await self._council.ask(Roster(), ballot, deadline, ORDINARY)
        if lack := ballot.lack([str(member) for member in self._council.members]):
            raise lack
        lists = [
            {name.decode() for name in LINKS.findall(clients)}
            for [clients] in ballot.answers.values()
        ]
        return Look("these nodes", present(lists, ballot.quorum))

    # -- votes ------------------------------------------------------------------------------------

    async def claims(self, present: Collection[str], deadline: float) -> list[Suspect]:
        """On all nodes that answer; what the others have is found when they do."""
        found: dict[tuple[str, str], Suspect] = {}
        keys = self._writer.keys
        cursors = dict.fromkeys(range(len(self._council.members)), b"0")
        while cursors:
            names: set[str] = set()
            scanned = await self._ask(Scans(cursors, keys.pattern("")), cursors, deadline)
            cursors = {}
            for place, [[cursor, listed]] in scanned.items():
                names.update(name for key in listed if (name := keys.name(key)) is not None)
                if cursor != b"0":
                    cursors[place] = cursor
            order = list(names)
            for start in range(0, len(order), overview.BATCH):
                some = order[start : start + overview.BATCH]
                read = await self._ask(self._writer.overview(some), scanned, deadline)
                for place, replies in read.items():
                    for name, (lock, left, _, clock) in zip(some, replies, strict=True):
                        if lock and left > 0:
                            self._note(found, present, place, name, lock, clock // 1000 + left)
        self._searched = self._port.now()
        return list(found.values())

    async def _ask(
        self, letter: Letter, places: Collection[int], deadline: float
    ) -> dict[int, list[Any]]:
        """Who has not answered the last time is not waited for: it would delay what others know."""
        ballot = Those(len(self._council.members), places, self._silent)
        limit = min(deadline, self._port.now() + self._patience)
        await self._council.ask(letter, ballot, limit, ORDINARY, list(places))
        self._silent = self._silent - ballot.answers.keys() | (set(places) - ballot.answers.keys())
        return ballot.answers

    def _note(
        self,
        found: dict[tuple[str, str], Suspect],
        present: Collection[str],
        place: int,
        name: str,
        lock: bytes,
        ends: int,
    ) -> None:
        owner, _, text = lock.partition(b" ")
        info = info_of(text)
        presence = info.get(KEY)
        if presence is None or presence in present:
            return
        who = owner.decode()
        suspect = found.setdefault(
            (name, who), Suspect(name, presence, public_id(who), info, Ends(), who)
        )
        suspect.stamp.by_place[place] = ends

    async def free(self, suspects: Sequence[Suspect], deadline: float) -> list[bool | None]:
        votes = [(suspect.name, suspect.token, suspect.stamp.by_place) for suspect in suspects]
        ballot = Everybody(len(self._council.members))
        limit = min(deadline, self._port.now() + self._patience)
        # All nodes at once: who waits looks when the first has called, and soon gives up looking.
        await self._council.ask(self._writer.reap(votes, EXACTLY), ballot, limit, ORDINARY)
        if not ballot.answers:
            return [None] * len(suspects)
        said = zip(*ballot.answers.values(), strict=True)
        return [any(reply == 1 for reply in replies) for replies in said]

    async def close(self) -> None:
        """Its connections are the backend's."""
