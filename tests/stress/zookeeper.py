"""A ZooKeeper that suffers: `python -m tests.stress zookeeper`. Partner: `store.py`.

Its own fault beside those of every store: somebody ends a client's session, by a connection of
their own that says its id and password, which the proxy has seen go by.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator

from kazoo.client import KazooClient  # type: ignore[import-untyped]

from holdfast.backends.zookeeper.naming import CELLS
from tests.faults.zookeeper import close_session, nodes
from tests.servers import ZooKeeperServer
from tests.stress.check import Violation
from tests.stress.record import now
from tests.stress.store import Served

__all__ = ["ZooKeeperStore", "without_ended"]

BASE = "/stress"
RARELY = 10.0
"""Seconds between kills: a session's time begins anew with its server, and what the dead hold would
stay for as long as the server is killed again and again."""
# By their opcodes: create, delete and sync are about a claim.
ABOUT = tuple(code.to_bytes(4, "big") for code in (15, 2, 9))
EARLY = re.compile(r"lost [\d.]+ s before its deadline, at ([\d.]+)$")
LOST = re.compile(r"\] lost\b")


def without_ended(
    found: Iterable[Violation], ended: Iterable[float], wake: float
) -> Iterator[Violation]:
    """Without what follows from somebody's having ended a session at one of these moments: its
    client hears of that before its lease would end, and is not to wait; but the server gives the
    lock to the next at once, so the two overlap until it has heard."""
    moments = list(ended)

    def follows(at: float) -> bool:
        return any(moment <= at <= moment + wake for moment in moments)

    for violation in found:
        if violation.at is not None and LOST.search(violation.text) and follows(violation.at):
            continue
        lines = [
            line
            for line in violation.text.splitlines()
            if not (early := EARLY.search(line)) or not follows(float(early[1]))
        ]
        if lines:
            yield violation._replace(text="\n".join(lines))


class ZooKeeperStore(Served):
    name = "zookeeper"
    framing = "zookeeper"

    def __init__(self, seed: int, calm: float) -> None:
        self._server = ZooKeeperServer(tick=100)
        self._server.start()
        super().__init__(seed, calm, self._server)
        self.url = f"zk://127.0.0.1:{self.proxy.port}{BASE}"
        self._sessions: deque[tuple[int, bytes]] = deque(maxlen=40)
        self.proxy.hold("to_client", matching=self._seen)
        self.faults = {"sessions ended": self._end_session, **self.faults}
        self._killed = 0.0
        self._ended: list[float] = []

    def about_locks(self, frame: bytes) -> bool:
        return frame[8:12] in ABOUT

    def _seen(self, frame: bytes) -> bool:
        """Looks at every reply, and holds none. That to a connect has no xid, and a password."""
        if len(frame) == 41 and frame[4:8] == bytes(4) and frame[20:24] == b"\0\0\0\x10":
            self._sessions.append((int.from_bytes(frame[12:20], "big"), frame[24:40]))
        return False

    def _end_session(self) -> None:
        """Of the last that came or came back, who may be gone: then this is no fault."""
        if self._sessions:
            session, password = self.random.choice(self._sessions)
            moment = now()
            if close_session(self._server.port, session, password):
                self.did["of them alive"] += 1
                self._ended.append(moment)

    def excuse(self, found: list[Violation], wake: float) -> tuple[list[Violation], Counter[str]]:
        return super().excuse(list(without_ended(found, self._ended, wake)), wake)

    def kill(self) -> None:
        if now() < self._killed + RARELY:
            self.did["server kills"] -= 1
            return
        super().kill()
        self._killed = now()

    def leftovers(self, prefix: str, patience: float) -> Iterator[str]:
        """Sessions end by themselves, and the locks' own nodes when they are empty."""
        deadline = now() + 2 * patience
        client = KazooClient(f"127.0.0.1:{self._server.port}")
        client.start()
        try:
            while (left := self._left(client)) and now() < deadline:
                time.sleep(0.1)
            yield from left
        finally:
            client.stop()
            client.close()

    def _left(self, client: KazooClient) -> list[str]:
        found: list[str] = []
        for name in nodes(client, BASE):
            if name != CELLS:
                path = f"{BASE}/{name}"
                below = nodes(client, path)
                found += [f"the node {path}", *(f"the node {path}/{one}" for one in below)]
        return found

    def figures(self) -> dict[str, object]:
        said = self._server.command_of_four("mntr")
        figures = dict(re.findall(r"^(\w+)\t(\S+)$", said, re.MULTILINE))
        return {
            "server": f"ZooKeeper {ZooKeeperServer.version()}",
            "connections now": int(figures["zk_num_alive_connections"]) - 1,
            "ephemeral nodes now": int(figures["zk_ephemerals_count"]),
        }
