"""What a client makes besides locks: a method for each tool, and nothing else.

Partners: the files beside this one; `toolbox/`, where the decisions are; `sync.py`, the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar, Unpack, cast

from holdfast.client import Client
from holdfast.core.misuse import Blocking
from holdfast.core.names import checked_name
from holdfast.core.options import LockOptions, Want, check_known
from holdfast.skins.thread.barrier import Barrier
from holdfast.skins.thread.election import Election
from holdfast.skins.thread.latch import Latch
from holdfast.skins.thread.multi import MultiLock
from holdfast.skins.thread.once import Once
from holdfast.skins.thread.optimistic import Optimistic
from holdfast.skins.thread.stripes import Stripes
from holdfast.toolbox import barrier, election, latch, once
from holdfast.toolbox.multi import check_alone, sorted_names
from holdfast.toolbox.stripes import checked_count, stripe_name
from holdfast.toolbox.values import KEEP
from holdfast.types import Mode

if TYPE_CHECKING:
    from holdfast.sync import Locks

__all__ = ["Tools"]

T = TypeVar("T")


class Tools(Blocking, Client):
    """The part of a client that is above locks."""

    @property
    def _locks(self) -> Locks:
        """This very client, with all that it makes."""
        return cast("Locks", self)

    def optimistic(self, name: str) -> Optimistic:
        """Compare-and-swap of the caller's own work: `version()`, and `commit(version)`."""
        return Optimistic(self, name)

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

    def once(
        self,
        name: str,
        ttl: float,
        compute: Callable[[], T],
        *,
        ahead: float | None = None,
        lease: float = 30.0,
        timeout: float = -1.0,
        metadata: Mapping[str, str] | None = None,
    ) -> Once[T]:
        """A value that one computes, everybody reads, and is replaced `ahead` of its end."""
        recipe = once.recipe(name, ttl, self.capabilities, ahead, lease, timeout, metadata)
        return Once(cast("Locks", self), recipe, compute)

    def election(self, name: str, **options: Unpack[LockOptions]) -> Election:
        """One leads, the others stand in line, and everybody may know who leads."""
        check_known(options, LockOptions)
        want = self._want(election.line_of(name), Mode.EXCLUSIVE, options, 1, 1)
        return Election(cast("Locks", self), election.check(self.capabilities, want), name)

    def latch(self, name: str, count: int, *, timeout: float = -1.0, keep: float = KEEP) -> Latch:
        """Opens when it was counted down `count` times."""
        return Latch(self, latch.plan(name, count, self.capabilities, timeout, keep))

    def barrier(
        self,
        name: str,
        parties: int,
        *,
        ttl: float = 30.0,
        timeout: float = -1.0,
        keep: float = KEEP,
        metadata: Mapping[str, str] | None = None,
    ) -> Barrier:
        """Where `parties` wait for one another, again and again."""
        plan = barrier.plan(name, parties, self.capabilities, ttl, timeout, keep, metadata)
        return Barrier(self, plan)
