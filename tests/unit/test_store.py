"""The memory store, method by method, on a fake clock: each law that its docstring states.

The state machine (`test_machine.py`) searches for what nobody thought of; these say what is meant.
What is looked at and kept beside the locks: `test_store_cells.py`.
"""

from __future__ import annotations

import pytest
from tests.unit.shop import TTL, Shop, readers

from holdfast.backends.local import LATER, Gone, Held, InLine
from holdfast.types import Mode


@pytest.fixture
def shop() -> Shop:
    return Shop()


# -- attempt ---------------------------------------------------------------------------------------


def test_a_free_name_is_had_at_once_and_for_the_ttl(shop: Shop) -> None:
    answer = shop.attempt(shop.claim())
    assert isinstance(answer, Held)
    assert answer.expires == shop.now + TTL


@pytest.mark.req("R1")
def test_a_held_name_is_not_had(shop: Shop) -> None:
    shop.takes()
    answer = shop.attempt(shop.claim(), queue=False)
    assert isinstance(answer, InLine)
    assert shop.store.inspect("n", True)[0].waiters == ()


def test_names_do_not_meddle_with_one_another(shop: Shop) -> None:
    shop.takes("a")
    shop.takes("b")
    shop.takes("a ")
    assert [lock.name for lock in shop.store.inspect("", False)] == ["a", "a ", "b"]


@pytest.mark.req("law 3")
def test_asking_twice_is_asking_once(shop: Shop) -> None:
    holder = shop.claim()
    first, again = shop.attempt(holder), shop.attempt(holder)
    assert first == again
    waiter = shop.waits()
    shop.attempt(waiter)
    found = shop.store.inspect("n", True)[0]
    assert (len(found.holders), len(found.waiters)) == (1, 1)


def test_who_waits_is_told_who_holds_and_how_many_are_ahead(shop: Shop) -> None:
    shop.takes(info={"host": "web-3", "pid": "7", "label": "import"})
    for ahead in range(3):
        answer = shop.attempt(shop.claim())
        assert isinstance(answer, InLine)
        assert (answer.holder, answer.ahead) == ("web-3:7 (import)", ahead)


def test_who_is_first_looks_when_the_holder_expires_and_the_others_a_little_later(
    shop: Shop,
) -> None:
    shop.takes()
    one, two = shop.attempt(shop.claim()), shop.attempt(shop.claim())
    assert isinstance(one, InLine)
    assert isinstance(two, InLine)
    assert one.look_at == shop.now + TTL
    assert two.look_at == shop.now + TTL + LATER


@pytest.mark.req("R8")
def test_a_fair_claim_does_not_overtake_the_line(shop: Shop) -> None:
    readers(shop, 1)
    shop.waits()  # a writer
    shop.waits(mode=Mode.SHARED)  # though it could share


@pytest.mark.req("R8")
def test_an_unfair_claim_may_overtake(shop: Shop) -> None:
    readers(shop, 1)
    shop.waits()
    shop.takes(mode=Mode.SHARED, fair=False)


# -- modes -----------------------------------------------------------------------------------------


@pytest.mark.req("R10")
@pytest.mark.parametrize("first", Mode)
@pytest.mark.parametrize("second", Mode)
def test_only_equals_share(shop: Shop, first: Mode, second: Mode) -> None:
    shop.takes(mode=first, limit=2)
    answer = shop.attempt(shop.claim(mode=second, limit=2))
    together = first is second and first is not Mode.EXCLUSIVE
    assert isinstance(answer, Held) == together


def test_permits_are_counted(shop: Shop) -> None:
    shop.takes(mode=Mode.PERMITS, permits=2, limit=3)
    shop.takes(mode=Mode.PERMITS, permits=1, limit=3)
    shop.waits(mode=Mode.PERMITS, permits=1, limit=3)


def test_a_large_wish_is_not_overtaken_by_small_ones(shop: Shop) -> None:
    holder = shop.takes(mode=Mode.PERMITS, permits=2, limit=3)
    large = shop.waits(mode=Mode.PERMITS, permits=3, limit=3)
    shop.waits(mode=Mode.PERMITS, permits=1, limit=3)
    shop.store.release(holder, tombstone=False)
    assert shop.granted() == [large.owner]


@pytest.mark.req("R10")
def test_readers_that_wait_behind_a_writer_go_together(shop: Shop) -> None:
    writer = shop.takes()
    waiting = [shop.waits(mode=Mode.SHARED) for _ in range(3)]
    late = shop.waits()
    shop.store.release(writer, tombstone=False)
    assert shop.granted() == [claim.owner for claim in waiting]
    assert not shop.holds(late)


@pytest.mark.req("head writer withdraws in front of readers")
def test_readers_go_on_when_the_writer_before_them_leaves(shop: Shop) -> None:
    readers(shop, 1)
    writer = shop.waits()
    behind = [shop.waits(mode=Mode.SHARED) for _ in range(2)]
    shop.store.withdraw(writer, tombstone=False)
    assert shop.granted() == [claim.owner for claim in behind]


# -- time ------------------------------------------------------------------------------------------


@pytest.mark.req("R6")
@pytest.mark.parametrize(("later", "free"), [(TTL - 0.001, False), (TTL, True), (TTL + 5, True)])
def test_a_holder_ends_with_its_ttl(shop: Shop, later: float, free: bool) -> None:
    shop.takes()
    shop.now += later
    assert isinstance(shop.attempt(shop.claim()), Held) == free


@pytest.mark.req("key expires while waiters queue")
def test_whoever_looks_first_moves_the_line_on(shop: Shop) -> None:
    shop.takes(ttl=1.0)
    first, second = shop.waits(), shop.waits()
    shop.now += 1.0
    assert not shop.holds(second)  # but it looked,
    assert shop.granted() == [first.owner]  # and so the first was called


@pytest.mark.req("several dead waiters in a row")
def test_dead_waiters_are_passed_over(shop: Shop) -> None:
    holder = shop.takes(ttl=100.0)
    for _ in range(3):
        shop.waits(ttl=1.0)
    alive = shop.waits(ttl=50.0)
    shop.now += 1.0
    shop.store.release(holder, tombstone=False)
    assert shop.granted() == [alive.owner]


def test_a_waiter_that_looks_stays(shop: Shop) -> None:
    holder = shop.takes(ttl=100.0)
    waiter = shop.waits(ttl=1.0)
    for _ in range(5):
        shop.now += 0.9
        assert isinstance(shop.store.look(waiter), InLine)
    shop.store.release(holder, tombstone=False)
    assert shop.granted() == [waiter.owner]


def test_a_grant_lasts_its_whole_ttl_however_long_it_waited(shop: Shop) -> None:
    holder = shop.takes(ttl=100.0)
    waiter = shop.waits()
    shop.now += TTL / 2
    shop.store.release(holder, tombstone=False)
    ((owner, held),) = shop.calls
    assert owner == waiter.owner
    assert held is not None
    assert held.expires == shop.now + TTL


def test_the_first_in_line_is_told_of_a_shorter_lease_before_it(shop: Shop) -> None:
    """It was to look when the old holder expires, which is much later than the new one does."""
    holder = shop.takes(ttl=100.0)
    short, first = shop.waits(ttl=1.0), shop.waits(ttl=50.0)
    shop.store.release(holder, tombstone=False)
    assert [(owner, held is None) for owner, held in shop.calls] == [
        (short.owner, False),
        (first.owner, True),
    ]
    answer = shop.store.look(first)
    assert isinstance(answer, InLine)
    assert answer.look_at == shop.now + 1.0


# -- look ------------------------------------------------------------------------------------------


@pytest.mark.req("law 3", "heartbeat in flight while its claim is withdrawn")
def test_looking_never_makes_a_place(shop: Shop) -> None:
    stranger = shop.claim()
    assert isinstance(shop.store.look(stranger), Gone)
    shop.takes()
    assert isinstance(shop.store.look(stranger), Gone)
    waiter = shop.waits()
    shop.store.withdraw(waiter, tombstone=False)
    assert isinstance(shop.store.look(waiter), Gone)
    assert shop.store.inspect("n", True)[0].waiters == ()


# -- renew -----------------------------------------------------------------------------------------


@pytest.mark.req("R20", "law 6")
def test_a_renewal_extends_to_the_full_ttl(shop: Shop) -> None:
    holder = shop.takes()
    shop.now += TTL - 1
    assert shop.store.renew([holder]) == [True]
    shop.now += TTL - 1
    assert shop.holds(holder)
    shop.now += 1
    assert not shop.holds(holder)


@pytest.mark.req("law 6")
def test_a_renewal_never_shortens(shop: Shop) -> None:
    holder = shop.takes()
    expires = shop.now + TTL
    holder.ttl = 1.0
    assert shop.store.renew([holder]) == [True]
    answer = shop.store.look(holder)
    assert isinstance(answer, Held)
    assert answer.expires == expires


@pytest.mark.req("R3")
def test_a_renewal_brings_nothing_back(shop: Shop) -> None:
    expired, released = shop.takes("a"), shop.takes("b")
    waiting = shop.claim("b")
    shop.store.release(released, tombstone=False)
    shop.takes("b")
    shop.attempt(waiting)
    shop.now += TTL
    assert shop.store.renew([expired, released, waiting, shop.claim("c")]) == [False] * 4
    assert not shop.holds(expired)


def test_a_batch_is_answered_one_by_one(shop: Shop) -> None:
    held, gone = shop.takes("a"), shop.claim("b")
    assert shop.store.renew([held, gone, held]) == [True, False, True]
    assert shop.store.renew([]) == []


# -- release, withdraw, evict ----------------------------------------------------------------------


@pytest.mark.req("R9")
def test_a_release_calls_the_next_and_nobody_else(shop: Shop) -> None:
    holder = shop.takes()
    waiting = [shop.waits() for _ in range(3)]
    assert shop.store.release(holder, tombstone=False)
    assert shop.granted() == [waiting[0].owner]
    assert shop.holds(waiting[0])


@pytest.mark.req("R3")
def test_only_the_owner_releases(shop: Shop) -> None:
    holder, waiter, stranger = shop.takes(), shop.waits(), shop.claim()
    for claim in (waiter, stranger):
        assert not shop.store.release(claim, tombstone=False)
    assert shop.holds(holder)
    assert not shop.holds(waiter)


def test_a_second_release_says_that_there_was_nothing(shop: Shop) -> None:
    holder = shop.takes()
    assert [shop.store.release(holder, tombstone=False) for _ in range(2)] == [True, False]


def test_a_release_after_the_ttl_says_so(shop: Shop) -> None:
    holder = shop.takes()
    shop.now += TTL
    assert not shop.store.release(holder, tombstone=False)
    assert shop.store.leftovers() == []


@pytest.mark.req("waiter withdrawn")
def test_a_withdrawn_waiter_leaves_the_order_as_it_was(shop: Shop) -> None:
    holder = shop.takes()
    one, two, three = (shop.waits() for _ in range(3))
    shop.store.withdraw(two, tombstone=False)
    for leaving in (holder, one):
        shop.store.release(leaving, tombstone=False)
    assert shop.granted() == [one.owner, three.owner]


def test_withdrawing_a_holder_hands_over(shop: Shop) -> None:
    holder, waiter = shop.takes(), shop.waits()
    shop.store.withdraw(holder, tombstone=False)
    assert shop.granted() == [waiter.owner]


def test_withdrawing_what_is_not_there_is_fine(shop: Shop) -> None:
    shop.store.withdraw(shop.claim(), tombstone=False)
    assert shop.store.leftovers() == []


@pytest.mark.req(
    "law 3",
    "attempt in flight while its claim is withdrawn",
    "attempt in flight while its claim is released",
)
@pytest.mark.parametrize("end", ["withdraw", "release"])
def test_a_tombstone_refuses_late_attempts_for_one_ttl(shop: Shop, end: str) -> None:
    claim = shop.takes()
    getattr(shop.store, end)(claim, True)
    shop.now += TTL - 0.001
    assert isinstance(shop.attempt(claim), Gone)
    assert len(shop.store.leftovers()) == 1
    shop.now += 0.001
    assert shop.store.leftovers() == []


def test_a_tombstone_buried_again_lasts_from_then_on(shop: Shop) -> None:
    claim = shop.claim()
    shop.store.withdraw(claim, tombstone=True)
    shop.now += TTL / 2
    shop.store.withdraw(claim, tombstone=True)
    shop.now += TTL / 2
    assert isinstance(shop.attempt(claim), Gone)
    shop.now += TTL / 2
    assert isinstance(shop.attempt(claim), Held)


def test_a_tombstone_is_of_one_owner(shop: Shop) -> None:
    shop.store.withdraw(shop.claim(), tombstone=True)
    shop.takes()


def test_evicting_ends_the_holders_and_not_the_line(shop: Shop) -> None:
    held = readers(shop, 2)
    waiter = shop.waits()
    assert shop.store.evict("n") == 2
    assert shop.granted() == [waiter.owner]
    assert shop.store.renew(held) == [False, False]
    assert shop.store.evict("elsewhere") == 0


def test_evicting_counts_who_really_held(shop: Shop) -> None:
    shop.takes()
    shop.now += TTL
    assert shop.store.evict("n") == 0
