"""Which Debian packages hold the servers, where their programs are, and how to install them.

Contract: `ensure(*families)` returns when every program of those families exists, or raises
`InstallError` with one line that says what to install. It installs only what is missing, starts no
system service, and may run in several processes at once. Used by `base.Process.start`; nothing else
in the project installs packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class InstallError(RuntimeError):
    """A server's packages are missing and could not be installed."""


@dataclass(frozen=True)
class Family:
    """One store: the packages to ask apt for, and what proves that they are there.

    A proof with a slash is a glob of files; one without is a program looked up in `program`.
    """

    packages: tuple[str, ...]
    proofs: tuple[str, ...]


FAMILIES: dict[str, Family] = {
    "redis": Family(("redis-server",), ("redis-server", "redis-cli")),
    "etcd": Family(("etcd-server", "etcd-client"), ("etcd", "etcdctl")),
    # Not the package `zookeeper`: it adds only start scripts, and a graphical JRE as a dependency.
    "zookeeper": Family(("libzookeeper-java",), ("/usr/share/java/zookeeper.jar",)),
    "compiler": Family(("gcc", "libc6-dev"), ("gcc", "/usr/include/stdlib.h")),
    "java": Family(("default-jre-headless",), ("java",)),
    "mariadb": Family(("mariadb-server",), ("mariadbd", "mariadb-install-db", "mariadb")),
    "postgres": Family(("postgresql",), ("initdb", "postgres", "psql")),
    "pgbouncer": Family(("pgbouncer",), ("pgbouncer",)),
    "galera": Family(("galera-4",), ("/usr/lib/galera/libgalera_smm.so",)),
}

# Debian keeps daemons out of a user's PATH, and PostgreSQL's programs out of everybody's.
_EXTRA_PATH = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_POSTGRES_BIN = "/usr/lib/postgresql"

# Runs as root. The lock makes a second installer wait, and keeps the first from removing the
# policy file under the second. policy-rc.d is what invoke-rc.d and deb-systemd-invoke ask before
# they start a service: 101 means "do not". One that is there already is somebody's decision and
# stays, unless it is ours, left by an install that was killed.
_SCRIPT = r"""
set -e
exec 9>/run/holdfast-install.lock
flock -n 9 || { echo "waiting for another install to end" >&3; flock 9; }
policy=/usr/sbin/policy-rc.d
mark='# holdfast: no services while the test servers are installed'
if [ ! -e $policy ] || grep -qF "$mark" $policy; then
    trap 'rm -f $policy' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\n%s\nexit 101\n' "$mark" > $policy
    chmod 755 $policy
fi
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
install() {
    apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends "$@" 9>&- 3>&-
}
install "$@" && exit 0
echo "refreshing the package lists" >&3
apt-get -o DPkg::Lock::Timeout=300 update 9>&- 3>&-
install "$@"
"""

# What failed once in this process: each test must fail on it, none must wait for apt again.
_failed: dict[tuple[str, ...], InstallError] = {}


def program(name: str) -> str | None:
    """The full path of a server's program, or None when it is not installed."""
    newest = sorted(Path(_POSTGRES_BIN).glob("*/bin"), key=_version_of, reverse=True)
    # The newest PostgreSQL comes first: /usr/bin/psql is a wrapper in Perl, and slow to start.
    path = os.pathsep.join([*map(str, newest), os.environ.get("PATH", os.defpath), *_EXTRA_PATH])
    return shutil.which(name, path=path)


def need(name: str) -> str:
    """The full path of a program that `ensure` has promised."""
    found = program(name)
    if found is None:
        raise InstallError(f"{name} is not installed")
    return found


def missing(families: Iterable[str]) -> list[str]:
    """The packages to install before these families can run."""
    return [
        package
        for family in families
        if not all(map(_present, FAMILIES[family].proofs))
        for package in FAMILIES[family].packages
    ]


def ensure(*families: str) -> None:
    """Install what these families lack; cheap when nothing is missing."""
    packages = tuple(missing(families))
    if not packages:
        return
    if packages in _failed:
        raise _failed[packages]
    try:
        _install(packages)
        if still := missing(families):
            raise InstallError(f"apt-get succeeded, yet these do not work: {' '.join(still)}")
    except InstallError as error:
        _failed[packages] = error
        raise


def _install(packages: tuple[str, ...]) -> None:
    wanted = " ".join(packages)
    by_hand = f"install by hand: apt-get install {wanted}"
    root = _root_prefix()
    if root is None:
        raise InstallError(f"not root and `sudo -n` refused; {by_hand}")
    if shutil.which("apt-get") is None:
        raise InstallError(f"no apt-get on this system; {by_hand}")
    print(f"holdfast tests: installing {wanted} (about a minute)", file=sys.stderr, flush=True)
    with subprocess.Popen(
        [*root, "sh", "-c", f"exec 3>&2 2>&1\n{_SCRIPT}", "install", *packages],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as apt:
        try:
            said, _ = apt.communicate()
        except KeyboardInterrupt:
            # The terminal told apt and the shell too. Let them end: a killed dpkg leaves half a
            # package, a killed shell leaves the policy file.
            apt.communicate()
            raise
    if apt.returncode != 0:
        tail = "\n".join(said.splitlines()[-15:])
        raise InstallError(f"apt-get could not install {wanted}; {by_hand}\n{tail}")
    print("holdfast tests: installed", file=sys.stderr, flush=True)


def _root_prefix() -> list[str] | None:
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo is None:
        return None
    asked = subprocess.run([sudo, "-n", "true"], capture_output=True, check=False)
    return [sudo, "-n"] if asked.returncode == 0 else None


def _present(proof: str) -> bool:
    return Path(proof).exists() if "/" in proof else program(proof) is not None


def _version_of(directory: Path) -> float:
    try:
        return float(directory.parent.name)
    except ValueError:
        return 0.0
