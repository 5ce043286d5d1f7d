"""Optimistic concurrency: a version for a name, compared when the work is done.

Contract: `read` tells the version (0: nobody has committed yet), `commit` replaces it by a larger
one if it is still that, in one atomic step of the store. Of all who read the same version one
commits. Nothing is held meanwhile, so nothing can be lost, expire or be waited for; what the loser
did is the loser's to undo or to forget, so let it be something that takes effect by the commit.

Law 2: a commit without an answer is looked for: each writes a value that nobody else writes. If
others have committed since, that one may have been before them: the caller is told that it is not
known, since None would have it forget what took effect.
Partners: `skins/*/optimistic.py`; `values.py`, which changes the cell.
"""

from __future__ import annotations

import secrets

from holdfast.core.acquire import Engine
from holdfast.core.names import checked_name
from holdfast.errors import Misconfigured, Unavailable
from holdfast.toolbox import values
from holdfast.types import Capabilities, Cell

__all__ = ["check", "commit", "read"]

PREFIX = "version:"
"""Cells of this kind begin like this; no name can be spelled such that two of them meet."""


def check(capabilities: Capabilities, name: str) -> str:
    values.need(capabilities, "optimistic()")
    checked_name(name)
    checked_name(PREFIX + name)  # as the store hears it
    return name


async def read(engine: Engine, name: str) -> int:
    return _version(await values.read(engine, PREFIX + name))


async def commit(engine: Engine, name: str, version: int) -> int | None:
    """The new version; None: somebody else has committed since that one was read."""
    if type(version) is not int or version < 0:
        raise Misconfigured(f"commit(version): the number that version() gave, not {version!r:.80}")
    mine = secrets.token_bytes(16)

    def step(cell: Cell | None, unsure: bool) -> tuple[bytes | None, bool]:
        if _version(cell) == version:
            return mine, True
        ours = cell is not None and cell.value == mine  # an earlier try, without its answer
        if unsure and not ours:
            raise Unavailable(
                f"whether {name!r} was committed is not known: the answer was lost, and others "
                "have committed since. Look at what they found"
            )
        return None, ours

    there = Cell(b"", version) if version else None
    ours, cell = await values.change(engine, PREFIX + name, step, None, there)
    return _version(cell) if ours else None


def _version(cell: Cell | None) -> int:
    return 0 if cell is None else cell.version
