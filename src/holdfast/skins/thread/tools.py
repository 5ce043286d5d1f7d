"""What a client makes besides locks: a method for each tool, and nothing else.

Partners: the files beside this one; `toolbox/`, where the decisions are; `sync.py`, the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack, cast

from holdfast.client import Client
from holdfast.core.names import checked_name
from holdfast.core.options import LockOptions, Want
from holdfast.skins.thread.multi import MultiLock
from holdfast.skins.thread.optimistic import Optimistic
from holdfast.skins.thread.stripes import Stripes
from holdfast.toolbox.multi import check_alone, sorted_names
from holdfast.toolbox.stripes import checked_count, stripe_name
from holdfast.types import Mode

if TYPE_CHECKING:
    from holdfast.sync import Locks

__all__ = ["Tools"]


class Tools(Client):
    """The part of a client that is above locks."""

    @property
    def _locks(self) -> Locks:
        """This very client, with all that it makes."""
        return cast("Locks", self)

    def optimistic(self, name: str) -> Optimistic:
        """Compare-and-swap of the caller's own work: `version()`, and `commit(version)`."""
        return Optimistic(self, checked_name(name))

    def multi(self, *names: str, **options: Unpack[LockOptions]) -> MultiLock:
        """Several locks as one: all or none, whatever order they are named in."""
        wants = [self._locks._wish(name, Mode.EXCLUSIVE, options) for name in sorted_names(names)]
        check_alone(wants[0], "a multi")
        return MultiLock(self._locks, wants)

    def stripes(self, name: str, count: int, **options: Unpack[LockOptions]) -> Stripes:
        """A resource in `count` segments: the one `of` a key, `any` free one, or `all` of them."""
        name, count, locks = checked_name(name), checked_count(count), self._locks

        def want(number: int) -> Want:
            wanted = locks._wish(stripe_name(name, number, count), Mode.EXCLUSIVE, options)
            check_alone(wanted, "a stripe")
            return wanted

        return Stripes(locks, name, count, want)
