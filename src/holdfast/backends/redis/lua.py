"""The Lua scripts, as the commands that run them.

Contract: `head` and what follows it are a complete EVALSHA; `full` the same as EVAL, for a server
that does not know the script (any more). Partner: `scripts/*.lua`, one step each.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from typing import NamedTuple

from holdfast.backends.redis.wire import pack_word

__all__ = [
    "ATTEMPT",
    "CELL_READ",
    "CELL_WRITE",
    "DOWNGRADE",
    "EVICT",
    "LEAVE",
    "LOOK",
    "OVERVIEW",
    "REAP",
    "RENEW",
    "Script",
    "Scripts",
    "together",
]

INCLUDE = "--#include "
HOME = "holdfast.backends.redis"


class Script:
    """One script, and the beginning of the command that runs it."""

    __slots__ = ("full", "head", "name")

    def __init__(
        self, name: str, keys: int, arguments: int, begin: str = "", home: str = HOME
    ) -> None:
        """`begin` is a file whose functions the script uses, where it has a choice of them; `home`
        the package that has them."""
        self.name = name
        files = ([begin] if begin else []) + [name]
        text = "\n".join(_read(home, f"{file}.lua") for file in files).encode()
        sha = hashlib.sha1(text, usedforsecurity=False).hexdigest()
        count = b"*%d\r\n" % (3 + keys + arguments)
        number = pack_word(str(keys))
        self.head = count + pack_word("EVALSHA") + pack_word(sha) + number
        self.full = count + pack_word("EVAL") + pack_word(text) + number


class Scripts(NamedTuple):
    """The steps that every dialect has."""

    attempt: Script
    renew: Script
    leave: Script
    evict: Script
    overview: Script


def _read(home: str, name: str) -> str:
    """A script's text without comments, its includes in their place."""
    lines: list[str] = []
    folder = resources.files(home).joinpath("scripts")
    for line in folder.joinpath(name).read_text("utf-8").splitlines():
        bare = line.strip()
        if bare.startswith(INCLUDE):
            lines.append(_read(home, bare.removeprefix(INCLUDE)))
        elif bare and not bare.startswith("--"):
            lines.append(bare)
    return "\n".join(lines)


ATTEMPT = Script("attempt", 6, 7)
LOOK = Script("look", 6, 6)
RENEW = Script("renew", 6, 3)
LEAVE = Script("leave", 6, 4)
EVICT = Script("evict", 6, 1)
OVERVIEW = Script("overview", 6, 0)
REAP = Script("reap", 6, 3)
DOWNGRADE = Script("downgrade", 6, 3)
CELL_READ = Script("cell_read", 1, 0)
CELL_WRITE = Script("cell_write", 1, 7)


@functools.cache
def together(locks: int) -> Script:
    """The script that takes so many locks at once."""
    return Script("together", locks, 3 + locks)
