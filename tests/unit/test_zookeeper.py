"""The ZooKeeper backend's rules without a server: how names are spelled, and who is whose turn."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast import Misconfigured, Mode
from holdfast.backends.common import holders
from holdfast.backends.url import parse
from holdfast.backends.zookeeper import ZooKeeperBackend, requests
from holdfast.backends.zookeeper.handler import Handler
from holdfast.backends.zookeeper.naming import (
    CELLS,
    Contender,
    blockers,
    decoded,
    encoded,
    in_order,
    prefix_of,
    standing,
)
from holdfast.backends.zookeeper.pool import Pool
from holdfast.ports.bare import ThreadEvent
from holdfast.ports.clock import now
from holdfast.types import Claim

NAMES = st.text(min_size=1).filter(lambda name: not re.search("[\ud800-\udfff]", name))
# What the server's own check refuses.
REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


@pytest.mark.req("names", "law 10")
@given(NAMES)
def test_a_name_is_one_path_segment_and_comes_back(name: str) -> None:
    segment = encoded(name)
    assert "/" not in segment
    assert segment not in ("", ".", "..", "zookeeper", CELLS)
    assert not REFUSED.search(segment)
    assert decoded(segment) == name


@pytest.mark.req("names", "law 10")
@given(NAMES, NAMES)
def test_different_names_are_spelled_differently(one: str, other: str) -> None:
    assert (encoded(one) == encoded(other)) == (one == other)


@pytest.mark.req("names")
def test_names_that_need_no_spelling_are_kept() -> None:
    for name in ("plain", "with space", "a.b", "ümläut", "锁", "q?*[]{}'\"\\", "...", "~"):
        assert encoded(name) == name
    assert encoded("a/b%c") == "a%2Fb%25c"
    assert decoded("a%2fb") is None  # not how we would spell it: somebody else's
    assert decoded(CELLS) is None


@pytest.mark.req("R50")
def test_nodes_are_called_as_kazoo_calls_them() -> None:
    owner = "0" * 32
    guid = "[0-9a-f]{32}"
    assert re.fullmatch(guid + "__lock__", prefix_of(Claim("x", owner)))
    assert re.fullmatch(guid + "__rlock__", prefix_of(Claim("x", owner, Mode.SHARED)))
    permits = prefix_of(Claim("x", owner, Mode.PERMITS, permits=2, limit=5))
    assert re.fullmatch(guid + "__permits_2_of_5__lock__", permits)
    assert owner not in permits  # law 9
    (found,) = in_order([f"{permits}0000000007"])
    assert found == Contender(f"{permits}0000000007", 7, Mode.PERMITS, 2, 5)


@pytest.mark.req("R50", "R8")
def test_the_line_is_in_the_order_of_the_sequence() -> None:
    guids = [f"{n:032x}" for n in range(6)]
    nodes = [
        f"{guids[0]}__lock__2147483646",
        f"{guids[1]}__rlock__2147483647",
        f"{guids[2]}__lock__-2147483648",  # it wraps
        f"{guids[3]}__lock__-2147483647",
    ]
    for turned in (nodes, nodes[::-1], nodes[2:] + nodes[:2]):
        assert [claim.node for claim in in_order(turned)] == nodes
    negative, first, foreign = f"{guids[4]}__lock__-000000005", "__lock__0000000001", "-lock-"
    line = in_order(
        [negative, guids[5] + first, f"_c_{guids[0]}{foreign}0000000000", guids[1], "readme"]
    )
    assert [(claim.sequence, claim.mode) for claim in line] == [
        (-5, Mode.EXCLUSIVE), (0, Mode.EXCLUSIVE), (1, Mode.EXCLUSIVE),
    ]  # fmt: skip


def lines() -> st.SearchStrategy[list[Contender]]:
    claim = st.one_of(
        st.just((Mode.EXCLUSIVE, 1)),
        st.just((Mode.SHARED, 1)),
        st.tuples(st.just(Mode.PERMITS), st.integers(1, 4)),
    )
    return st.lists(claim, max_size=12).map(
        lambda claims: [
            Contender(f"{n:032x}", n, mode, permits, 4) for n, (mode, permits) in enumerate(claims)
        ]
    )


@pytest.mark.req("R10", "B5", "R8")
@given(lines())
def test_who_holds_is_compatible_and_nobody_overtakes(line: list[Contender]) -> None:
    held = holders(line)
    assert held == [not blockers(line, index) for index in range(len(line))]
    hold = [claim for claim, holds in zip(line, held, strict=True) if holds]
    assert hold == line[: len(hold)]
    if line:
        assert held[0]
    modes = {claim.mode for claim in hold}
    assert len(modes) <= 1
    if Mode.EXCLUSIVE in modes:
        assert len(hold) == 1
    if Mode.PERMITS in modes:
        assert sum(claim.permits for claim in hold) <= 4


@pytest.mark.req("R9", "B5")
@given(lines(), st.sets(st.integers(0, 11)))
def test_no_wake_up_is_lost(line: list[Contender], leavers: set[int]) -> None:
    """Whoever leaves: if none of those that a claim watches did, it is still not its turn."""
    for index, claim in enumerate(line):
        watched = blockers(line, index)
        assert set(watched) <= set(line[:index])
        if watched and not any(line.index(one) in leavers for one in watched):
            left = [one for n, one in enumerate(line) if n not in leavers or one is claim]
            assert blockers(left, left.index(claim))


@pytest.mark.req("R10", "B5", "R8")
@given(
    st.lists(st.sampled_from(["__lock__", "__rlock__", "__permits_1_of_2__lock__", "-lock-", "x"])),
    st.integers(-3, 3) | st.integers(1999999990, 1999999999) | st.integers(2147483640, 2147483647),
    st.randoms(use_true_random=False),
)
@example(["__lock__", "__lock__"], -2, random.Random(1))
@example(["__lock__", "__lock__"], -1, random.Random(1))
@example(["__lock__", "__lock__"], 1999999999, random.Random(1))
def test_a_standing_is_what_the_whole_line_says(kinds: list[str], start: int, chance: Any) -> None:
    """Also in a line that is not taken apart, and where the sequence wraps."""
    wrapped = [(start + n + (1 << 31)) % (1 << 32) - (1 << 31) for n in range(len(kinds))]
    # (Of a stranger's name nobody knows whether its last dash is a sign.)
    nodes = [
        f"{n:032x}{kind}{wrapped[n]:010d}"
        for n, kind in enumerate(kinds)
        if wrapped[n] >= 0 or kind.endswith("lock__")
    ]
    for some in (nodes, [node for node in nodes if "__lock__" in node and "permits" not in node]):
        shuffled = chance.sample(some, len(some))
        line = in_order(some)
        for index, claim in enumerate(line):
            where = standing(shuffled, claim.node)
            assert where is not None
            assert where.ahead == index
            assert [*where.blocking] == [one.node for one in blockers(line, index)]
            assert where.first == line[0].node
        assert standing(shuffled, f"{99:032x}__lock__0000000000") is None


@pytest.mark.req("R50")
@given(st.lists(st.text(), max_size=5) | st.lists(st.text(min_size=3, max_size=3), max_size=9))
def test_lists_are_read_as_they_were_written(texts: list[str]) -> None:
    def packed(text: str) -> bytes:
        raw = text.encode("utf-8", "replace")
        return len(raw).to_bytes(4, "big") + raw

    said = b"header" + len(texts).to_bytes(4, "big") + b"".join(map(packed, texts))
    sure = [text.encode("utf-8", "replace").decode() for text in texts]
    assert requests.get_children("/x").deserialize(said, 6) == sure


@pytest.mark.req("R9", "B5")
def test_no_wake_up_is_lost_in_any_short_line() -> None:
    """All lines of up to five, and whoever leaves: what chance may not come upon."""
    kinds = [(Mode.EXCLUSIVE, 1), (Mode.SHARED, 1), (Mode.PERMITS, 1), (Mode.PERMITS, 2)]
    for length in range(2, 6):
        for claims in itertools.product(kinds, repeat=length):
            line = [Contender(f"{n:032x}", n, *claim, 2) for n, claim in enumerate(claims)]
            watched = blockers(line, length - 1)
            for leaver in line[:-1]:
                if watched and leaver not in watched:
                    left = [one for one in line if one is not leaver]
                    assert blockers(left, length - 2)


@pytest.mark.req("R50")
def test_a_number_that_nobody_can_read_is_no_permit() -> None:
    """Anybody may make such a node: `ValueError` for all who came to that lock."""
    (one,) = in_order([f"{'x' * 32}__permits_{'9' * 5000}_of_1__lock__0000000001"])
    assert one.mode is Mode.EXCLUSIVE
    (one,) = in_order([f"{'x' * 32}__permits_{'9' * 4300}_of_1__lock__0000000001"])
    assert one.mode is Mode.PERMITS


@pytest.mark.req("R50", "R6")
@given(st.floats(0.001, 10**8))
def test_a_session_lasts_for_the_ttl_and_not_much_longer(ttl: float) -> None:
    timeout = Pool.key_of(ttl) / 1000
    if ttl < 2000:
        assert 1.5 * ttl * (1 - 1e-9) <= timeout <= 1.5 * ttl * 1.26 + 0.001
    assert timeout <= 3600
    assert Pool.key_of(30.0) == 45000


@pytest.mark.req("R50")
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("zk://", "host"),
        ("zk://h/x?acl=creator", "user"),
        ("zk://h/x?tls=1&cert=a.pem", "key"),
        ("zk://h/x?tls=1&ca=/no/such/file.pem", "cannot be loaded"),
        ("zk://h/x?acl=everybody", "choose from"),
        ("zk://h/x?paretns=persistent", "parents"),
    ],
)
def test_mistakes_in_the_url(url: str, said: str) -> None:
    with pytest.raises(Misconfigured, match=said):
        ZooKeeperBackend.from_url(parse(url))


@pytest.mark.req("B3", "law 4")
def test_who_is_hurried_may_be_hurried_by_a_finaliser() -> None:
    """`threading.Event.set` takes a lock, and a finaliser that runs inside of it wants the same."""
    nobody: Any = None
    handler = Handler(nobody, None)
    hurried: Any = handler.hurried
    hurried.set()
    assert isinstance(hurried, ThreadEvent)
    began = now()
    handler.sleep_func(20)
    assert now() - began < 10
