"""What a URL says, as the backend needs it.

Contract: no I/O. Partner: `url.py`, which checks it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.backends.redis.loops import LoopTransport
from holdfast.backends.redis.threads import ThreadTransport
from holdfast.backends.redis.wire import Address
from holdfast.backends.redlock.council import Council
from holdfast.backends.redlock.crew import ThreadCouncil
from holdfast.backends.redlock.ears import Ears
from holdfast.backends.redlock.loops import LoopCouncil
from holdfast.backends.redlock.nodes import Login, Member, NodeSettings

__all__ = ["Setting"]


@dataclass(frozen=True)
class Setting:
    logins: dict[Address, Login]
    """The nodes, in the order of the URL."""
    nodes: NodeSettings
    prefix: str
    drift: float
    patience: float
    """Seconds that a node has to answer."""
    retries: int
    max_ttl: float
    fencing: bool
    memory: float
    heartbeat: float
    poll: float

    @property
    def quarantine(self) -> float:
        return self.max_ttl * (1 + self.drift) if self.nodes.quarantined else 0.0

    def council(self, asynchronous: bool) -> Council:
        members = [
            Member(address, login, self.quarantine) for address, login in self.logins.items()
        ]
        settings = replace(self.nodes, members={m.address: m for m in members})
        kind = LoopCouncil if asynchronous else ThreadCouncil
        return kind(members, settings, self.patience)

    @staticmethod
    def ears(council: Council, asynchronous: bool) -> Ears:
        kind = LoopTransport if asynchronous else ThreadTransport
        return Ears(council.members, kind(council.settings))
