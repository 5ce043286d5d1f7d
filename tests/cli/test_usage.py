"""What is said to whoever uses the command line wrongly: short, in our words, and to the point."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.cli.app import commands
from tests.cli.harness import holdfast


@pytest.mark.parametrize("path", [path for path, _ in commands() if path], ids=" ".join)
def test_help_is_in_our_words(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path, "--help"]) == 0
    said = capsys.readouterr().out
    assert "default:" not in said  # with click's brackets, ranges and rounding
    assert "x>" not in said
    assert ("[URL]" in said) == (path[0] in ("sentinel", "schema", "sweep"))


@pytest.mark.req("B7")
@pytest.mark.parametrize("command", ["sentinel", "schema", "sweep"])
def test_what_the_default_store_cannot_do_is_not_asked_of_it_in_silence(
    command: str, tmp_path: Path
) -> None:
    """Nobody had named it; who names a store is told of that one."""
    ran = holdfast(command, env={"XDG_STATE_HOME": str(tmp_path)})
    assert (ran.returncode, ran.stdout) == (78, "")
    assert "no store was named" in ran.stderr
    assert "HOLDFAST_URL" in ran.stderr
    assert "sqlite://" in ran.stderr
    for ran in (holdfast(command, "memory://x"), holdfast(command, url="memory://x")):
        assert (ran.returncode, ran.stdout) == (78, "")
        assert "no store was named" not in ran.stderr
        assert "memory://x" in ran.stderr


LONG = "n" * 3000


@pytest.mark.req("B7")
@pytest.mark.parametrize(
    "arguments",
    [
        (LONG,),
        ("show", LONG),
        ("show", "a b " * 999),
        ("ls", LONG),
        ("ls", "--url", f"redis-typo://{LONG}"),
        ("ls", "--url", f"memory://{LONG}?no=1"),
        ("run", LONG, "--", "true"),
        ("run", "x", "--", LONG),
        ("run", "x", f"--{LONG}", "--", "true"),
        ("release", "n" * 1000, "--force"),
        ("watch", "--interval", LONG),
        ("lab", LONG),
    ],
    ids=lambda arguments: " ".join(arguments)[:20],
)
def test_a_long_name_is_not_repeated_as_a_whole(arguments: tuple[str, ...]) -> None:
    ran = holdfast(*arguments, url="memory://")
    said = ran.stdout + ran.stderr
    assert said.count("\n") in range(1, 5)
    assert len(said) < 1700
    assert "n" * 161 not in said


def test_what_is_cut_was_hidden_before() -> None:
    """A password that is longer than what is repeated of a word."""
    secret = "s" * 3000
    ran = holdfast("ls", "--url", f"memory://me:{secret}@host")
    assert "sss" not in ran.stderr
