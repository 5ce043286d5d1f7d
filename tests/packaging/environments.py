"""Environments as users have them: the built wheel, and beside it nothing, or one extra's packages.

Contract: no network. The wheel is really installed, into a new virtual environment, by pip without
an index: a package without extras that needed anything could not be. The packages of an extra are
those that its metadata asks for, and what they ask for in turn, found as pip finds them; they are
linked from this environment, which has all of them, and go on the path of the clean interpreter.
"""

from __future__ import annotations

import importlib.metadata as metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["Clean", "install", "linked", "requirements"]


@dataclass(frozen=True)
class Clean:
    """A virtual environment with the wheel in it, and for one run the packages of an extra."""

    where: Path

    @property
    def python(self) -> Path:
        return self.where / "bin" / "python"

    def run(self, *words: str, beside: Path | None = None) -> subprocess.CompletedProcess[str]:
        """`-P`: nothing of the folder that the tests run in is seen."""
        return self._run([str(self.python), "-P", *words], beside)

    def script(self, *words: str, beside: Path | None = None) -> subprocess.CompletedProcess[str]:
        """The console script."""
        return self._run([str(self.where / "bin" / "holdfast"), *words], beside)

    def _run(self, command: list[str], beside: Path | None) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "HOLDFAST", "COVERAGE"))
        }
        environment["XDG_STATE_HOME"] = str(self.where / "state")
        if beside is not None:
            environment["PYTHONPATH"] = str(beside)
        return subprocess.run(
            command, cwd=self.where, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip


def install(python: str, wheel: Path, where: Path) -> Clean:
    subprocess.run([python, "-m", "venv", "--without-pip", str(where)], check=True)
    clean = Clean(where)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    subprocess.run(
        [
            *pip,
            "--python",
            str(clean.python),
            "install",
            "--no-index",
            "--no-compile",
            "--no-cache-dir",
            str(wheel),
        ],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return clean


def requirements(extra: str) -> list[Requirement]:
    """What the extra adds to the bare package."""
    found = [Requirement(text) for text in metadata.requires("holdfast") or []]
    return [one for one in found if one.marker and one.marker.evaluate({"extra": extra})]


def linked(extra: str, folder: Path) -> list[str]:
    """Fill the folder with the extra's packages; their names."""
    names = sorted({name for one in requirements(extra) for name in _closure(one, set())})
    for name in names:
        distribution = metadata.distribution(name)
        files = distribution.files
        assert files, f"{name} does not say what belongs to it"
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            link = folder / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    return names


def _closure(wanted: Requirement, seen: set[str]) -> Iterator[str]:
    """The package and all that it needs, as installed here."""
    distribution = metadata.distribution(wanted.name)
    version = distribution.version
    assert wanted.specifier.contains(version, prereleases=True), f"{wanted}, and not {version}"
    if wanted.name in seen:
        return
    seen.add(wanted.name)
    yield wanted.name
    extras = {"", *wanted.extras}
    for one in map(Requirement, distribution.requires or []):
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras):
            yield from _closure(one, seen)
