"""Ears: a release is announced on every node, and heard from one of them.

Contract: listens to a node that is up; when that one goes, to the next. Who hears nothing looks by
itself once a heartbeat (`lobby.py`), so a node that is deaf costs time and nothing else.
Partners: `waiting.py`, `listener.py` and `lobby.py` of `backends/redis`.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.addresses import share
from holdfast.backends.redis.listener import Listener, ask_nobody
from holdfast.backends.redis.transport import Ear, Hearing, Transport, unheard
from holdfast.backends.redis.waiting import Room
from holdfast.backends.redis.wire import NotSent
from holdfast.backends.redlock.nodes import Member
from holdfast.core.port import Port
from holdfast.errors import HoldfastError, Unavailable
from holdfast.ports.clock import now

__all__ = ["Ears"]


class Ears:
    def __init__(self, members: Sequence[Member], transport: Transport) -> None:
        self._members = list(members)
        self._transport = transport

    def room(self, port: Port, channel: str, heartbeat: float) -> Room:
        return Room(
            port, channel, heartbeat, lambda room: Listener(room, True, ask_nobody, self._open)
        )

    async def line(self, member: Member, deadline: float) -> Ear:
        """A connection to this node that listens to nothing."""
        return await self._transport.ear(member, unheard, deadline)

    async def _open(self, hearing: Hearing, deadline: float) -> Ear:
        moment = now()
        order = sorted(self._members, key=lambda member: member.retry_at > moment)
        trouble: Exception = Unavailable("no node is known")
        for number, member in enumerate(order):
            try:
                ear = await self._transport.ear(
                    member, hearing, share(deadline, len(order) - number)
                )
            except (NotSent, HoldfastError) as error:
                member.failed(error)
                trouble = error
            else:
                # If it is cut, the next one is tried first.
                self._members.remove(member)
                self._members.append(member)
                return ear
        raise Unavailable(f"no node can be listened to: {trouble}")

    async def close(self) -> None:
        await self._transport.close(list(self._members))
