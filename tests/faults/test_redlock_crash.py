"""The crash detector on Redlock: what a quorum is for. The rest is in `test_crash.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Misconfigured, Unavailable
from holdfast.backends.redlock.presence import AFTERWARDS, EXACTLY
from holdfast.ports.clock import now
from holdfast.ports.thread import drive
from tests.cli.harness import holdfast as command
from tests.faults.crash import (
    RedlockStore,
    Turned,
    links,
    plain,
    presence_of,
    watching,
)
from tests.faults.peers import Peer
from tests.faults.redis import waiting
from tests.servers import RedisMasters
from tests.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.req("R23", "R34")]

LONG = 60.0
NAME = "0123456789abcdef/1"


@pytest.fixture
def store() -> Iterator[RedlockStore]:
    with RedisMasters(count=3) as masters:
        yield RedlockStore(masters)


def test_a_minority_of_nodes_does_not_matter(store: RedlockStore, tmp_path: Path) -> None:
    """Links that are cut on one, a node that dies, hangs or restarts: nobody is missing who is
    there, and who is dead is found."""
    url = store.fresh(4).replace("node_timeout=1", "node_timeout=0.4")  # one does not answer
    one, two, _ = store.nodes
    with (
        watching(url, tmp_path) as watch,
        Peer(url) as peer,
        holdfast.connect(plain(url)) as eyes,
    ):
        watch.leads()
        lost = "[lease.lost.is_set() for lease in held]"
        peer.acquire("lock('x', ttl=20, renew=1)")
        presence = presence_of(peer)
        one.call("CLIENT", "KILL", "ID", links(one)[presence])
        # A quorum was enough to have it; the one that was too slow is told by the first renewal.
        until(lambda: eyes.inspect("x")[0].holders[0].info["nodes"] == "3/3", "on all nodes")
        one.kill()
        time.sleep(1)
        assert peer.run(lost) == [False]
        assert watch.events("missing") == []
        with Peer(url) as dead:
            dead.acquire("lock('y', ttl=60)")
            dead.kill()
            assert watch.wait("freed")["name"] == "y"
        one.start()  # it has forgotten everything
        until(lambda: eyes.inspect("x")[0].holders[0].info["nodes"] == "3/3", "installed again")
        two.pause()
        try:
            with Peer(url) as dead:
                dead.acquire("lock('z', ttl=60)")
                dead.kill()
                assert watch.wait("freed", 2)["name"] == "z"
        finally:
            two.resume()
        assert {event["name"] for event in watch.events("missing")} <= {"x", "y", "z"}
        assert {event["name"] for event in watch.events("freed")} == {"y", "z"}
        assert peer.run(lost) == [False]
        until(lambda: peer.run("held[0].held"), "held")
        assert peer.run("held[0].release()") is True


def test_a_link_never_gets_another_member(store: RedlockStore) -> None:
    """One that came after a look was absent there, and is not gone: a ping through it would be
    believed while the absence counts."""
    url = plain(store.fresh(1))
    one, two, three = store.nodes
    three.kill()
    with holdfast.connect(url) as locks:
        backend: Any = locks._current.backend
        link = drive(backend.appear(NAME, now() + 5))
        drive(link.ping(now() + 5))
        three.start()
        drive(link.ping(now() + 5))
        assert [NAME in links(node) for node in store.nodes] == [True, True, False]
        two.call("CLIENT", "KILL", "ID", links(two)[NAME])
        with pytest.raises(Unavailable, match="1 of 3"):
            drive(link.ping(now() + 5))
        link.close()
        until(lambda: NAME not in links(one), "closed")
        link = drive(backend.appear(NAME, now() + 5))
        assert all(NAME in links(node) for node in store.nodes)
        link.cut()
        with pytest.raises(Unavailable):
            drive(link.rest(now() + 5))
        link.close()


def test_who_is_absent_on_a_quorum_is_absent(store: RedlockStore) -> None:
    """Whatever the others say, and whoever answers first; and not on less."""
    one, two, three = store.nodes
    with holdfast.connect(plain(store.fresh(1))) as locks:
        backend: Any = locks._current.backend
        roll = Turned(locks).roll
        link = drive(backend.appear(NAME, now() + 5))
        for _ in range(20):
            assert set(drive(roll.look(now() + 5)).present) == {NAME}
        one.call("CLIENT", "KILL", "ID", links(one)[NAME])
        for _ in range(20):
            assert set(drive(roll.look(now() + 5)).present) == {NAME}
        two.call("CLIENT", "KILL", "ID", links(two)[NAME])
        assert NAME in links(three)
        three.pause()
        try:
            assert set(drive(roll.look(now() + 5)).present) == set()
        finally:
            three.resume()
        link.close()


def test_a_look_waits_until_stamps_can_be_told_apart(store: RedlockStore) -> None:
    """A renewal that looks like the vote before it was before the look that follows a search."""
    assert 1000 * AFTERWARDS > 2 * EXACTLY
    with holdfast.connect(plain(store.fresh(1))) as locks:
        roll = Turned(locks).roll
        for _ in range(3):
            drive(roll.claims((), now() + 5))
            drive(roll.look(now() + 5))
            assert now() >= roll._searched + AFTERWARDS


def test_votes_that_were_renewed_are_left_alone(store: RedlockStore) -> None:
    """Each node's vote has a stamp of its own: what is renewed on a quorum stays there."""
    url = store.fresh(30)
    with holdfast.connect(url) as locks, holdfast.connect(plain(url)) as other:
        lease = locks.lock("x", ttl=LONG).acquire(timeout=10)
        assert lease
        assert lease.renew()  # by now on all nodes
        roll = Turned(other).roll
        until(lambda: [i.holders[0].info["nodes"] for i in locks.inspect("x")] == ["3/3"], "3/3")
        found = drive(roll.claims((), now() + 5))
        assert [suspect.name for suspect in found] == ["x"]
        assert set(found[0].stamp.by_place) == {0, 1, 2}
        time.sleep(0.05)
        again = drive(roll.claims((), now() + 5))
        assert again[0].stamp == found[0].stamp
        store.nodes[2].pause()
        try:
            assert lease.renew()
        finally:
            store.nodes[2].resume()
        newer = drive(roll.claims((), now() + 5))
        assert newer[0].stamp != found[0].stamp
        time.sleep(0.3)  # the node that hung may have heard of the renewal after all
        freed = drive(roll.free(found, now() + 5))
        assert freed in ([True], [False])
        assert lease.held
        assert lease.renew()
        [info] = locks.inspect("x")
        assert info.holders
        assert drive(roll.free(drive(roll.claims((), now() + 5)), now() + 5)) == [True]
        assert locks.inspect("x") == []
        assert lease.release() is False


def test_who_waits_is_called_wherever_it_listens(store: RedlockStore) -> None:
    """Also by a node that had no vote of the dead one: nobody may listen to any other."""
    url = store.fresh(30)
    long = "&heartbeat=50"
    with (
        holdfast.connect(url) as dead,
        holdfast.connect(plain(url) + long) as locks,
        holdfast.connect(plain(url)) as other,
    ):
        roll = Turned(other).roll
        for node in store.nodes:
            lease = dead.lock("x", ttl=LONG).acquire(timeout=10)
            assert lease
            assert lease.renew()  # from now on all nodes have it
            until(lambda: other.inspect("x")[0].holders[0].info["nodes"] == "3/3", "everywhere")
            assert node.call("DEL", f"{url.partition('prefix=')[2].partition('&')[0]}:{{x}}") == 1
            with waiting(locks.lock("x", ttl=LONG), timeout=40) as waiter:
                time.sleep(0.5)
                assert not waiter.done
                found = drive(roll.claims((), now() + 5))
                assert drive(roll.free(found, now() + 5)) == [True]
                begun = now()
                waiter.result().release()
                assert now() - begun < 30
            lease.release()


def test_without_a_quorum_there_is_no_link(store: RedlockStore) -> None:
    url = store.fresh(1)
    for node in store.nodes[:2]:
        node.kill()
    few = pytest.raises(Unavailable, match="1 of 3 nodes can be linked to")
    with holdfast.connect(url + "&request_timeout=1") as locks, few:
        locks.lock("x").acquire(timeout=2)
    with holdfast.connect(plain(url)) as other, pytest.raises(Unavailable, match="only 1 of 3"):
        drive(Turned(other).roll.look(now() + 2))


def test_permissions(store: RedlockStore, tmp_path: Path) -> None:
    """As the user of the page; and without its last line it is said what is missing."""
    page = Path(__file__).parents[2] / "docs" / "backends" / "redlock-acl.txt"
    user = page.read_text().replace("PASSWORD", "secret").split()[1:]
    for node in store.nodes:
        node.call("ACL", "SETUSER", *user)
    url = store.url.replace("redlock://", "redlock://holdfast:secret@")
    url += f"?crash_grace=1{store.options}"
    with watching(url, tmp_path) as watch, Peer(url) as peer:
        watch.leads()
        peer.acquire("lock('x', ttl=60)")
        peer.kill()
        watch.wait("freed")
    for node in store.nodes:
        node.call("ACL", "SETUSER", "holdfast", "-client|setname", "-client|list")
    with holdfast.connect(url) as locks, pytest.raises(Misconfigured, match="setname"):
        locks.lock("x").acquire(timeout=5)
    refused = command("sentinel", url=url)
    assert refused.returncode == 78
    assert "has the exact ACL" in refused.stderr
    assert "secret" not in refused.stderr
