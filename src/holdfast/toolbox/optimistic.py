"""Optimistic concurrency: a version for a name, compared when the work is done.

Contract: `read` tells the version (0: nobody has committed yet), `commit` replaces it by a larger
one if it is still that, in one atomic step of the store. Of all who read the same version one
commits. Nothing is held meanwhile, so nothing can be lost, expire or be waited for; what the loser
did is the loser's to undo or to forget, so let it be something that takes effect by the commit.

Law 2: a commit without an answer is looked for: each writes a value that nobody else writes.
Partners: `skins/*/optimistic.py`; a store's cells, on which this is built.
"""

from __future__ import annotations

import secrets

from holdfast.core.acquire import Engine
from holdfast.core.backoff import pause
from holdfast.errors import Misconfigured, Unavailable, Unsupported
from holdfast.types import Capabilities, Cell, CellConflict

__all__ = ["check", "commit", "read"]

PREFIX = "version:"
"""Cells of this kind begin like this; no name can be spelled such that two of them meet."""

TRIES = 3
"""So many requests without an answer fit in `request_timeout`."""


def check(capabilities: Capabilities) -> None:
    """Refuse before anything is asked of a store that cannot do it."""
    if not capabilities.cells:
        raise Unsupported(
            "optimistic() needs a store that keeps values, and this backend does not; redis://, "
            "etcd://, zk://, sqlite:// and SQL with strategy=row do"
        )


async def read(engine: Engine, name: str) -> int:
    deadline = engine.port.now() + engine.request_timeout
    cell = await engine.backend.cell_read(PREFIX + name, deadline)
    return 0 if cell is None else cell.version


async def commit(engine: Engine, name: str, version: int) -> int | None:
    """The new version; None: somebody else has committed since that one was read."""
    if type(version) is not int or version < 0:
        raise Misconfigured(f"commit(version): the number that version() gave, not {version!r:.80}")
    port, backend = engine.port, engine.backend
    deadline = port.now() + engine.request_timeout
    mine = secrets.token_bytes(16)
    failures = 0
    while True:
        # One lost answer must not cost all the time there is.
        patience = min(deadline, port.now() + engine.request_timeout / TRIES)
        answer = await backend.cell_write(
            PREFIX + name, mine, expect=version, fence=None, ttl=None, deadline=patience
        )
        match answer:
            case Cell():
                return answer.version
            case CellConflict(current):
                # It may be ours: an earlier try of this very commit, whose answer was lost.
                if current is not None and current.value == mine:
                    return current.version
                return None
            case _:
                failures += 1
                left = deadline - port.now()
                if left <= 0:
                    raise Unavailable(
                        f"whether version {version} of {name!r} was replaced is not known "
                        f"({answer.reason}): read version() again; if it is still {version}, the "
                        "commit may yet arrive"
                    )
                await port.sleep(pause(failures, port.random(), left))
