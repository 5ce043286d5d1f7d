"""What the tests of the crash detector have in common: detectors as processes, and links to cut."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cli.harness import started
from tests.faults.redis import until
from tests.servers import RedisServer


class Watch:
    """A running `holdfast sentinel`, and what it has said."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self.process = process
        self._path = path

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = self._path.read_text().splitlines()
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in found if event["event"] == kind]

    def wait(self, kind: str, count: int = 1) -> dict[str, Any]:
        until(lambda: len(self.events(kind)) >= count, f"{count} x {kind}")
        return self.events(kind)[count - 1]

    def leads(self) -> None:
        self.wait("leading")


@contextmanager
def watching(url: str, folder: Path, name: str = "sentinel") -> Iterator[Watch]:
    path = folder / f"{name}.json"
    with path.open("w") as output, started("sentinel", url, "--json", stdout=output) as process:
        watch = Watch(process, path)
        until(lambda: watch.events("standby"), "it has begun")
        yield watch
        assert process.poll() in (None, 0, -9), "it ended"


def links(server: RedisServer) -> dict[str, str]:
    """presence -> id, of all who are seen."""
    listed = str(server.call("CLIENT", "LIST", "TYPE", "normal"))
    return {
        found[2]: found[1]
        for line in listed.splitlines()
        if (found := re.search(r"^id=(\d+) .* name=holdfast:(\S+) ", line))
    }


def cut(server: RedisServer, presence: str | None = None) -> int:
    """Kill the links, or one of them; how many."""
    found = [number for who, number in links(server).items() if presence in (None, who)]
    return sum(int(str(server.call("CLIENT", "KILL", "ID", number))) for number in found)
