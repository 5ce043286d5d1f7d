"""redlock-restart: one of several masters restarts inside a lease, and has forgotten its vote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.lab.history import History
from holdfast.cli.lab.level import NOT_SHOWN, Finding, Form, Level, LockForm, ours
from holdfast.cli.lab.naive import COMPARE_AND_DELETE, NaiveLock
from holdfast.cli.lab.resp import Redis, RedisError

if TYPE_CHECKING:
    from holdfast.cli.lab.scene import Scene

TTL = 5.0
QUERY = f"max_ttl={TTL:g}&node_timeout=0.5"


class Majority(NaiveLock):
    """Redlock as it was published."""

    def __init__(self, url: str, key: str, me: str, ttl: float) -> None:
        hosts = url.removeprefix("redlock://").split(",")
        self.nodes = [Redis(f"redis://{host}", timeout=0.5) for host in hosts]
        super().__init__(self.nodes[0], key, me, ttl)

    def attempt(self) -> bool:
        votes = 0
        for node in self.nodes:
            try:
                taken = node.call("SET", self.key, self.owner, "NX", "PX", self.milliseconds)
                votes += taken == "OK"
            except (OSError, RedisError):
                pass  # it is down: the others decide
        if votes > len(self.nodes) // 2:
            return True
        self.release()
        return False

    def release(self) -> bool:
        votes = 0
        for node in self.nodes:
            try:
                votes += node.call("EVAL", COMPARE_AND_DELETE, 1, self.key, self.owner) == 1
            except (OSError, RedisError):
                pass
        return votes > len(self.nodes) // 2


def _make(url: str, name: str, me: str, ttl: float) -> LockForm:
    return Majority(url, name, me, ttl)


def play(scene: Scene) -> None:
    # They are new, and might have forgotten something.
    scene.until_the_masters_are(TTL + 2, begin=True)
    scene.lose_a_node(2)
    scene.ask("ada", patience=2.0, attempt=False)
    scene.until("ada", "hold")
    scene.bring_a_node_back(2)
    scene.lose_a_node(1)
    scene.bring_a_node_back(1)
    scene.ask("bob", patience=0.8, attempt=False)
    answer = scene.until("bob", "hold", "gave up", "failed")
    scene.rest(0.2)
    scene.look("ada")
    scene.release("ada")
    if answer != "hold":
        scene.until_the_masters_are(TTL + 2)
        scene.ask("bob", patience=5.0, attempt=False)
        scene.until("bob", "hold")
    scene.rest(0.2)
    scene.release("bob")


def judge(history: History) -> Finding:
    if not (history.held("ada") and history.held("bob")):
        return Finding("unclear", f"{NOT_SHOWN}ada and bob did not both have the lock")
    if history.overlaps():
        return Finding(
            "broken", "node 1 voted for ada, forgot it, and voted for bob: both held the lock"
        )
    if not history.first("bob", "gave up", "failed"):
        return Finding("unclear", f"{NOT_SHOWN}bob was not refused while ada held the lock")
    return Finding(
        "held", "the nodes that had restarted did not count: bob had the lock only after ada"
    )


LEVEL = Level(
    name="redlock-restart",
    title="Redlock: a node restarts inside the lease",
    fault="Three masters. ada has the votes of nodes 0 and 1, while node 2 is down. Node 2 comes "
    "back; node 1 is killed and comes back without its memory. bob asks for the lock.",
    why="A majority excludes another one only if every node remembers its vote for as long as the "
    "lease lasts. holdfast does not count a node that was started less than max_ttl ago, by its "
    "own word or because another process answers in its place.",
    ttl=TTL,
    others_ttl=TTL,
    cast=("ada", "bob"),
    forms=(
        Form("naive", "SET stock ada NX PX 5000, on a majority", "broken", _make, Majority),
        ours(
            TTL,
            f'holdfast.connect("redlock://a,b,c?max_ttl={TTL:g}").lock("stock", ttl={TTL:g})',
            query=QUERY,
        ),
    ),
    play=play,
    judge=judge,
    cold=("ada", "bob"),
    masters=True,
)
