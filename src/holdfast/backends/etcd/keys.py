"""How names, claims and cells are spelled as keys.

Contract: a claim is one key, `NAME/` and a suffix, and the line of a name is in the order of their
creation: which is what etcd's own mutex (Go's `concurrency.Mutex`, `etcdctl lock`) does, so that
both stand in one line. Our suffix says the mode, and a hash of the owner (law 9: whoever can list
keys learns nothing that the library takes for proof). Any other suffix is somebody else's exclusive
claim.

`/` and `%` of a name are written as %2F and %25, so that the line of `a` does not contain that of
`a/b`; with `name=exact` nothing is changed. Cells and tombstones have keys that no name has.
Partners: `line.py`, which asks about them; `overview.py`, which reads them back.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.backends.common import Written, name_of, spelled
from holdfast.backends.etcd.answers import KeyValue
from holdfast.backends.etcd.wire import after
from holdfast.errors import Misconfigured
from holdfast.types import Claim, Mode

__all__ = ["Described", "Keys", "Lineman", "Values", "described", "lineman"]

CELL, FENCE, GONE = b"%cell/", b"%fence/", b"%gone/"
RESERVED = tuple(part.decode()[:-1] for part in (CELL, FENCE, GONE))

_suffix = re.compile(rb"h(x|s|p([1-9]\d{0,999})\.([1-9]\d{0,999}))-([0-9a-f]{32})")
MARKS = re.compile("[/%]")


class Lineman(NamedTuple):
    """What a key says about its claim. `id` is empty for claims that are not ours."""

    mode: Mode
    permits: int = 1
    limit: int = 1
    id: str = ""


FOREIGN = Lineman(Mode.EXCLUSIVE)


def lineman(suffix: bytes) -> Lineman:
    match = _suffix.fullmatch(suffix)
    if match is None:
        return FOREIGN
    ident = match[4].decode()
    if match[1] == b"x":
        return Lineman(Mode.EXCLUSIVE, id=ident)
    if match[1] == b"s":
        return Lineman(Mode.SHARED, id=ident)
    return Lineman(Mode.PERMITS, int(match[2]), int(match[3]), ident)


class Keys:
    def __init__(self, prefix: bytes, exact: bool) -> None:
        self.prefix = prefix
        self._exact = exact
        self._gone = prefix + GONE

    def line(self, name: str) -> bytes:
        """The prefix of all claims on a name."""
        if self._exact:
            if name.startswith(RESERVED):
                raise Misconfigured(f"names beginning with {name[:5]!r} are taken, if name=exact")
            if "/hs-" in name:  # among the keys of `a`, those that begin so are readers
                raise Misconfigured("names with '/hs-' are taken, if name=exact")
            return b"%b%b/" % (self.prefix, name.encode())
        return b"%b%b/" % (self.prefix, _spell(name))

    def claim(self, claim: Claim, line: bytes) -> tuple[bytes, bytes]:
        """The key of a claim, and of its tombstone."""
        ident = hashlib.sha256(claim.owner.encode()).hexdigest()[:32].encode()
        if claim.mode is Mode.EXCLUSIVE:
            key = b"%bhx-%b" % (line, ident)
        elif claim.mode is Mode.SHARED:
            key = b"%bhs-%b" % (line, ident)
        else:
            key = b"%bhp%d.%d-%b" % (line, claim.permits, claim.limit, ident)
        return key, self._gone + ident

    def cell(self, name: str) -> tuple[bytes, bytes]:
        """The keys of a cell's value and of the highest fence that wrote it."""
        text = _spell(name)
        return self.prefix + CELL + text, self.prefix + FENCE + text

    def below(self, prefix: str) -> tuple[bytes, bytes]:
        """The range of the lines of all names that begin with `prefix`."""
        start = self.prefix + (prefix.encode() if self._exact else _spell(prefix))
        return start or b"\0", after(start)

    def split(self, key: bytes) -> tuple[str, bytes] | None:
        """The name and the suffix of a key; None: it belongs to no line."""
        line, slash, suffix = key[len(self.prefix) :].rpartition(b"/")
        if not slash or not line:
            return None
        try:
            text = line.decode()
        except UnicodeDecodeError:
            return None
        name = text if self._exact else name_of(text, MARKS)
        return None if name is None else (name, suffix)


def _spell(name: str) -> bytes:
    return spelled(name, MARKS).encode()


def shared_gap(line: bytes) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    """The two ranges that have all claims of a line but the shared ones."""
    return (line, line + b"hs-"), (line + b"hs.", after(line))


def is_claim(kv: KeyValue, suffix: bytes) -> bool:
    """Whether a key that happens to be there looks like a lock: ours, or that of etcd's mutex."""
    return lineman(suffix) is not FOREIGN or (kv.lease > 0 and suffix == b"%x" % kv.lease)


# -- what operators may see -----------------------------------------------------------------------


class Values:
    """Writes the values of claims."""

    def __init__(self) -> None:
        self._info = Written(str.encode)

    def write(self, claim: Claim) -> bytes:
        fixed, info = b',"fixed":true' if claim.fixed else b"", self._info.of(claim.info)
        return b'{"at":%.3f,"ttl":%.3f%b,"info":%b}' % (time.time(), claim.ttl, fixed, info)


@dataclass(slots=True, frozen=True)
class Described:
    info: Mapping[str, str]
    since: float
    fixed: bool


def described(value: bytes) -> Described:
    """What a value says; nothing, if it is not one of ours."""
    try:
        found: Any = json.loads(value)
        info = {str(key): str(text) for key, text in found["info"].items()}
        # The only use of the wall clock: an operator wants to know since when.
        since = time.time() - float(found["at"])
        return Described(info, since if 0.0 < since < math.inf else 0.0, "fixed" in found)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return Described({}, 0.0, False)
