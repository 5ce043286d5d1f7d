"""`ls`, `show`, `watch` and `release` where there is no store yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.harness import holdfast

LOOKS = (("ls",), ("show", "x"), ("watch",), ("release", "x", "--force", "--yes"))


@pytest.mark.req("B7")
@pytest.mark.parametrize("arguments", LOOKS, ids=lambda arguments: arguments[0])
@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_store_that_is_not_there_is_an_error_and_is_not_made(
    tmp_path: Path, arguments: tuple[str, ...], by: str
) -> None:
    url = f"sqlite://{tmp_path}/nowhere/locks.db"
    named = ("--url", url) if by == "option" else ()
    done = holdfast(*arguments, *named, url=None if named else url)
    assert done.returncode == 78
    assert done.stderr.startswith(f"holdfast: there is no store at {url}.")
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_the_embedded_store_that_nobody_has_used_is_empty(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    assert json.loads(holdfast("ls", "--json", env=env).stdout) == {"locks": []}
    assert "free" in holdfast("show", "x", env=env).stdout
    done = holdfast("release", "x", "--force", "--yes", env=env)
    assert (done.returncode, done.stdout) == (0, "nobody held x\n")
    assert list(tmp_path.iterdir()) == []
