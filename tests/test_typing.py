"""The types that users' checkers see: `tests/typing` holds under mypy --strict and pyright, and
what is wrong is refused by both, each line on its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow  # each checker starts cold
GOOD = sorted((ROOT / "tests" / "typing").glob("*.py"))

# Each line must be refused, and the text that the refusal must hold for each checker.
WRONG = {
    'locks.lock("a", tll=30)': "tll",
    'locks.lock("a", ttl="30")': "str",
    'locks.lock("a", cancel_on_lost=True)': "cancel_on_lost",
    'locks.lock("a", metadata={"n": 1})': "int",
    "locks.lock(42)": "str",
    'locks.semaphore("a")': "permits",
    'locks.lock("a").acquire().fence': "None",
    'locks.lock("a").acquire(timeout="5")': "str",
    "lease.fence = 1": "fence",
    "fencing.Gate().check(permit)": "Permit",
    'fencing.File("a").write(lease, 1)': "int",
    'locks.semaphore("a", 2).acquire(False) or 1 + permit.fence': "None",
    "report('1')": "str",
    "report(1, years=2)": "years",
    "aio.connect('memory://').lock('a').__enter__": "__enter__",
    "locks.lock('a').__aenter__": "__aenter__",
    "locks.rwlock('a').acquire()": "acquire",
    "locks.stripes('a', 2).__enter__": "__enter__",
    "holdfast.lock('a')": "lock",
    "holdfast.Lock('a')": "str",
    "holdfast.Locks('memory://')": "options",
    "int(aio.connect('memory://').lock('a').acquire())": "Coroutine",
    "aio.connect('memory://').once('a', 5, lambda: 1)": "Awaitable",
    "int(locks.once('a', 5, lambda: 'x').get()) + locks.once('a', 5, lambda: 'x').get()": "str",
    "locks.election('a', tll=5)": "tll",
}
PRELUDE = """\
import holdfast
from holdfast import aio, fencing

locks = holdfast.connect("memory://")
lease = locks.lock("a").__enter__()
permit = locks.semaphore("a", 2).__enter__()

@locks.locked("report:{user}")
def report(user: int) -> str:
    return str(user)

"""


def mypy(*files: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, files)]
    return _run(command)


def pyright(*files: Path) -> str:
    return _run([sys.executable, "-m", "pyright", *map(str, files)])


def _run(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    return ran.stdout if ran.returncode else ""


Checker = Callable[..., str]
CHECKERS = pytest.mark.parametrize("checker", [mypy, pyright])


@CHECKERS
@pytest.mark.timeout(300)
def test_the_public_api_has_the_types_it_should(checker: Checker) -> None:
    assert len(GOOD) >= 2
    assert checker(*GOOD) == ""


@CHECKERS
@pytest.mark.timeout(300)
def test_mistakes_are_found_by_type_checkers(checker: Checker, tmp_path: Path) -> None:
    file = tmp_path / "mistakes.py"
    file.write_text(PRELUDE + "\n".join(WRONG) + "\n")
    first = PRELUDE.count("\n") + 1
    said = checker(file)
    for number, (line, needed) in enumerate(WRONG.items(), first):
        about = re.findall(rf"mistakes\.py:{number}\b.*(?:\n +.*)*", said)
        assert any(needed in text for text in about), f"{line!r} was accepted:\n{said}"
    assert not re.findall(rf"mistakes\.py:(?:{'|'.join(map(str, range(1, first)))}):.*error", said)
