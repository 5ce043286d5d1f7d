"""The detector's rules, one by one, on a store that says what it is told to and a fake clock."""

from __future__ import annotations

from collections.abc import Container, Coroutine, Sequence
from typing import Any, TypeVar, cast

import pytest

from holdfast.core.presence import Look, Roll, Suspect, grace_of
from holdfast.errors import Unavailable
from holdfast.sentinel import detector as module
from holdfast.sentinel.detector import Detector

pytestmark = pytest.mark.req("R23")

T = TypeVar("T")


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast(T, stop.value)
    raise AssertionError("it waits")


class Store:
    """A roll, and the clock."""

    complete = True

    def __init__(self) -> None:
        self.time = 1000.0
        self.ground: object = 1
        self.present = {"alive/1"}
        self.held: dict[str, tuple[str, int]] = {}  # name -> presence and stamp
        self.did: list[str] = []
        self.looks: list[set[str]] = []  # what the next looks see, if not `present`
        self.cost = {"look": 0.0, "search": 0.0}
        self.away = False
        self.silent = False
        self.said: list[str] = []
        self.detector = Detector(cast(Any, self), cast(Roll, self), self.hear)

    def now(self) -> float:
        return self.time

    def hear(self, event: str, suspect: Suspect | None = None, **more: object) -> None:
        self.said.append(event if suspect is None else f"{event} {suspect.name}")

    async def look(self, deadline: float) -> Look:
        self.did.append("look")
        self.time += self.cost["look"]
        if self.away:
            raise Unavailable("away")
        seen = self.looks.pop(0) if self.looks else self.present
        return Look(self.ground, dict.fromkeys(seen))

    async def claims(self, present: Container[str], deadline: float) -> list[Suspect]:
        self.did.append("search")
        self.time += self.cost["search"]
        return [
            Suspect(name, presence, name, {}, stamp)
            for name, (presence, stamp) in self.held.items()
            if presence not in present
        ]

    async def free(self, suspects: Sequence[Suspect], deadline: float) -> list[bool | None]:
        self.did.append("free")
        if self.silent:
            return [None] * len(suspects)
        freed: list[bool | None] = []
        for suspect in suspects:
            freed.append(self.held.get(suspect.name) == (suspect.presence, suspect.stamp))
            if freed[-1]:
                del self.held[suspect.name]
        return freed

    async def close(self) -> None: ...

    def turn(self, seconds: float = 0.0) -> float:
        """Let time pass, then one turn; in how many seconds it wants the next."""
        self.time += seconds
        return drive(self.detector.turn()) - self.time

    def turns(self, seconds: float) -> None:
        end = self.time + seconds
        while self.time < end:
            self.time += min(max(0.001, self.turn()), end - self.time)


@pytest.fixture
def store() -> Store:
    return Store()


def test_the_dead_are_freed_after_their_grace_and_the_living_are_not(store: Store) -> None:
    store.held = {"a": ("alive/1", 1), "d": ("dead/2", 1)}
    store.turns(1.99)
    assert store.said == ["missing d"]
    store.turns(0.2)
    assert store.said == ["missing d", "freed d"]
    assert set(store.held) == {"a"}


def test_a_claim_is_written_down_before_its_client_is_absent(store: Store) -> None:
    """Who is absent in the first look, renews, and is there in the second, was never suspected."""
    store.turn()
    store.held = {"d": ("dead/1", 1)}
    store.looks = [set(), {"dead/1"}]
    store.turn(2)
    assert store.did[-3:] == ["look", "search", "look"]
    assert store.said == []


def test_the_grace_begins_after_the_second_look(store: Store) -> None:
    store.held = {"d": ("dead/1", 1)}
    store.cost = {"look": 0.4, "search": 5.0}
    store.turn()
    store.cost = {"look": 0.0, "search": 0.0}
    store.turn(0.999)
    assert store.said == ["missing d"]
    store.turn(0.01)
    assert store.said[-1] == "freed d"


def test_it_is_freed_only_if_it_was_absent_to_the_end(store: Store) -> None:
    """Of its grace: the look that decides was sent afterwards."""
    store.held = {"d": ("dead/1", 1)}
    store.turn()
    store.cost["look"] = 0.2
    store.turn(0.9)  # sent before, answered after
    assert "free" not in store.did
    store.present = {"alive/1", "dead/1"}
    store.turn()
    assert "free" not in store.did
    assert store.said == ["missing d", "returned d"]


def test_a_renewal_begins_it_anew(store: Store) -> None:
    store.held = {"d": ("dead/0.5", 1)}
    store.turn()
    store.held = {"d": ("dead/0.5", 2)}
    store.turn(0.6)
    assert store.said == ["missing d", "changed d"]
    store.turn()
    store.turn(0.4)
    assert store.said[2:] == ["missing d"]
    store.turn(0.2)
    assert store.said[3:] == ["freed d"]


def test_a_search_in_between_notices_a_renewal(store: Store) -> None:
    store.held = {"d": ("dead/3", 1)}
    store.turn()
    store.held = {"d": ("dead/3", 2)}
    store.turn(2)
    assert store.did.count("search") == 2
    store.turn(1.1)
    assert "free" not in store.did
    store.turn(2)
    assert store.said[-1] == "freed d"


@pytest.mark.parametrize("what", ["another ground", "a look that fails"])
def test_suspicion_begins_anew(store: Store, what: str) -> None:
    store.held = {"d": ("dead/1", 1)}
    store.turn()
    if what == "another ground":
        store.ground = 2
        store.turn(0.9)
    else:
        store.away = True
        with pytest.raises(Unavailable):
            store.turn(0.9)
        store.away = False
        store.turn()
    assert store.said == ["missing d", "anew", "missing d"]
    store.turn(0.9)
    assert "free" not in store.did
    store.turn(0.2)
    assert store.said[-1] == "freed d"


def test_what_is_no_presence_is_never_freed(store: Store) -> None:
    for number, presence in enumerate(("", "x", "x/", "x/soon", "x/-1", "x/0", "x/nan")):
        assert grace_of(presence) == float("inf"), presence
        store.held[f"d{number}"] = (presence, 1)
    store.turns(30)
    assert "free" not in store.did


def test_looks_follow_the_smallest_grace_and_what_they_cost(store: Store) -> None:
    store.present = {"a/5", "b/1"}
    assert store.turn() == pytest.approx(0.1)
    store.present = set()
    store.turn(10)
    assert store.turn() == pytest.approx(module.SELDOM)
    store.present = {"a/0.1"}
    store.turn()
    assert store.turn() == pytest.approx(module.OFTEN)
    store.cost["look"] = 0.05
    assert store.turn() == pytest.approx(0.95)


def test_somebody_who_disappears_is_searched_for_at_once_but_not_all_the_time(
    store: Store,
) -> None:
    store.cost["search"] = 0.1
    store.turn()
    assert store.did.count("search") == 1
    for number in range(10):  # clients that come and go
        store.present = {f"{number}/1"}
        store.turn(0.05)
    assert store.did.count("search") == 1
    store.turns(1.9)
    assert store.did.count("search") == 2


def test_somebody_who_was_never_seen_is_found(store: Store) -> None:
    store.turn()
    store.held = {"d": ("dead/1", 1)}
    store.turns(module.SEARCH + 1.5)
    assert store.said == ["missing d", "freed d"]


def test_where_a_look_sees_only_who_is_known_there_is_a_search_for_each(store: Store) -> None:
    """Who came and died between two searches would be missed until the next."""
    store.complete = False
    store.turn()
    store.held = {"d": ("dead/1", 1)}
    store.turn(0.11)
    assert store.said == ["missing d"]
    store.cost["search"] = 0.1
    store.turn(0.11)
    before = store.did.count("search")
    store.turns(1.8)
    assert store.did.count("search") <= before + 1, "it takes a twentieth of the time"


def test_many_are_freed_a_few_at_a_time_and_not_all_given_up_for_one(store: Store) -> None:
    number = 2 * module.AT_ONCE + 1
    store.held = {f"d{n}": ("dead/1", 1) for n in range(number)}
    store.turn()
    store.silent = True
    store.turn(1.1)
    assert store.did.count("free") == 1
    assert len([said for said in store.said if said.startswith("unknown")]) == module.AT_ONCE
    store.silent = False
    store.turn(0.1)
    assert len([said for said in store.said if said.startswith("freed")]) == number - module.AT_ONCE
    store.turns(2.5)
    assert not store.held
