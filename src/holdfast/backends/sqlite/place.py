"""Where the database is: the user's own file by default, and never on a network.

Contract: `resolve` says which file a URL means; `prepare` makes its folder and the file, readable
for their owner alone; `refuse_network` raises where the locks of this backend mean nothing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from holdfast.backends.url import Url
from holdfast.errors import Misconfigured, Unavailable

__all__ = ["default", "prepare", "refuse_network", "resolve", "unusable"]

NETWORK = re.compile(
    r"(nfs\d*|cifs|smb\d*|smbfs|ncpfs|afs|9p|ceph|glusterfs|lustre|gpfs|beegfs(_nodev)?|ocfs2|gfs2"
    r"|orangefs|pvfs2|coda|virtiofs|vboxsf|vmhgfs|prl_fs"
    r"|fuse\.(sshfs|s3fs|goofys|gcsfuse|rclone|glusterfs|ceph(-fuse)?|juicefs|davfs2?|mfs"
    r"|vmhgfs-fuse|seaweedfs|cvmfs2?|blobfuse2?|curlftpfs))"
)
"""Kinds of filesystem, as the kernel names them, that more than one kernel can have mounted."""


def default() -> Path:
    """`$XDG_STATE_HOME/holdfast/locks.db`, which is ~/.local/state/holdfast/locks.db."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):  # the specification: a relative path is to be ignored
        return Path(state, "holdfast", "locks.db")
    try:
        return Path.home() / ".local" / "state" / "holdfast" / "locks.db"
    except RuntimeError as error:
        raise Misconfigured(
            "there is no home directory for the default database; "
            "name a file: sqlite:///var/lib/myapp/locks.db"
        ) from error


def resolve(url: Url) -> Path:
    url.refuse("user", "password", "port", "hosts")
    if url.host:
        raise Misconfigured(
            f"{url}: a sqlite:// URL has no host. Write three slashes before an absolute path, "
            "sqlite:///var/lib/myapp/locks.db, or sqlite:///~/locks.db"
        )
    if not url.path.strip("/"):
        return default()
    if "\0" in url.path:
        raise Misconfigured("a path has no NUL character")
    if url.path.startswith("/~"):
        try:
            return Path(url.path[1:]).expanduser()
        except RuntimeError as error:
            raise Misconfigured(f"{url}: {error}") from error
    return Path(url.path)


def prepare(path: Path) -> Path:
    """Make what is missing, private. Returns the folder for what lies beside the database."""
    beside = path.with_name(path.name + ".holdfast")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_network(path.parent)
        if path.exists() and not path.is_file():
            raise Misconfigured(f"{path} is a folder, or a device: name a file, sqlite:///path")
        beside.mkdir(mode=0o700, exist_ok=True)
        try:
            # SQLite would make it readable for all. Only when there is none: closing a descriptor
            # of a database that is open would drop SQLite's own locks.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            pass
        if path.stat().st_nlink > 1:
            raise Misconfigured(
                f"{path} has more than one name (a hard link); SQLite keeps its log beside the "
                "name that is used, so two names would be two databases. Use a symbolic link"
            )
    except OSError as error:
        raise unusable(path, error) from error
    return beside


def unusable(path: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"cannot use {path} for locks: {error.strerror} ({error.filename}). Every process that "
        "shares them must be able to write there; name another file, sqlite:///path"
    )


def refuse_network(folder: Path, mounts: str | None = None) -> None:
    """`mounts`: the text of /proc/self/mountinfo."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:  # pragma: no cover - no /proc: nothing is known
            return
    kind = _filesystem(str(folder.resolve()), mounts)
    if NETWORK.fullmatch(kind):
        raise Misconfigured(
            f"{folder} is on a network filesystem ({kind}). Hosts that share it do not share a "
            "clock, memory or reliable file locks, so two of them could hold a lock at once. Put "
            "the file on a local disk; between hosts use a server: redis://, etcd://, postgresql://"
        )


def _filesystem(folder: str, mounts: str) -> str:
    """The kind of the filesystem that a folder is on; of mounts over mounts, the last counts."""
    best, found = -1, ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), left.split(" ")[4])
        inside = point == "/" or folder == point or folder.startswith(point + "/")
        if inside and len(point) >= best:
            best, found = len(point), right.split(" ")[0]
    return found
