"""`holdfast completion`: what a shell is answered, and that bash can use it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as library
from holdfast.cli import main
from tests.cli.harness import CLI, Terminal, environment, holdfast
from tests.cli.store import Store


@pytest.fixture
def complete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, str, str], list[str]]:
    """What a shell is answered when it completes the last word of a line."""

    def ask(shell: str, line: str, url: str) -> list[str]:
        words = line.split(" ")
        monkeypatch.setenv("HOLDFAST_URL", url)
        monkeypatch.setenv("_HOLDFAST_COMPLETE", f"{shell}_complete")
        monkeypatch.setenv("HOLDFAST_LINE", line)
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words) - 1))
        assert main([]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out.split()

    return ask


@pytest.mark.req("B7")
def test_names_are_completed(complete: Callable[[str, str, str], list[str]]) -> None:
    url = "memory://completed"
    with (
        library.connect(url) as locks,
        locks.lock("invoice:42"),
        locks.lock("invoice:7"),
        locks.lock("other"),
    ):
        for command in ("show", "run", "ls", "watch", "release"):
            assert complete("bash", f"holdfast {command} invoice:", url) == [
                "plain,invoice:42",
                "plain,invoice:7",
            ]
        assert complete("bash", "holdfast show ", url)[-1] == "plain,other"
        assert "invoice:42" in complete("zsh", "holdfast show inv", url)
        assert "plain,invoice:42" in complete("fish", "holdfast show inv", url)
    assert "plain,--on-lost" in complete("bash", "holdfast run --o", url)
    assert complete("bash", "holdfast run --q", url) == ["plain,--quiet-busy"]
    assert complete("bash", "holdfast run --on-lost=", url) == ["plain,kill", "plain,warn"]
    assert complete("bash", "holdfast wa", url) == ["plain,watch"]


def test_completion_does_not_wait_for_a_store(
    complete: Callable[[str, str, str], list[str]], tmp_path: Path
) -> None:
    assert complete("bash", "holdfast show x", f"served://{tmp_path}/nobody") == []
    assert complete("bash", "holdfast show x", "nosuch://") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed(shell: str) -> None:
    ran = holdfast("completion", shell)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "_HOLDFAST_COMPLETE" in ran.stdout
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=ran.stdout, text=True, check=False)
        assert checked.returncode == 0


@pytest.mark.req("B7")
def test_bash_completes_names_with_colons(
    store: Store, locks: library.Locks, tmp_path: Path
) -> None:
    """Typed at a real prompt: bash cuts words at colons, and names have them."""
    program = tmp_path / "holdfast"
    program.write_text(f'#!/bin/sh\nexec {" ".join(CLI)} "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    env = environment(store.url, PS1="prompt> ", HISTFILE="/dev/null", PATH=path)
    with (
        locks.lock("invoice:42:x"),
        Terminal("bash", "--norc", "--noprofile", "-i", env=env) as tty,
    ):
        tty.expect("prompt> ")
        tty.type("source <(holdfast completion bash); echo sourced\n")
        tty.expect("sourced\r\n")
        tty.type("holdfast show inv\t --json\n")
        tty.expect(r'"name": "invoice:42:x"')
        tty.expect("prompt> ")
        tty.type("holdfast show invoice:4\t --json\n")
        tty.expect(r'"name": "invoice:42:x"')
        tty.type("exit\n")
        tty.wait()
