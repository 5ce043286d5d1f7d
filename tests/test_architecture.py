"""The import arrows of docs/concepts/design.md, and a few promises about the source as a whole.

`violations(module, source)` is a function of text, so that each rule is also shown to catch what
it forbids. Imports inside functions count; imports for type checkers count too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent / "src"
PUBLIC = ("holdfast", "holdfast.aio", "holdfast.testing")

# Part of the package (longest prefix decides) -> what of holdfast it may import: a name stands for
# the module and everything below it, with "=" for the module alone. Its own part is always allowed.
ARROWS: dict[str, tuple[str, ...]] = {
    "holdfast": ("=holdfast.aio", "=holdfast.sync", "holdfast.errors", "holdfast.types",
                 "=holdfast.backends", "=holdfast.core.options", "=holdfast.core.misuse"),
    "holdfast.errors": (),
    "holdfast.extras": (),
    "holdfast.types": (),
    "holdfast.core": ("holdfast.types", "holdfast.errors"),
    "holdfast.ports": ("holdfast.core.port", "holdfast.errors"),
    "holdfast.backends": (
        "holdfast.core", "holdfast.types", "holdfast.errors", "=holdfast.ports.clock",
        "=holdfast.ports.bare", "=holdfast.extras",
    ),
    "holdfast.client": (
        "holdfast.core", "holdfast.types", "holdfast.errors", "holdfast.ports", "holdfast.backends"
    ),
    "holdfast.toolbox": ("holdfast.core", "holdfast.types", "holdfast.errors"),
    "holdfast.skins": (),
    "holdfast.skins.thread": (
        "holdfast.core", "holdfast.toolbox", "holdfast.types", "holdfast.errors",
        "holdfast.ports.thread", "=holdfast.client", "=holdfast.sync",
    ),
    "holdfast.skins.task": (
        "holdfast.core", "holdfast.toolbox", "holdfast.types", "holdfast.errors",
        "holdfast.ports.asyncio", "=holdfast.client", "=holdfast.aio",
    ),
    "holdfast.sync": (
        "holdfast.core", "holdfast.types", "holdfast.errors", "holdfast.ports", "holdfast.backends",
        "=holdfast.client", "holdfast.skins.thread",
    ),
    "holdfast.aio": (
        "holdfast.core", "holdfast.types", "holdfast.errors", "holdfast.ports", "holdfast.backends",
        "=holdfast.client", "holdfast.skins.task",
    ),
    "holdfast.fencing": ("holdfast.types", "holdfast.errors"),
    "holdfast.testing": ("holdfast",),
    "holdfast.sentinel": (
        "holdfast.core", "holdfast.types", "holdfast.errors", "=holdfast.ports.thread",
        "=holdfast.sync", "=holdfast.toolbox.values",
    ),
    "holdfast.cli": (
        *(f"={module}" for module in PUBLIC), "=holdfast.sentinel", "=holdfast.extras",
    ),
}  # fmt: skip

# The skins may not reach one backend: they know them by the registry alone.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "holdfast.toolbox": ("asyncio", "threading", "_thread", "time", "socket", "select", "os"),
    "holdfast.core": ("asyncio", "threading", "_thread", "time", "socket", "select", "selectors",
                      "signal", "subprocess", "multiprocessing", "concurrent", "os"),
    "holdfast.types": ("asyncio", "threading", "socket"),
}  # fmt: skip

# Where packages that are not the standard library's may be imported, and which.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "holdfast.testing.conformance": ("pytest",),
    "holdfast.backends.redis": ("hiredis",),
    "holdfast.backends.redlock": ("hiredis",),
    "holdfast.backends.zookeeper": ("kazoo",),
    "holdfast.backends.mysql": ("pymysql", "aiomysql"),
    "holdfast.backends.postgres": ("psycopg",),
    "holdfast.cli": ("click", "rich"),
}

# Who may use the tools for tests: those, and the lab, whose faults they are.
PROVING = ("holdfast.testing", "holdfast.cli.lab")

MAX_LINES = 400
LONGER: dict[str, str] = {}
"""Module -> why it may be longer than MAX_LINES."""


def modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted((SRC / "holdfast").rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(module: str, source: str, package: bool) -> Iterator[tuple[int, str]]:
    """(line, imported module) of every import, wherever it stands; names that are modules count
    as the module, so `from holdfast import sync` is an import of holdfast.sync."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                above = parts[: len(parts) - node.level + package]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in MODULES else base
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("__import__", "importlib.import_module", "import_module")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.lineno, str(node.args[0].value)


def under(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def part_of(module: str) -> str:
    """The key of ARROWS that governs a module."""
    return max((part for part in ARROWS if under(module, part)), key=len)


def allowed(target: str, rule: str) -> bool:
    return target == rule[1:] if rule.startswith("=") else under(target, rule)


def violations(module: str, source: str, package: bool = False) -> list[str]:
    part = part_of(module)
    found: list[str] = []
    for line, target in imports(module, source, package):
        root = target.partition(".")[0]
        if root == "holdfast":
            own = part != "holdfast" and under(target, part)
            if not own and not any(allowed(target, rule) for rule in ARROWS[part]):
                found.append(f"{module}:{line} imports {target}")
            if under(target, "holdfast.testing") and not any(under(module, p) for p in PROVING):
                found.append(f"{module}:{line} imports {target}: only tests and the lab may")
            if (
                target.count(".") >= 2
                and under(target, "holdfast.backends")
                and target != "holdfast.backends.url"
                and not any(under(module, p) for p in ("holdfast.backends", "holdfast.testing"))
            ):
                found.append(f"{module}:{line} imports one backend, {target}")
        elif root in sys.stdlib_module_names:
            banned = next((FORBIDDEN[p] for p in FORBIDDEN if under(module, p)), ())
            if root in banned or (module == "holdfast.errors" and root != "__future__"):
                found.append(f"{module}:{line} imports {target}")
        else:
            may = next((THIRD_PARTY[p] for p in THIRD_PARTY if under(module, p)), ())
            if root not in may:
                found.append(f"{module}:{line} imports {target}, which is not in Python")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_import_arrows(module: str) -> None:
    path = MODULES[module]
    assert violations(module, path.read_text(), path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "planted"),
    [
        ("holdfast.errors", "import enum"),
        ("holdfast.types", "from holdfast.errors import HoldfastError"),
        ("holdfast.core.acquire", "import time"),
        ("holdfast.core.acquire", "def f():\n    import asyncio"),
        ("holdfast.core.acquire", "from holdfast.ports import clock"),
        ("holdfast.core.keeper", "from ..ports import clock"),
        ("holdfast.core.keeper", "if TYPE_CHECKING:\n    from holdfast.sync import Lease"),
        ("holdfast.core.names", "import redis"),
        ("holdfast.core.names", "from concurrent.futures import Future"),
        ("holdfast.core.names", "m = __import__('threading')"),
        ("holdfast.ports.thread", "from holdfast.core.acquire import Engine"),
        ("holdfast.ports.thread", "from holdfast.types import Claim"),
        ("holdfast.backends.memory.store", "from holdfast.ports.thread import ThreadPort"),
        ("holdfast.backends.memory.store", "from holdfast.sync import Lock"),
        ("holdfast.backends.memory.store", "import redis"),
        ("holdfast.backends.redis.backend", "import kazoo.client"),
        ("holdfast.backends.redis.backend", "import redis.asyncio"),
        ("holdfast.sync", "from holdfast.backends.memory import Store"),
        ("holdfast.sync", "from holdfast.testing import FaultProxy"),
        ("holdfast.aio", "import importlib\nimportlib.import_module('holdfast.testing')"),
        ("holdfast.client", "import anyio"),
        ("holdfast.cli", "from holdfast.core.acquire import Engine"),
        ("holdfast.cli.demo", "from holdfast import sync"),
        ("holdfast.cli.demo", "import requests"),
        ("holdfast.cli.demo", "from holdfast.testing import FaultProxy"),
        ("holdfast.cli.lab.naive", "import redis"),
        ("holdfast", "from holdfast.core.acquire import Engine"),
        ("holdfast.testing.proxy", "import pytest"),
    ],
)
def test_a_planted_violation_is_found(module: str, planted: str) -> None:
    assert violations(module, planted) != []


@pytest.mark.parametrize(
    ("module", "fine"),
    [
        ("holdfast.types", "from dataclasses import dataclass"),
        ("holdfast.core.acquire", "from holdfast.core import keeper"),
        ("holdfast.core.acquire", "from .keeper import Keeper"),
        ("holdfast.backends.redis.wire", "import hiredis"),
        ("holdfast.cli.demo", "import holdfast\nfrom holdfast import aio\nimport threading"),
        ("holdfast.cli.lab.scene", "from holdfast.testing import FaultProxy"),
        ("holdfast.testing.conformance.suite", "import pytest\nimport holdfast.core.acquire"),
    ],
)
def test_what_is_allowed_is_not_reported(module: str, fine: str) -> None:
    assert violations(module, fine) == []


def test_relative_imports_are_resolved() -> None:
    assert list(imports("holdfast.core.keeper", "from .lease import Sleep", False)) == [
        (1, "holdfast.core.lease")
    ]
    assert list(imports("holdfast.core", "from .lease import Sleep", True)) == [
        (1, "holdfast.core.lease")
    ]
    assert list(imports("holdfast.core", "from ..ports import clock", True)) == [
        (1, "holdfast.ports.clock")
    ]


def test_importing_holdfast_is_light() -> None:
    """No backend, nothing of the tests, no command line, and no package from elsewhere."""
    program = (
        "import sys; before = set(sys.modules); import holdfast; "
        "print('\\n'.join(set(sys.modules) - before))"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", program], check=True, capture_output=True, text=True
    )
    loaded = set(ran.stdout.split())
    assert "holdfast.sync" in loaded
    unwanted = {
        name
        for name in loaded
        if any(under(name, part) for part in ("holdfast.testing", "holdfast.cli"))
        or (under(name, "holdfast.backends") and name.count(".") >= 2 and not name.endswith(".url"))
    }
    assert unwanted == set()
    roots = {name.partition(".")[0] for name in loaded} - {"holdfast"}
    assert {root for root in roots if root not in sys.stdlib_module_names} == set()
    assert not roots & {"sqlite3", "unittest", "multiprocessing", "http", "email", "xml"}


def test_what_an_extra_installs_is_imported() -> None:
    """An extra is a promise: there is code for it."""
    project = tomllib.loads((SRC.parent / "pyproject.toml").read_text())["project"]
    installed = {
        re.split(r"[^\w-]", requirement)[0].lower()
        for requirements in project["optional-dependencies"].values()
        for requirement in requirements
    }
    imported = {
        target.partition(".")[0]
        for module, path in MODULES.items()
        for _, target in imports(module, path.read_text(), path.name == "__init__.py")
    }
    assert installed - {"holdfast"} - imported == set()


@pytest.mark.parametrize("module", MODULES)
def test_each_file_is_small_and_says_what_it_is_for(module: str) -> None:
    source = MODULES[module].read_text()
    lines = source.count("\n")
    assert lines <= MAX_LINES or module in LONGER, f"{module} has {lines} lines"
    assert ast.get_docstring(ast.parse(source)), f"{module} has no docstring"


def test_exceptions_to_the_size_limit_are_needed() -> None:
    for module in LONGER:
        assert MODULES[module].read_text().count("\n") > MAX_LINES


def test_a_long_file_beside_the_library_says_why_at_its_top() -> None:
    root = SRC.parent
    for folder in ("tests", "bench", "scripts", "examples"):
        for path in sorted((root / folder).rglob("*.py")):
            source = path.read_text()
            why = f"Over {MAX_LINES} lines: " in (ast.get_docstring(ast.parse(source)) or "")
            assert why == (source.count("\n") > MAX_LINES), path.relative_to(root)
