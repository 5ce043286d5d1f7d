"""Reading: what may be asked again, because it changes nothing."""

from __future__ import annotations

from holdfast.backends.etcd.channel import Channel, Request, refusal
from holdfast.backends.etcd.http2 import Failure
from holdfast.core.backoff import pause
from holdfast.core.port import Port
from holdfast.errors import Misconfigured, Unavailable

__all__ = ["read"]

TRIES = 4


async def read(channel: Channel, port: Port, deadline: float, *requests: Request) -> list[bytes]:
    """The answers; `Unavailable` when none came in time."""
    for tried in range(1, TRIES + 1):
        left = deadline - port.now()
        # A lost answer must not cost all the time there is.
        results = await channel.ask(
            deadline if tried == TRIES else port.now() + max(0.2, left / 2), *requests
        )
        failure = next((one for one in results if isinstance(one, Failure)), None)
        if failure is None:
            return [one for one in results if isinstance(one, bytes)]
        error = refusal(failure)
        if isinstance(error, Misconfigured) or tried == TRIES or port.now() >= deadline:
            raise error
        await port.sleep(pause(tried, port.random(), deadline - port.now()))
    raise Unavailable("etcd did not answer")
