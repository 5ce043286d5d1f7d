"""`etcdctl lock NAME true`: a process for each hold, as in a script."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from bench.peers.base import Adapter

__all__ = ["connect"]


class Lock:
    def __init__(self, address: str, name: str) -> None:
        self._command = ["etcdctl", f"--endpoints={address}", "lock", f"etcdctl-{name}", "true"]

    def acquire(self, timeout: float | None) -> bool:
        environment = {**os.environ, "ETCDCTL_API": "3"}
        subprocess.run(self._command, check=True, env=environment, stdin=subprocess.DEVNULL)
        return True

    def release(self) -> None:
        """It is released when the command has ended."""


class Etcdctl(Adapter):
    version = "etcdctl of the server's version"

    def __init__(self, address: str) -> None:
        self._address = address

    def make(self, name: str) -> Lock:
        return Lock(self._address, name)


def connect(target: str, **options: Any) -> Adapter:
    return Etcdctl(target)
