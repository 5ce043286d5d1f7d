"""Where a test server lives: a private directory, and ports that nobody else can take.

Contract: `close` gives all of it back; if the runner dies first, `reaper.py` removes the directory.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path

from tests.servers import reaper

HOST = "127.0.0.1"


class Home:
    """A private temporary directory and the ports reserved with it."""

    def __init__(self, kind: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"holdfast-{kind}-"))
        reaper.watch_directory(self.path)
        self.path.chmod(0o711)  # the database users must get through to their own directories
        self._reserved: list[socket.socket] = []

    def reserve_port(self) -> int:
        """A port that stays ours until `close`, also while its server is down.

        The socket stays bound, never listening, with SO_REUSEADDR: Linux then lets a server that
        sets the same option (they all do) listen there, and gives the port to nobody else: to no
        bind to port 0, and to no outgoing connection, which could otherwise even meet itself.
        """
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HOST, 0))
        self._reserved.append(held)
        port: int = held.getsockname()[1]
        return port

    def close(self) -> None:
        for held in self._reserved:
            held.close()
        self._reserved.clear()
        if self.path.exists():
            shutil.rmtree(self.path)
            reaper.forget_directory(self.path)
