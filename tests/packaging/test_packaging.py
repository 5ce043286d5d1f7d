"""The wheel and the source archive: what is in them, and that they work where nothing else is.

One build for all tests; `environments.py` says how the clean environments are made.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast
from holdfast.backends import _registry
from holdfast.extras import how_to_get
from tests.packaging import programs
from tests.packaging.environments import Clean, install, linked, requirements

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHONS = dict(
    line.split(" ", 1)
    for line in subprocess.run(
        ["scripts/find-python", "--all"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
)

URLS = {
    "redis": ["redis://127.0.0.1:{0}/0", "redlock://127.0.0.1:{0},127.0.0.1:{1},127.0.0.1:{2}/"],
    "etcd": ["etcd://127.0.0.1:{0}"],
    "zookeeper": ["zk://127.0.0.1:{0}/locks"],
    "mysql": ["mysql://root@127.0.0.1:{0}/app"],
    "postgres": ["postgresql://postgres@127.0.0.1:{0}/app"],
}
"""Extra -> stores that it is for, at ports where nobody answers."""

NOT_STORES = {"cli", "all"}
MODULES = 180
"""More than `import holdfast` may load, the standard library's included; 133 when this was
written. The time is measured by `python -m bench imports`, on a calm machine."""


class Built(NamedTuple):
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The source archive, and the wheel made from what is in that archive."""
    folder = tmp_path_factory.mktemp("dist")
    ran = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="module")
def clean(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Clean:
    return install(PYTHONS[HERE], built.wheel, tmp_path_factory.mktemp("clean") / "env")


@contextlib.contextmanager
def ports_that_refuse(number: int) -> Iterator[list[int]]:
    """Bound, so that nobody else gets them, and not listening."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        yield [one.getsockname()[1] for one in sockets]


# -- what is in them -------------------------------------------------------------------------------


def test_the_archives_satisfy_twine(built: Built) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_wheel_has_all_of_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = ROOT / "src" / "holdfast"
    wanted = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "holdfast/py.typed" in files
    assert any(name.endswith(".lua") for name in files)
    assert files == wanted


def test_the_source_archive_has_what_git_has(built: Built) -> None:
    """So that whoever unpacks it can do there what one does in a clone: every target of make."""
    with tarfile.open(built.sdist) as archive:
        files = {one.name.partition("/")[2] for one in archive if not one.isdir()}
    needed = {
        "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "Makefile",
        "scripts/venv", "tests/conftest.py", "bench/__main__.py", "docs/README.md", "mkdocs.yml",
        ".ci/run",
    }  # fmt: skip
    assert needed <= files
    assert not [name for name in files if ".venv" in name or "__pycache__" in name]
    if (ROOT / ".git").exists():  # not so where such an archive was unpacked
        listed = ["git", "ls-files", "-z"]
        ran = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
        tracked = {name for name in ran.stdout.split("\0") if name and (ROOT / name).exists()}
        assert tracked - files == set()


# -- no extras -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", PYTHONS)
def test_without_extras_it_works_and_needs_nothing(
    version: str, built: Built, clean: Clean, tmp_path: Path
) -> None:
    if version != HERE:
        clean = install(PYTHONS[version], built.wheel, tmp_path / "env")
    for url in ("memory://", f"sqlite:///{tmp_path}/locks.db"):
        ran = clean.run("-W", "error", "-c", programs.EMBEDDED, url)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        versions, distributions = ran.stdout.splitlines()
        said, metadata, file = versions.split(" ", 2)
        assert said == metadata == holdfast.__version__
        assert file.startswith(str(clean.where))
        assert distributions == "holdfast"


def test_a_missing_extra_is_named(clean: Clean) -> None:
    needing = {scheme: entry.extra for scheme, entry in _registry.items() if entry.extra}
    assert set(needing.values()) <= set(URLS)
    ran = clean.run("-c", programs.REFUSED, *(f"{scheme}://127.0.0.1/" for scheme in needing))
    assert ran.returncode == 0, ran.stderr
    for (scheme, extra), line in zip(needing.items(), ran.stdout.splitlines(), strict=True):
        assert line.startswith(f"{scheme}:// needs the package "), line
        assert line.endswith(f": {how_to_get(extra)}")


def test_the_command_without_its_extra_says_what_to_install(clean: Clean) -> None:
    ran = clean.script("--version")
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.endswith(f": {how_to_get('cli')}\n")
    assert "Traceback" not in ran.stderr


def test_the_import_is_light(clean: Clean) -> None:
    ran = clean.run("-I", "-c", programs.IMPORTED)
    assert ran.returncode == 0, ran.stderr
    loaded = ran.stdout.split()
    assert "holdfast.sync" in loaded
    assert "asyncio" not in loaded, "it comes with `holdfast.aio`, which is loaded when it is used"
    assert len(loaded) <= MODULES


# -- each extra ------------------------------------------------------------------------------------


def test_every_extra_is_known_here() -> None:
    declared = holdfast_extras()
    assert declared == set(URLS) | NOT_STORES
    everything = {one.name for extra in declared - {"all"} for one in requirements(extra)}
    assert {one.name for one in requirements("all")} - {"holdfast"} <= everything


def holdfast_extras() -> set[str]:
    import importlib.metadata

    return set(importlib.metadata.metadata("holdfast").get_all("Provides-Extra") or [])


@pytest.mark.parametrize(("extra", "url"), [(extra, url) for extra in URLS for url in URLS[extra]])
def test_each_extra_alone_is_enough_for_its_store(
    extra: str, url: str, clean: Clean, tmp_path: Path
) -> None:
    """Enough to find out, for threads and for tasks, that nobody answers there."""
    linked(extra, tmp_path)
    with ports_that_refuse(3) as ports:
        ran = clean.run("-c", programs.UNREACHABLE, url.format(*ports), beside=tmp_path)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        threads, tasks = ran.stdout.splitlines()
        assert threads.startswith("threads: ")
        assert tasks.startswith("tasks: ")
        assert str(ports[0]) in threads, "which server it was is said"
    assert "Traceback" not in ran.stderr


def test_the_version_on_the_command_line(clean: Clean, tmp_path: Path) -> None:
    linked("cli", tmp_path)
    ran = clean.script("--version", beside=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert holdfast.__version__ in ran.stdout.split()


# -- types -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_users_program_is_checked_against_the_installed_package(
    checker: str, clean: Clean, tmp_path: Path
) -> None:
    """All is well in the one file; and in the other the mistake is found, so types are seen."""
    (tmp_path / "typed.py").write_text(programs.TYPED)
    (tmp_path / "mistaken.py").write_text(programs.MISTAKEN)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    options = {
        "mypy": ["--strict", "--no-error-summary", "--python-executable", str(clean.python)],
        "pyright": ["--pythonpath", str(clean.python)],
    }
    ran = subprocess.run(
        [sys.executable, "-m", checker, *options[checker], "typed.py", "mistaken.py"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stdout + ran.stderr
    errors = [line for line in ran.stdout.splitlines() if "error" in line and ".py:" in line]
    assert len(errors) == 1, ran.stdout
    assert "mistaken.py:3" in errors[0]
    assert '"int"' in errors[0]


def test_the_users_program_runs(clean: Clean) -> None:
    ran = clean.run("-W", "error", "-c", programs.TYPED)
    assert ran.returncode == 0, ran.stderr
    assert "42 charged under" in ran.stdout
