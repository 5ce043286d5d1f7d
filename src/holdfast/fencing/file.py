"""A file that refuses stale tokens: replaced as a whole, with a record of the highest token beside.

Contract: `NAME` is the old content or the new one, never a part, whatever dies when. `NAME.fence`
has the record and serialises the writers of this host (flock); `NAME.fence-new` is what is being
written. Readers need nothing: they open `NAME`.

Laws: the record is on disk before the rename (the first one with its name, for which its folder is
flushed too), so a crash between the two refuses too much and never too little: the holder writes
again with the same token. The record has two slots, with checksums, written in turn: of a torn one
the other is left.

Hazards: a forked child inherits an flock, and has it as long as it lives if its parent is killed;
so its copy becomes /dev/null, and the flock is undone and not merely closed, should the fork not
have been Python's. The record may be deleted while one waits for it, so its inode is compared
afterwards. In a folder where others write, `NAME.fence` and `NAME.fence-new` may be links to what
is not theirs: they are not followed. On a network filesystem, flock must work between the hosts
that write. Blocks; with asyncio, use `aio.File`.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import stat
import weakref
import zlib
from collections.abc import Generator

from holdfast.errors import Misconfigured
from holdfast.fencing.tokens import Token, stale, token_of

__all__ = ["File"]

SLOT = 30
"""20 digits, a blank, 8 hexadecimal digits, a line's end."""


class File:
    """The file at `path`, which need not exist yet; its folder must."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.realpath(path)
        if os.path.isdir(self._path):
            raise Misconfigured(f"{self._path} is a folder: name the file in it that is written")
        self._record = self._path + ".fence"

    def write(self, lease: Token, data: bytes | str) -> None:
        """Make this the content (text as UTF-8); `StaleFence` if a newer token has written."""
        token = token_of(lease)
        content = data.encode() if isinstance(data, str) else data
        with self._alone() as record:
            highest = self._admit(record, token)
            new = self._path + ".fence-new"
            try:
                os.unlink(new)  # of who was killed
            except FileNotFoundError:
                pass
            try:
                with open(new, "xb") as file:
                    mode = _mode(self._path)
                    if mode is not None:
                        os.fchmod(file.fileno(), mode)
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                self._take(record, highest, token, new)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(new)
                raise

    def replace(self, lease: Token, source: str | os.PathLike[str]) -> None:
        """Put a finished file, on the same filesystem, in its place; as `write`. A refused one
        stays where it is."""
        token = token_of(lease)
        with self._alone() as record:
            highest = self._admit(record, token)
            if os.path.islink(source):  # the next one would look for a record where it leads
                raise Misconfigured(f"{os.fspath(source)!r:.80} is a link: a file is wanted")
            with open(source, "rb") as file:
                os.fsync(file.fileno())
            self._take(record, highest, token, source)

    def check(self, lease: Token) -> None:
        """Compare and note, and write nothing: older tokens are refused from now on."""
        token = token_of(lease)
        with self._alone() as record:
            self._note(record, self._admit(record, token), token)

    def highest(self) -> int:
        """The highest token that was seen; 0 before the first."""
        with self._alone() as record:
            return self._read(record)

    # -- under the flock --------------------------------------------------------------------------

    def _admit(self, record: int, token: int) -> int:
        highest = self._read(record)
        if token < highest:
            raise stale(self._path, token, highest)
        return highest

    def _take(self, record: int, highest: int, token: int, source: str | os.PathLike[str]) -> None:
        self._note(record, highest, token)
        os.replace(source, self._path)
        _sync_folder(os.path.dirname(self._path))

    def _note(self, record: int, highest: int, token: int) -> None:
        _note(record, highest, token)
        if not highest:  # its name as well: it may be the first
            _sync_folder(os.path.dirname(self._record))

    def _read(self, record: int) -> int:
        content = os.pread(record, 2 * SLOT, 0)
        found = [token for token in map(_slot, (content[:SLOT], content[SLOT:])) if token]
        # The first record ever goes to the first slot: if that alone is torn, there was none.
        if not found and len(content) > SLOT:
            raise Misconfigured(
                f"{self._record} is damaged. If nobody writes who holds an older lease, delete it"
            )
        return max(found, default=0)

    @contextlib.contextmanager
    def _alone(self) -> Generator[int]:
        while True:
            # An object and not a number: whatever interrupts this, it is closed with its last use.
            with open(self._record, "r+b", buffering=0, opener=_open) as record:
                _records.add(record)
                try:
                    fcntl.flock(record, fcntl.LOCK_EX)
                    if _same(record.fileno(), self._record):
                        yield record.fileno()
                        return
                finally:
                    fcntl.flock(record, fcntl.LOCK_UN)


def _open(path: str, flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


_records: weakref.WeakSet[io.FileIO] = weakref.WeakSet()


def _in_the_child() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for record in list(_records):
        if not record.closed:
            os.dup2(nowhere, record.fileno(), inheritable=False)
    os.close(nowhere)


os.register_at_fork(after_in_child=_in_the_child)


def _slot(content: bytes) -> int:
    """The token in a slot; 0 if there is none, or it is torn."""
    digits, _, check = content.partition(b" ")
    if len(content) != SLOT or not digits.isdigit() or check != b"%08x\n" % zlib.crc32(digits):
        return 0
    return int(digits)


def _note(record: int, highest: int, token: int) -> None:
    """Into the slot that does not have the highest. Nothing to do if that is ours."""
    if token == highest:
        return
    first = _slot(os.pread(record, SLOT, 0))
    digits = b"%020d" % token
    # The first if it is free or torn, or has the older one.
    offset = SLOT if first and first == highest else 0
    os.pwrite(record, b"%b %08x\n" % (digits, zlib.crc32(digits)), offset)
    os.fsync(record)


def _same(fd: int, path: str) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def _mode(path: str) -> int | None:
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return None


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
