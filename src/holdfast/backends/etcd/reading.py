"""Asking again: for what changes nothing, or nothing more when it is done twice.

Contract: returns by the deadline. For nothing else: a request without an answer that may have been
applied is resolved by its owner (law 2). Partner: `channel.py`, which tries an endpoint.
"""

from __future__ import annotations

from holdfast.backends.etcd.channel import Channel, Request, refusal
from holdfast.backends.etcd.http2 import NO_ANSWER, Failure
from holdfast.core.backoff import pause
from holdfast.core.port import Port

__all__ = ["ask_again", "read"]

TRIES = 4


async def ask_again(
    channel: Channel, port: Port, deadline: float, *requests: Request, apart: bool = False
) -> list[bytes | Failure]:
    """`Channel.ask`, and once more where no answer came: an idle connection may have been cut long
    ago, and a lost answer must not cost all the time there is."""
    for tried in range(1, TRIES):
        now = port.now()
        limit = min(deadline, now + max(0.2, (deadline - now) / 2))
        results = await channel.ask(limit, *requests, apart=apart)
        silent = any(isinstance(one, Failure) and one.code == NO_ANSWER for one in results)
        left = deadline - port.now()
        if not silent or left <= 0:
            return results
        await port.sleep(pause(tried, port.random(), left))
    return await channel.ask(deadline, *requests, apart=apart)


async def read(channel: Channel, port: Port, deadline: float, *requests: Request) -> list[bytes]:
    """The answers; an error if there are none."""
    answers: list[bytes] = []
    for result in await ask_again(channel, port, deadline, *requests):
        if isinstance(result, Failure):
            raise refusal(result)
        answers.append(result)
    return answers
