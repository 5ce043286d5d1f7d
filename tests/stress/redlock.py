"""Five masters of the stress run's own, and what is done to them: `python -m tests.stress redlock`.

Contract: as `store.py`; but the nodes keep nothing on disk, so that one that is killed has
forgotten its votes, and sits out its quarantine. At most two of the five are broken or quarantined
at a time: a majority is always there. Now and then all are cut at once, so that waiters and holders
learn of that, too. Overlaps are violations here, since none of these faults excuses them.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

from holdfast.testing import FaultProxy
from tests.servers import RedisMasters, RedisServer, reaper
from tests.stress.actor import LONGEST
from tests.stress.check import Span
from tests.stress.record import now
from tests.stress.store import LONG, MEMORY, SHORT, about_locks

__all__ = ["RedlockStore"]

NODES, MINORITY = 5, 2
QUARANTINE = LONGEST * 1.01 + 1.0  # uptime is in whole seconds


class RedlockStore:
    name = "redlock"

    def __init__(self, seed: int, calm: float) -> None:
        self._random = random.Random(f"store {seed}")
        self._calm = calm
        self._masters = RedisMasters(count=NODES).start()
        self._proxies = [
            FaultProxy(("127.0.0.1", node.port), framing="resp") for node in self._masters.nodes
        ]
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self._proxies)
        # A busy machine is not to be taken for broken nodes.
        self.url = (
            f"redlock://{hosts}?fence_memory={MEMORY}&max_ttl={LONGEST}&node_timeout=0.3&poll=0.05"
        )
        self.did: Counter[str] = Counter()
        self.stops: list[Span] = []
        self._forgetful: dict[int, float] = {}  # who restarted, and until when it does not count
        self._next = now() + 2.0
        self._begun = 0.0
        self._ends = math.inf
        self._end: Callable[[], None] = self.heal
        time.sleep(QUARANTINE + 1)  # they are new

    def pids(self) -> set[int]:
        """Of the processes that serve it."""
        return {node.pid for node in self._masters.nodes if node.alive} | {reaper.pid()}

    def advance(self) -> None:
        """Begin or end what is due."""
        moment = now()
        if moment >= self._ends:
            self._over()
        elif self._ends == math.inf and moment >= self._next:
            self._next = moment + min(5.0, self._random.expovariate(1 / self._calm))
            self._begun = moment
            self._strike(moment)

    def _strike(self, moment: float) -> None:
        sick = [place for place, until in self._forgetful.items() if until > moment]
        able = MINORITY - len(sick)
        if able <= 0:
            return
        well = [place for place in range(NODES) if place not in sick]
        places = self._random.sample(well, self._random.randint(1, able))
        what, fault = self._random.choice(list(self._faults().items()))
        if what == "cuts of all":
            places = list(range(NODES))
        self.did[what] += 1
        begun = [fault(place) for place in places]
        ends = [end for end in begun if end is not None]
        if not ends:
            self.stops.append((moment, now()))
            return

        def over() -> None:
            for undo in ends:
                undo()

        self._end = over
        self._ends = now() + math.exp(self._random.uniform(math.log(SHORT), math.log(LONG)))

    def _faults(self) -> dict[str, Callable[[int], Callable[[], None] | None]]:
        return {
            "script flushes": self._flush,
            "resets": self._reset,
            "resets in a reply": self._half_a_reply,
            "resets in a request": self._half_a_request,
            "cuts": self._cut,
            "cuts of all": self._cut,
            "silences": self._silence,
            "delays": self._delay,
            "split frames": self._split,
            "stalls": self._stall,
            "node pauses": self._pause,
            "node kills": self._kill,
            "nodes down": self._down,
        }

    def heal(self) -> None:
        if self._ends < math.inf:
            self._over()
        for proxy in self._proxies:
            proxy.heal()

    def _over(self) -> None:
        self._end()
        self.stops.append((self._begun, now()))
        self._ends = math.inf

    def leftovers(self, prefix: str, patience: float) -> Iterator[str]:
        """Every key expires by itself."""
        deadline = now() + patience + MEMORY + LONGEST
        for node in self._masters.nodes:
            while (keys := node.call("KEYS", f"*{{{prefix}*")) and now() < deadline:
                time.sleep(0.1)
            assert isinstance(keys, list)
            for key in keys:
                yield f"the key {key}, for {node.call('PTTL', str(key))} ms"

    def figures(self) -> dict[str, object]:
        clients = [
            int(node.info("clients")["connected_clients"]) - 1 for node in self._masters.nodes
        ]
        return {
            "server": f"redis-server {RedisServer.version()}, {NODES} masters",
            "connections now": clients,
        }

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        self._masters.stop()

    # -- faults of one node: what ends them, if they last -----------------------------------------

    def _flush(self, place: int) -> None:
        self._masters.nodes[place].call("SCRIPT", "FLUSH")

    def _reset(self, place: int) -> None:
        self._proxies[place].reset()

    def _half_a_reply(self, place: int) -> None:
        self._proxies[place].reset_on_reply(after=self._random.randint(0, 3), to=about_locks)

    def _half_a_request(self, place: int) -> None:
        after = self._random.randint(0, 300)
        self._proxies[place].reset_on_request(after=after, matching=about_locks)

    def _cut(self, place: int) -> Callable[[], None]:
        return self._proxies[place].sever().undo

    def _silence(self, place: int) -> Callable[[], None]:
        proxy = self._proxies[place]
        undo = proxy.blackhole().undo

        def end() -> None:
            proxy.reset()
            undo()

        return end

    def _delay(self, place: int) -> Callable[[], None]:
        return self._proxies[place].delay(self._random.uniform(0.005, 0.2)).undo

    def _split(self, place: int) -> Callable[[], None]:
        return self._proxies[place].split(self._random.randint(2, 40)).undo

    def _stall(self, place: int) -> Callable[[], None]:
        return self._proxies[place].hold("both").undo

    def _pause(self, place: int) -> Callable[[], None]:
        self._masters.nodes[place].pause()
        return self._masters.nodes[place].resume

    def _kill(self, place: int) -> None:
        self._masters.nodes[place].kill()
        self._back(place)

    def _down(self, place: int) -> Callable[[], None]:
        self._masters.nodes[place].kill()
        return lambda: self._back(place)

    def _back(self, place: int) -> None:
        self._masters.nodes[place].restart()
        self._forgetful[place] = now() + QUARANTINE + 1
