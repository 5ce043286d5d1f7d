"""What a client makes besides locks: a method for each tool, and nothing else.

Partners: the files beside this one; `toolbox/`, where the decisions are; `aio.py`, the client.
"""

from __future__ import annotations

from holdfast.client import Client
from holdfast.core.names import checked_name
from holdfast.skins.task.optimistic import Optimistic

__all__ = ["Tools"]


class Tools(Client):
    """The part of a client that is above locks."""

    def optimistic(self, name: str) -> Optimistic:
        """Compare-and-swap of the caller's own work: `version()`, and `commit(version)`."""
        return Optimistic(self, checked_name(name))
