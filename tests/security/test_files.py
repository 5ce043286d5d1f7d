"""What is written to disk is for its user alone, whatever the umask. (The embedded store's default
place: `tests/unit/test_sqlite.py`.)"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.lab.servers import Server


@pytest.fixture
def careless() -> Iterator[None]:
    """A umask that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    paths = [folder, *folder.rglob("*")]
    return [str(path) for path in paths if stat.S_IMODE(path.lstat().st_mode) & 0o077]


@pytest.mark.usefixtures("careless")
def test_a_store_at_a_path_of_ones_own_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "deeper"
    with holdfast.connect(f"sqlite://{folder}/locks.db") as locks, locks.lock("a"):
        assert len(list(folder.rglob("*"))) >= 4
        assert open_to_others(folder) == []


@pytest.mark.usefixtures("careless")
def test_a_folder_that_was_there_keeps_its_mode_and_our_files_are_private(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    with holdfast.connect(f"sqlite://{shared}/locks.db") as locks, locks.lock("a"):
        assert open_to_others(shared) == [str(shared)]


@pytest.mark.servers
@pytest.mark.usefixtures("careless", "redis_server")  # which installs it
def test_what_the_lab_starts_is_private_and_on_loopback() -> None:
    server = Server()
    try:
        folder = Path(server._folder.name)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert server.address[0] == "127.0.0.1"
    finally:
        server.close()
    assert not folder.exists()
