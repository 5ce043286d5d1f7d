"""For the crash detector: links that are seen in CLIENT LIST, and the roll of them.

Contract: `core/presence.py`. A link is a connection that is named after the client's presence. Its
ping is a PING, whose echo shows that this is the answer to it and to no other, and the DEL of a key
that never exists: it changes nothing, but a replica, or a master without the key's slot, refuses
it; and only the others are looked at by the detector.

In a cluster links are on all masters, and a look is good only if all answer and agree about their
slots: else it could miss the one where somebody's link is. A claim is found by its lock's string
(SCAN and GET, many at a time) and, where it shares, by the overview; its stamp is its expiry.
Partners: `scripts/reap.lua`, `core/vouching.py`, `sentinel/detector.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Hashable, Iterator, Sequence
from typing import Any

from holdfast.backends.common import info_of, public_id
from holdfast.backends.quiet import not_for_children
from holdfast.backends.redis import overview
from holdfast.backends.redis.courier import Courier
from holdfast.backends.redis.keys import slot_of
from holdfast.backends.redis.lua import OVERVIEW, REAP
from holdfast.backends.redis.requests import Requests
from holdfast.backends.redis.transport import ORDINARY, Ear, Node
from holdfast.backends.redis.wire import NoAnswer, NotSent, ReplyError, pack
from holdfast.core.presence import KEY, NAME, Look, Suspect
from holdfast.errors import Unavailable

__all__ = ["RedisLink", "RedisRoll", "appear"]

LINKS = re.compile(rb" name=%b(\S+)" % NAME.encode())
MARK = f'"{KEY}":"'.encode()
BATCH = 500


class RedisLink:
    def __init__(self, courier: Courier, node: Node, ear: Ear, key: str) -> None:
        self._courier = courier
        self._node = node
        self._ear = ear
        self._touch = pack("DEL", key)
        self._pings = 0

    async def introduce(self, presence: str, deadline: float) -> None:
        reply = await self._ask(pack("CLIENT", "SETNAME", NAME + presence), 1, deadline)
        if isinstance(reply, ReplyError):
            raise _trouble(self._courier.refused(self._node, reply))

    async def ping(self, deadline: float) -> None:
        self._pings += 1
        said = str(self._pings).encode()
        echo, touched = await self._ask(pack("PING", said) + self._touch, 2, deadline)
        if echo != said:
            raise Unavailable(f"Redis at {self._node} answered something else than it was asked")
        # ASK: the slot is about to leave, and this is still its master.
        if isinstance(touched, ReplyError) and not str(touched).startswith("ASK "):
            raise _trouble(self._courier.refused(self._node, touched))

    async def rest(self, until: float) -> None:
        try:
            await self._ear.listen(until)
        except (NoAnswer, NotSent) as error:
            raise self._broken(error) from None

    async def _ask(self, data: bytes, count: int, deadline: float) -> Any:
        try:
            return await self._ear.request(data, count, deadline)
        except (NoAnswer, NotSent) as error:
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> Unavailable:
        self._courier.fleet.failed(self._node)
        return Unavailable(f"the link to Redis at {self._node} broke: {error}")

    def cut(self) -> None:
        self._ear.cut()

    def close(self) -> None:
        self._ear.close()


def _trouble(error: Exception) -> Exception:
    return Unavailable(str(error)) if isinstance(error, NoAnswer) else error


async def appear(courier: Courier, presence: str, key: str, deadline: float) -> RedisLink:
    """A link to whoever serves this key."""
    node, ear = await courier.line(slot_of(key), deadline)
    try:
        not_for_children(ear.sock.fileno())
        link = RedisLink(courier, node, ear, key)
        await link.introduce(presence, deadline)
        return link
    except BaseException:
        ear.close()
        raise


class RedisRoll:
    complete = True

    def __init__(self, courier: Courier, requests: Requests) -> None:
        self._courier = courier
        self._requests = requests
        self._sharded = courier.fleet.sharded
        self._where = pack("CLUSTER", "SLOTS") if self._sharded else pack("ROLE")
        self._lines: list[tuple[Node, Ear]] = []
        self._connected = 0

    # -- looking ----------------------------------------------------------------------------------

    async def look(self, deadline: float) -> Look:
        present: dict[str, None] = {}
        said: list[Hashable] = []
        try:
            await self._connect(deadline)
            for node, line in self._lines:
                question = self._where + pack("CLIENT", "LIST", "TYPE", "normal")
                where, clients = await self._ask(node, line, question, 2, deadline)
                if isinstance(clients, ReplyError):
                    raise _trouble(self._courier.refused(node, clients))
                said.append(self._slots(node, where) if self._sharded else self._role(node, where))
                present.update((name.decode(), None) for name in LINKS.findall(clients))
            if len(set(said)) != 1:
                raise Unavailable("the masters do not agree about the slots of their cluster")
        except BaseException:
            self._disconnect()  # whatever it was: the next look stands on another ground
            raise
        servers = tuple((str(node), line.run_id) for node, line in self._lines)
        return Look((self._connected, servers, said[0]), present)

    def _role(self, node: Node, role: Any) -> Hashable:
        if isinstance(role, list) and role[0] != b"master":
            self._courier.fleet.failed(node)
            raise Unavailable(f"Redis at {node} is no master any more")
        return None

    def _slots(self, teller: Node, ranges: Any) -> Hashable:
        """Who has which slots, according to one of them."""
        if isinstance(ranges, ReplyError):
            raise _trouble(self._courier.refused(teller, ranges))
        told = teller.address[0]
        masters = {
            (host.decode() if host not in (None, b"", b"?") else told, port)
            for _, _, (host, port, *_), *_ in ranges
        }
        if masters != {node.address for node, _ in self._lines}:
            self._courier.fleet.failed(teller)
            raise Unavailable(f"the cluster's masters are others by now, says {teller}")
        return frozenset((first, last, master[2]) for first, last, master, *_ in ranges)

    async def _connect(self, deadline: float) -> None:
        if not self._lines:
            self._connected += 1
            for node in await self._courier.masters(deadline):
                self._lines.append((node, await self._courier.line_to(node, deadline)))

    async def _ask(self, node: Node, line: Ear, data: bytes, count: int, deadline: float) -> Any:
        try:
            return await line.request(data, count, deadline)
        except (NoAnswer, NotSent) as error:
            self._courier.fleet.failed(node)
            self._disconnect()
            raise Unavailable(f"Redis at {node} did not answer: {error}") from None

    def _disconnect(self) -> None:
        lines, self._lines = self._lines, []
        for _, line in lines:
            line.close()

    async def close(self) -> None:
        self._disconnect()

    # -- claims -----------------------------------------------------------------------------------

    async def claims(self, present: Collection[str], deadline: float) -> list[Suspect]:
        found: list[Suspect] = []
        shared: list[str] = []
        try:
            for node, line in self._lines:
                for name, value in await self._strings(node, line, deadline):
                    if value[:1] == b"c" and value[1:2] in (b"s", b"p"):
                        shared.append(name)
                    elif MARK in value:
                        found += self._suspects(name, [overview.exclusive(value)[1:]], present)
        except BaseException:
            self._disconnect()
            raise
        for name, reply in await self._overviews(shared, deadline):
            _, _, sharing, _, entries, _ = reply
            entry_of = overview.pairs(entries)
            holders = [
                (expiry, owner.decode(), overview.entry_info(entry_of[owner]))
                for owner, expiry in overview.scores(sharing)
                if owner in entry_of
            ]
            found += self._suspects(name, holders, present)
        return found

    async def _strings(self, node: Node, line: Ear, deadline: float) -> list[tuple[str, bytes]]:
        """All locks of one server that somebody may hold, as they are written there."""
        keys = self._requests.keys
        found: dict[str, bytes] = {}
        cursor = b"0"
        while True:
            scan = pack("SCAN", cursor, "MATCH", keys.pattern(""), "COUNT", str(BATCH))
            reply = await self._ask(node, line, scan, 1, deadline)
            if isinstance(reply, ReplyError):
                raise _trouble(self._courier.refused(node, reply))
            cursor, listed = reply
            names = [name for key in listed if (name := keys.name(key)) is not None]
            if names:
                gets = b"".join(pack("GET", keys.lock(name)) for name in names)
                values = await self._ask(node, line, gets, len(names), deadline)
                values = values if len(names) > 1 else [values]
                found.update(
                    (name, value)
                    for name, value in zip(names, values, strict=True)
                    if isinstance(value, bytes) and value[:1] != b"f"  # else gone, moved, or free
                )
            if cursor == b"0":
                return list(found.items())

    def _suspects(
        self, name: str, holders: Sequence[tuple[int, str, bytes]], present: Container[str]
    ) -> Iterator[Suspect]:
        for expiry, owner, text in holders:
            info = info_of(text)
            presence = info.get(KEY)
            if expiry and presence is not None and presence not in present:
                yield Suspect(name, presence, public_id(owner), info, expiry, owner)

    async def _overviews(self, names: list[str], deadline: float) -> list[tuple[str, Any]]:
        asked = [self._requests.overview(name) for name in names]
        replies = await self._courier.call_many(OVERVIEW, asked, deadline, ORDINARY)
        return [
            (name, reply)
            for name, (reply, _) in zip(names, replies, strict=True)
            if not isinstance(reply, Exception)
        ]

    async def free(self, suspects: Sequence[Suspect], deadline: float) -> list[bool | None]:
        asked = [self._requests.reap(s.name, s.token, s.stamp) for s in suspects]
        replies = await self._courier.call_many(REAP, asked, deadline, ORDINARY)
        return [None if isinstance(reply, Exception) else reply == 1 for reply, _ in replies]
