"""The tests that a page names, and whether they are there. For tests/test_docs.py.

A page names a test by its bare name, as `path::test` or `path::Class::test`, and after such a one
as `...::test`. In a table of bugs a bare name is in the file named before it in its row, else where
the section says; after the word conformance, in the suite of every backend.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CONFORMANCE = "src/holdfast/testing/conformance"
ANY = "*"


class Named(NamedTuple):
    path: str  # a file, a folder, or "" for any
    owner: str  # a class, ANY of a file's or none, or "" for none
    name: str  # a function, or "" for the file itself


@cache
def sources() -> dict[str, ast.Module]:
    folders = ROOT / "tests", ROOT / "src" / "holdfast" / "testing"
    found = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in found}


@cache
def classes() -> dict[str, list[tuple[str, ast.ClassDef]]]:
    found: dict[str, list[tuple[str, ast.ClassDef]]] = {}
    for path, tree in sources().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append((path, node))
    return found


def functions(node: ast.Module | ast.ClassDef) -> set[str]:
    return {n.name for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}


@cache
def anywhere(path: str) -> set[str]:
    """All tests of a file, those of its classes too."""
    tree = sources()[path]
    inside = [functions(node) for node in tree.body if isinstance(node, ast.ClassDef)]
    return functions(tree).union(*inside)


def has(node: ast.ClassDef, name: str) -> bool:
    """Itself, or a base of it, wherever that is."""
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    above = [found for base in bases for _, found in classes().get(base, [])]
    return name in functions(node) or any(has(base, name) for base in above)


def exists(named: Named) -> bool:
    path, owner, name = named
    inside = [file for file in sources() if file == path or file.startswith(path.rstrip("/") + "/")]
    if not path:
        inside = list(sources())
    if not name:
        return bool(inside)
    if owner == ANY:
        return any(name in anywhere(file) for file in inside)
    if owner:
        return any(has(node, name) for file, node in classes().get(owner, []) if file in inside)
    return any(name in functions(sources()[file]) for file in inside)


def in_text(text: str, default: str | None = None) -> Iterator[Named]:
    """What the code spans of a text name, in their order. With a `default`, bare names are there,
    or in the file that was named before them."""
    here = last = default or ""
    for word, span in re.findall(r"(\bconformance:)|`([^`\n]+)`", text):
        path, *rest = span.split("::")
        if word:
            here = CONFORMANCE
        elif re.fullmatch(r"(tests|src/holdfast/testing)/[\w/]+\.py", path):
            last = here = path
            owner, name = ["", "", *rest][-2:]
            yield Named(path, owner, name)
        elif path == "..." and rest:
            owner, name = ["", *rest][-2:]
            yield Named(last, owner, name)
        elif re.fullmatch(r"test_\w+", span):
            yield Named("" if default is None else here, ANY, span)


def by_row(page: str) -> Iterator[tuple[str, list[Named]]]:
    """Each row of the tables of bugs: what it is about, and the tests in its last cell."""
    default = ""
    for line in page.splitlines():
        if said := re.search(r"\bthat is `([^`]+)`|^Tests are in `([^`]+)` unless", line):
            default = said[1] or said[2]
        elif line.startswith("| ") and not line.startswith(("| what |", "| ---")):
            what, *_, tests = re.split(r"(?<!\\)\|", line)[1:-1]
            yield what.strip(), list(in_text(tests, default))
