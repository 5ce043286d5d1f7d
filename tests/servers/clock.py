"""A server whose wall clock a test can set: `clock.c`, preloaded into it.

Contract: `WallClock(directory).environment` is what the server's process needs; `shift` is how many
seconds its clock is ahead of ours, from the next time it looks. Works for servers in C that ask the
C library for the time. (libfaketime breaks redis-server: it changes the monotonic clock as well.)
"""

from __future__ import annotations

import mmap
import subprocess
from pathlib import Path

from tests.servers import install
from tests.servers.install import need

SOURCE = Path(__file__).with_name("clock.c")


class WallClock:
    def __init__(self, directory: Path) -> None:
        install.ensure("compiler")
        library, file = directory / "clock.so", directory / "clock"
        subprocess.run(
            [need("gcc"), "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE],
            check=True,
        )
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._mapped = mmap.mmap(opened.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(library), "HOLDFAST_CLOCK": str(file)}

    @property
    def shift(self) -> float:
        return int.from_bytes(self._mapped[:], "little", signed=True) / 1e6

    @shift.setter
    def shift(self, seconds: float) -> None:
        self._mapped[:] = round(seconds * 1e6).to_bytes(8, "little", signed=True)
