"""The hub: all watches of a client on one stream, which is resumed when it breaks.

Contract: `watch` never waits and loses nothing: it begins at a revision that its caller has seen
the store at, and goes on from the last one heard of, on another endpoint if it must. Whoever
cannot be served (etcd has forgotten that revision, nobody can be reached, the loop was ended) is
called with None: look for yourself. A stream that is silent is asked for a sign of life, and
replaced if none comes. One loop in the background serves it, while there is anything to watch and
a little longer.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable

from holdfast.backends.etcd import wire
from holdfast.backends.etcd.answers import Garbled, KeyValue, WatchAnswer
from holdfast.backends.etcd.channel import Channel, Stream
from holdfast.backends.etcd.http2 import Failure
from holdfast.core.backoff import pause
from holdfast.core.port import Port, Task, why_not

__all__ = ["Hub", "Watch"]

log = logging.getLogger("holdfast")

CONNECT = 2.0
QUIET = 10.0
"""After so many silent seconds a sign of life is asked for. etcd takes more than one in five
seconds for an attack."""
SIGN = 5.0
"""And must come within so many."""
LOG_IN = 1.0
"""Not more often than that for the sake of a watch."""
REFUSED = ("auth", "token", "permission denied")
LINGER = 10.0
"""How long the stream is kept when there is nothing to watch."""

Call = Callable[[list[KeyValue] | None], None]
"""Called with what was deleted; None: look for yourself."""


class Watch:
    """Deletions of a key, or of the keys up to `end`, from the revision `since` on. `puts`: those,
    too. `before`: what was deleted is told as it was.

    Hazard: a watch that begins in the past is told of it, and of all that happens until then, only
    when etcd looks after such watches: every 100 ms. A `prompt` one begins at the present; if the
    store has gone on since `since`, `behind` is set and it is called: look for yourself, once."""

    __slots__ = (
        "before", "begun", "behind", "call", "end", "key", "number", "prompt", "puts", "since",
    )  # fmt: skip

    def __init__(
        self,
        key: bytes,
        since: int,
        call: Call,
        *,
        end: bytes = b"",
        puts: bool = False,
        before: bool = False,
        prompt: bool = False,
    ) -> None:
        self.number = 0  # on the stream
        self.begun = False
        self.behind = False
        self.prompt = prompt
        self.key = key
        self.end = end
        self.since = since
        self.call = call
        self.puts = puts
        self.before = before

    def request(self) -> bytes:
        since = 0 if self.prompt and not self.begun else self.since
        return wire.watch_create(self.number, self.key, self.end, since, self.puts, self.before)


class Hub:
    def __init__(self, channel: Channel, port: Port) -> None:
        self._channel = channel
        self._port = port
        self._numbers = itertools.count(1)
        self._watches: dict[int, Watch] = {}
        self._stream: Stream | None = None
        self._task: Task | None = None  # the loop, as long as it will look at what is added
        self.closed = False
        self._suspect = False
        self._log_in_at = 0.0

    def add(self, watch: Watch) -> None:
        """Never waits. Whoever adds removes, whatever happens meanwhile."""
        with self._port.mutex():
            if self.closed:
                watch.call(None)
                return
            watch.number = next(self._numbers)
            self._watches[watch.number] = watch
            if self._stream is not None:
                self._stream.send(watch.request())
            if self._task is None or not self._task.alive:
                self._task = self._port.task(self._run, _farewell, "holdfast-etcd-watch")
                trouble = why_not(self._task.start)
                if trouble is not None:  # who waits for what nobody watches would wait for ever
                    self._task = None
                    raise trouble

    def remove(self, watch: Watch) -> None:
        with self._port.mutex():
            if self._watches.pop(watch.number, None) is not None and self._stream is not None:
                self._stream.send(wire.watch_cancel(watch.number))

    def suspect(self) -> None:
        """Somebody got no answer: the stream may be as dead as that connection."""
        with self._port.mutex():
            if self._stream is not None:
                self._suspect = True
                self._stream.nudge()

    async def close(self, deadline: float) -> None:
        self.closed = True
        self._call_all()
        with self._port.mutex():
            if self._stream is not None:
                self._stream.nudge()
        task = self._task
        if task is not None:
            await task.join(deadline)

    # -- the loop ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        try:
            while not self._done():
                useful = False
                try:
                    useful = await self._once()
                except Exception:  # whatever it was: those who wait must not wait for us
                    log.exception("the watch stream of etcd broke unexpectedly; another is opened")
                failures = 0 if useful else failures + 1
                if not useful:
                    self._call_all()
                    await self._port.sleep(pause(failures, self._port.random(), math.inf))
        except BaseException:
            self._task = None
            self._call_all()  # who goes on waiting has another loop started
            raise

    async def _once(self) -> bool:
        """One stream, from its beginning to its end; False: it was of no use."""
        stream = await self._channel.open(wire.WATCH, self._port.now() + CONNECT)
        if isinstance(stream, Failure):
            return False
        useful = False
        try:
            useful = await self._serve(stream)
        finally:
            with self._port.mutex():
                self._stream = None
            await stream.close()
            if not useful:
                self._channel.move_on()
        return useful

    def _done(self) -> bool:
        """Nothing to watch: who comes now starts another loop."""
        with self._port.mutex():
            if self.closed or not self._watches:
                self._task = None
                return True
            return False

    def _call_all(self) -> None:
        for watch in list(self._watches.values()):
            watch.call(None)

    async def _serve(self, stream: Stream) -> bool:
        """Until the stream ends; False: it was of no use."""
        port = self._port
        with port.mutex():
            self._suspect = False
            self._stream = stream
            for watch in self._watches.values():  # those added from now on send for themselves
                stream.send(watch.request())
        useful = False
        asked = 0.0  # when a sign of life was asked for
        idle_since = port.now()
        while not self.closed and not self._suspect:
            now = port.now()
            limit = asked + SIGN if asked else max(stream.heard, asked) + QUIET
            if self._watches:
                idle_since = now
            else:
                limit = min(limit, idle_since + LINGER)
            message = await stream.receive(max(limit, now + 0.01))
            if isinstance(message, bytes):
                try:
                    answer = WatchAnswer.read(message)
                except Garbled as error:  # whom it was for, nobody knows
                    log.warning("%s; another watch is begun", self._channel.stranger(error))
                    return False
                useful = True
                self._dispatch(answer)
                continue
            if isinstance(message, Failure):
                return useful
            now = port.now()
            if not self._watches and now >= idle_since + LINGER:
                return True
            if asked and stream.heard >= asked:
                asked = 0.0
            elif asked and now >= asked + SIGN:
                return useful
            if not asked and now >= stream.heard + QUIET:
                stream.ping()
                asked = now
        return useful or self.closed

    def _dispatch(self, answer: WatchAnswer) -> None:
        watch = self._watches.get(answer.watch)
        if answer.canceled:
            refused = any(sign in answer.reason for sign in REFUSED)
            if refused and self._port.now() >= self._log_in_at:
                # The token that the stream was opened with is over, as it seems: nothing new can be
                # watched on it. Log in again, and begin another. Now and then only, since this user
                # may really not be allowed to.
                self._log_in_at = self._port.now() + LOG_IN
                self._channel.forget_token()
                self._suspect = True
            if watch is not None:
                watch.call(None)
            elif refused:  # etcd does not say which of them
                self._call_all()
        elif watch is not None and answer.reached:
            watch.since = answer.reached + 1
            watch.call(answer.gone)
        elif watch is not None and answer.created:
            _begins(watch, answer.created)


def _begins(watch: Watch, revision: int) -> None:
    """The store, at this revision, watches from now on."""
    if watch.prompt and not watch.begun:
        watch.begun = True
        if revision + 1 != watch.since:  # it has gone on; or back, see below
            watch.since = revision + 1
            watch.behind = True
            watch.call(None)
    elif revision + 1 < watch.since:
        # It was restored from a copy, and tells nothing until it has come so far again.
        watch.call(None)


async def _farewell() -> None:
    """Nothing is owed: watches end with their connection."""
