"""The seeded bugs do not rot: each patch applies, at one place only, and says what it is.

That the suite catches them is shown by `make mutants`, which takes minutes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutants.run import ROOT, Mutant, apply, mutants

ALLOWED = re.compile(
    r"src/holdfast/(core|ports|fencing|sentinel|toolbox|skins/thread|skins/task)/\w+\.py"
    r"|src/holdfast/backends/(memory|sqlite|redis|etcd|zookeeper|redlock|sql|mysql|postgres)/\w+\.py"
    r"|src/holdfast/backends/(redis|redlock)/scripts/\w+\.lua"
    r"|src/holdfast/(sync|aio|backends/(attendance|common|local|quiet|addresses))\.py"
)
MUTANTS = mutants()
SUITE = "".join(
    path.read_text() for path in (ROOT / "src/holdfast/testing/conformance").glob("*.py")
)


def hunks(patch: Path) -> list[tuple[str, str]]:
    """For each hunk, the file and the lines it expects there."""
    found: list[tuple[str, str]] = []
    path = ""
    for line in patch.read_text().splitlines(keepends=True):
        if line.startswith("--- a/"):
            path = line.removeprefix("--- a/").strip()
        elif line.startswith("@@"):
            found.append((path, ""))
        elif found and line[0] in " -" and not line.startswith("---"):
            found[-1] = path, found[-1][1] + line[1:]
    return found


def test_there_are_enough_and_their_numbers_are_their_own() -> None:
    assert len(MUTANTS) >= 20
    numbers = [mutant.name.partition("-")[0] for mutant in MUTANTS]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_patch_applies_and_says_what_it_breaks(mutant: Mutant) -> None:
    assert mutant.law
    assert mutant.breaks.endswith(".")
    assert mutant.tests, "it must name the tests that catch it"
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file(), test
        name = name.rpartition("::")[2].partition("[")[0]
        assert not name or f"def {name}(" in (ROOT / path).read_text() + SUITE, test
    applied = apply(mutant.path, ROOT, "--check")
    assert applied.returncode == 0, f"{applied.stderr}\nmake the change anew on today's code"
    for path, expected in hunks(mutant.path):
        assert ALLOWED.fullmatch(path)
        text = "\n" + (ROOT / path).read_text()
        assert text.count("\n" + expected) == 1, "more than one place fits: give it more context"


def test_a_patch_that_does_not_apply_is_noticed(tmp_path: Path) -> None:
    patch = tmp_path / "99-stale.patch"
    patch.write_text(MUTANTS[0].path.read_text().replace("\n-", "\n-changed since "))
    assert apply(patch, ROOT, "--check").returncode != 0
