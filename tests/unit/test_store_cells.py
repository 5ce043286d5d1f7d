"""The memory store, on a fake clock: tokens, what an overview shows, and cells."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.unit.shop import TTL, Shop

from holdfast.backends.local import Held
from holdfast.backends.memory import Store
from holdfast.types import Cell, CellConflict, Claim, Mode


@pytest.fixture
def shop() -> Shop:
    return Shop()


# -- tokens ----------------------------------------------------------------------------------------


def fence_of(shop: Shop, claim: Claim) -> int:
    answer = shop.store.look(claim)
    assert isinstance(answer, Held)
    assert answer.fence is not None
    return answer.fence


@pytest.mark.req("B1", "law 7", "client wall clock +-1 h")
def test_tokens_grow_whatever_the_wall_clock_does(shop: Shop) -> None:
    tokens: list[int] = []
    for step in (0.0, 3600.0, -7200.0, 0.0):
        shop.wall += step
        holder = shop.takes()
        tokens.append(fence_of(shop, holder))
        shop.store.release(holder, tombstone=False)
    assert tokens == sorted(set(tokens))


@pytest.mark.req("B1", "server restarted without persistence")
def test_a_store_made_anew_goes_on_above_the_old_tokens(shop: Shop) -> None:
    before = fence_of(shop, shop.takes())
    shop.wall += 0.001
    anew = Store(lambda: shop.now, lambda: shop.wall)
    answer = anew.attempt(shop.claim(), None)
    assert isinstance(answer, Held)
    assert answer.fence is not None
    assert answer.fence > before


@pytest.mark.req("B1")
def test_readers_carry_the_last_writers_token(shop: Shop) -> None:
    writer = shop.takes()
    token = fence_of(shop, writer)
    one, two = (shop.waits(mode=Mode.SHARED) for _ in range(2))
    shop.store.release(writer, tombstone=False)
    assert {fence_of(shop, one), fence_of(shop, two)} == {token}
    after = shop.waits()
    for reader in (one, two):
        shop.store.release(reader, tombstone=False)
    assert fence_of(shop, after) > token


def test_permits_have_no_token(shop: Shop) -> None:
    answer = shop.attempt(shop.claim(mode=Mode.PERMITS))
    assert isinstance(answer, Held)
    assert answer.fence is None


# -- inspection ------------------------------------------------------------------------------------


def test_inspection_shows_who_and_how_long_and_no_owner(shop: Shop) -> None:
    shop.takes("jobs:1", info={"host": "h", "pid": "1"})
    shop.now += 2
    waiter = shop.waits("jobs:1")
    (lock,) = shop.store.inspect("jobs:", False)
    (holder,) = lock.holders
    assert (holder.since, holder.remaining) == (2, TTL - 2)
    assert holder.info == {"host": "h", "pid": "1"}
    assert lock.fence == holder.fence
    assert len(lock.waiters) == 1
    assert waiter.owner not in repr(lock)


def test_inspection_is_of_a_prefix_or_of_one_name(shop: Shop) -> None:
    for name in ("ab", "a", "b"):
        shop.takes(name)

    def names(prefix: str, exact: bool) -> list[str]:
        return [lock.name for lock in shop.store.inspect(prefix, exact)]

    assert names("a", False) == ["a", "ab"]
    assert names("a", True) == ["a"]
    assert names("", False) == ["a", "ab", "b"]
    assert names("", True) == []


def test_inspection_leaves_out_what_is_over(shop: Shop) -> None:
    shop.takes(ttl=5.0)
    shop.waits(ttl=1.0)
    shop.now += 2
    assert shop.store.inspect("n", True)[0].waiters == ()
    shop.now += 3
    assert shop.store.inspect("n", True) == []
    assert shop.store.leftovers() == []


# -- cells -----------------------------------------------------------------------------------------


def write(shop: Shop, value: bytes | None, **more: Any) -> Cell | CellConflict:
    given = {"expect": None, "fence": None, "ttl": None, **more}
    return shop.store.cell_write("c", value, given["expect"], given["fence"], given["ttl"])


def written(shop: Shop, value: bytes | None, **more: Any) -> Cell:
    answer = write(shop, value, **more)
    assert isinstance(answer, Cell)
    return answer


@pytest.mark.req("cells")
def test_a_cell_is_read_as_it_was_written(shop: Shop) -> None:
    assert shop.store.cell_read("c") is None
    cell = written(shop, b"x")
    assert shop.store.cell_read("c") == cell == Cell(b"x", cell.version)


@pytest.mark.req("cells")
def test_versions_grow_also_over_deletion_and_expiry(shop: Shop) -> None:
    versions = [written(shop, b"a").version, written(shop, None).version]
    assert shop.store.cell_read("c") is None
    versions.append(written(shop, b"b", ttl=1.0).version)
    shop.now += 1
    versions.append(written(shop, b"c").version)
    assert versions == sorted(set(versions))


@pytest.mark.req("cells")
def test_a_write_that_expects_another_version_is_refused(shop: Shop) -> None:
    assert isinstance(write(shop, b"x", expect=7), CellConflict)
    cell = written(shop, b"x", expect=0)
    for wrong in (0, cell.version - 1, cell.version + 1):
        answer = write(shop, b"y", expect=wrong)
        assert isinstance(answer, CellConflict)
        assert answer.current == cell
    written(shop, b"y", expect=cell.version)


@pytest.mark.req("cells")
def test_an_expired_or_deleted_cell_does_not_exist(shop: Shop) -> None:
    written(shop, b"x", ttl=1.0)
    shop.now += 1.0
    assert shop.store.cell_read("c") is None
    written(shop, b"y", expect=0)
    written(shop, None)
    written(shop, b"z", expect=0)


@pytest.mark.req("cells", "B1")
def test_an_older_fence_is_refused_also_when_the_cell_is_empty(shop: Shop) -> None:
    written(shop, b"x", fence=5)
    written(shop, b"y", fence=5)
    written(shop, b"unfenced")
    written(shop, None, ttl=1.0)
    shop.now += 1.0
    answer = write(shop, b"stale", fence=4)
    assert isinstance(answer, CellConflict)
    assert answer.current is None
    written(shop, b"z", fence=6)


def test_a_rewritten_cell_lasts_as_the_last_write_says(shop: Shop) -> None:
    written(shop, b"x", ttl=1.0)
    cell = written(shop, b"y")
    shop.now += 100.0
    written_elsewhere = shop.store.cell_write("d", b"", None, None, None)
    assert isinstance(written_elsewhere, Cell)
    assert shop.store.cell_read("c") == cell


def test_watchers_are_called_at_every_change_until_they_leave(shop: Shop) -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)

    assert shop.store.cell_watch("c", call) == (None, math.inf)
    shop.store.cell_watch("c", call)  # asking twice is asking once
    written(shop, b"x")
    write(shop, b"refused", expect=1)
    written(shop, None)
    assert len(calls) == 2
    shop.store.cell_unwatch("c", call)
    shop.store.cell_unwatch("c", call)
    written(shop, b"y")
    assert len(calls) == 2


def test_a_watcher_is_told_when_the_value_expires(shop: Shop) -> None:
    cell = written(shop, b"x", ttl=3.0)
    assert shop.store.cell_watch("c", lambda: None) == (cell, shop.now + 3)


# -- one atomic step -------------------------------------------------------------------------------


def test_the_store_knows_that_this_thread_is_inside(shop: Shop) -> None:
    """A finaliser that runs there must not ask anything of it."""
    seen: list[bool] = []
    holder = shop.takes()
    claim = shop.claim()
    shop.store.attempt(claim, lambda _: lambda held: seen.append(shop.store.entered))
    assert not shop.store.entered
    shop.store.release(holder, tombstone=False)
    assert seen == [True]
