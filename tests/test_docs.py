"""The documentation is complete and true: every public name, method, option, error and flag is in
docs/reference with its default, every Python block runs, every link leads somewhere.

Over 400 lines: one reading of the documentation serves all these rules.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click
import pytest

import holdfast
import holdfast.fencing.aio
import holdfast.testing
from holdfast import aio, errors, sync
from holdfast.backends import find, schemes
from holdfast.cli.app import app, commands
from holdfast.cli.lab.levels import LEVELS
from holdfast.client import CLIENT_OPTIONS
from holdfast.core.options import LockOptions
from holdfast.extras import EXTRAS
from tests.named import ANY, Named, by_row, exists, in_text

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
REFERENCE = ROOT / "docs" / "reference"
API = (REFERENCE / "api.md").read_text()
OPTIONS = (REFERENCE / "options.md").read_text()
CLASSES = (
    "Locks", "Lock", "RWLock", "Semaphore", "Lease", "Permit", "LostEvent", "MultiLock",
    "MultiLease", "Stripes", "AnyStripe", "StripeLease", "Once", "Election", "Leadership", "Latch",
    "Barrier",
)  # fmt: skip
PAGE_OF = {
    **{scheme: "redis" for scheme in schemes() if scheme.startswith("redis")},
    "redlocks": "redlock",
    "etcds": "etcd",
    "zk": "zookeeper",
    "mariadb": "mysql",
    "postgres": "postgresql",
}
"""Where the page of a backend has another name than its scheme."""
INTERNAL = {"drop", "weakly"}
"""Attributes between a lease and its lock object that are not for users."""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def code_spans(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)))


def section(text: str, heading: str) -> str:
    """From the heading that is this code span to the next heading of the same level or above."""
    found = re.search(rf"^(#+) .*`{re.escape(heading)}`.*\n((?:(?!^#{{1,2}} ).*\n?)*)", text, re.M)
    assert found is not None, f"no heading for `{heading}`"
    return found[2]


def rows(text: str) -> dict[str, list[str]]:
    """The table rows of a text: first cell without backticks -> all cells."""
    table: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            cells = [
                cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]
            ]
            table[cells[0].strip("`")] = cells
    return table


# -- names -----------------------------------------------------------------------------------------


def public_names() -> Iterator[tuple[str, str]]:
    modules: list[ModuleType] = [holdfast, aio, holdfast.fencing, holdfast.testing]
    for module in modules:
        for name in module.__all__:
            yield module.__name__, name


@pytest.mark.parametrize(("module", "name"), list(public_names()))
def test_every_public_name_is_in_the_reference(module: str, name: str) -> None:
    spans = code_spans("\n".join(page.read_text() for page in REFERENCE.glob("*.md")))
    wanted = re.compile(rf"(^|\.){name}($|\()")
    assert any(wanted.search(span) for span in spans), f"{module}.{name}"


def signature_of(name: str, function: Any) -> str:
    """As the reference writes it: names and defaults, no annotations."""
    words: list[str] = []
    keyword_only = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            words.append("*")
        variable = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        stars = "*" * (variable.index(parameter.kind) + 1) if parameter.kind in variable else ""
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        words.append(stars + parameter.name + default.replace("'", '"'))
    return f"{name}({', '.join(words)})"


class Member(NamedTuple):
    owner: str
    name: str
    written: str  # as the reference must have it
    awaited: bool


def members(module: ModuleType) -> list[Member]:
    found: list[Member] = []
    for owner in CLASSES:
        cls = getattr(module, owner)
        if owner == "RWLock":  # its methods are made by its client
            found += [Member(owner, name, f"{name}()", False) for name in ("read", "write")]
        for name in dir(cls):
            if name.startswith("_") or name in INTERNAL:
                continue
            member = inspect.getattr_static(cls, name)
            if isinstance(member, property):
                found.append(Member(owner, name, name, False))
            elif callable(member):
                awaited = inspect.iscoroutinefunction(member)
                found.append(Member(owner, name, signature_of(name, member), awaited))
    return found


@pytest.mark.parametrize("owner", CLASSES)
def test_every_method_is_in_the_reference_with_its_defaults(owner: str) -> None:
    """Its row gives the signature, and says `await` exactly where asyncio needs it."""
    table = rows(section(API, owner))
    blocking = {m.written for m in members(sync) if m.owner == owner}
    tasks = {m.written: m.awaited for m in members(aio) if m.owner == owner}
    assert blocking == set(tasks), "the two skins differ"
    assert set(table) == blocking
    for written, awaited in tasks.items():
        assert (table[written][1] == "`await`") is awaited, written


def gates(module: ModuleType) -> dict[str, str]:
    """What is public in a module of gates, as the reference writes it -> what asyncio needs."""
    found: dict[str, str] = {}
    for name in module.__all__:
        thing = getattr(module, name)
        if not inspect.isclass(thing):
            found[signature_of(name, thing)] = ""
            continue
        found[signature_of(name, thing.__init__)] = ""
        for member in (m for m in dir(thing) if not m.startswith("_")):
            function = inspect.getattr_static(thing, member)
            if isinstance(function, property):
                found[f"{name}.{member}"] = ""
                continue
            wrapped = inspect.isasyncgenfunction(inspect.unwrap(function))
            word = "`await`" if inspect.iscoroutinefunction(function) else ""
            found[signature_of(f"{name}.{member}", function)] = "`async with`" if wrapped else word
    return found


def test_every_gate_is_in_the_reference_with_its_defaults() -> None:
    table = rows(section(API, "holdfast.fencing"))
    assert set(gates(holdfast.fencing)) == set(table)
    assert gates(holdfast.fencing.aio) == {written: cells[1] for written, cells in table.items()}


@pytest.mark.parametrize("module", [holdfast, aio])
def test_connect_is_in_the_reference(module: ModuleType) -> None:
    written = f"{module.__name__}.{signature_of('connect', module.connect)}"
    assert written in code_spans(API)


def test_the_method_check_can_fail() -> None:
    def acquire(self: object, blocking: bool = True, *, wait: float = 1.0) -> None: ...

    assert signature_of("acquire", acquire) == "acquire(blocking=True, *, wait=1.0)"
    assert rows('| `a(b="x")` | `await` | c \\| d |\n') == {
        'a(b="x")': ['`a(b="x")`', "`await`", "c | d"]
    }
    with pytest.raises(AssertionError):
        section("## `Other`\n", "Lease")
    assert section("## `A`\nx\n## `B`\ny\n", "A") == "x\n"


# -- options ---------------------------------------------------------------------------------------


def defaults() -> dict[str, Any]:
    """What a lock really does when nothing is said."""
    lock = aio.connect("memory://docs").lock("x")
    want = lock._want
    with sync.connect("memory://docs-metadata") as locks, locks.lock("x"):
        info = dict(locks.inspect("x")[0].holders[0].info)
    return {
        "ttl": want.ttl,
        "renew": want.renew_every == want.ttl / 3,
        "timeout": want.timeout,
        "fair": want.fair,
        "reentrant": want.reentrant,
        "metadata": {key: value for key, value in info.items() if key not in ("host", "pid")},
        "on_lost": want.on_lost,
        "cancel_on_lost": lock._cancel_on_lost,
    }


def test_every_lock_option_is_documented_with_its_real_default() -> None:
    real = defaults()
    declared = set(LockOptions.__annotations__) | set(aio.AioLockOptions.__annotations__)
    assert set(real) == declared, "test_docs does not know how to find this option's default"
    table = rows(section(OPTIONS, "lock"))
    assert set(table) == declared
    for option, value in real.items():
        assert ast.literal_eval(table[option][1].strip("`")) == value, option


def test_every_client_option_is_documented_with_its_default() -> None:
    table = rows(section(OPTIONS, "connect"))
    assert set(table) == {option.name for option in CLIENT_OPTIONS}
    for option in CLIENT_OPTIONS:
        assert ast.literal_eval(table[option.name][1].strip("`")) == option.default


OURS = [scheme for scheme in schemes() if str(find(scheme)).startswith("<class 'holdfast.")]
"""Not those that other tests have registered."""


@pytest.mark.parametrize("scheme", OURS)
def test_every_option_of_a_backend_is_on_its_page_with_its_default(scheme: str) -> None:
    declared = {option.name: option.default for option in find(scheme).options}
    page = ROOT / "docs" / "backends" / f"{PAGE_OF.get(scheme, scheme)}.md"
    said = rows(page.read_text())
    for name, default in declared.items():
        cell = said[name][1].strip("`")
        shown = ("off", "on")[default] if isinstance(default, bool) else str(default)
        assert cell == shown, f"{scheme}://, option {name}"


def test_the_acl_that_is_tested_is_the_one_on_the_page() -> None:
    pages = ROOT / "docs" / "backends"
    assert (pages / "redis-acl.txt").read_text() in (pages / "redis.md").read_text()
    dialects = (pages / "redis-dialects-acl.txt").read_text()
    assert dialects in (pages / "redis-dialects.md").read_text()
    assert (pages / "redlock-acl.txt").read_text() in (pages / "redlock.md").read_text()
    for name in ("mysql", "postgresql"):
        grants = (pages / f"{name}-grants.sql").read_text()
        assert grants in (pages / f"{name}.md").read_text()


def test_the_options_of_a_semaphore_are_documented() -> None:
    parameters = set(inspect.signature(holdfast.Locks.semaphore).parameters)
    assert set(rows(section(OPTIONS, "semaphore"))) == parameters - {"self", "name", "options"}


@pytest.mark.parametrize(
    ("heading", "tools"), [("once", ["once"]), ("barrier", ["latch", "barrier"])]
)
def test_the_options_of_a_tool_are_documented_with_their_defaults(
    heading: str, tools: list[str]
) -> None:
    table = rows(section(OPTIONS, heading))
    declared = {
        parameter.name: parameter.default
        for tool in tools
        for parameter in inspect.signature(getattr(holdfast.Locks, tool)).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert {name: ast.literal_eval(row[1].strip("`")) for name, row in table.items()} == declared


# -- errors and the command line -------------------------------------------------------------------


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_documented_with_what_it_also_is(name: str) -> None:
    table = rows((REFERENCE / "errors.md").read_text())
    bases = [base.__name__ for base in getattr(errors, name).__bases__]
    assert re.findall(r"`(\w+)`", table[name][1]) == bases


def flags(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from (*parameter.opts, *parameter.secondary_opts)
        else:
            yield parameter.human_readable_name.strip("[]")


def test_every_command_and_flag_is_documented() -> None:
    page = (REFERENCE / "cli.md").read_text()
    words = {word.strip(",[]") for span in code_spans(page) for word in span.split()}
    said = {word for path, command in commands() for word in (*path, *flags(command))}
    assert {"demo", "run", "--version", "--url"} <= said
    assert said <= words


def test_exit_statuses_are_the_same_in_help_and_reference() -> None:
    page = (REFERENCE / "cli.md").read_text()
    documented = {cell for cell in rows(page) if cell.isdigit()}
    helped = set(re.findall(r"^ +(\d+)  ", app.get_help(click.Context(app)), re.MULTILINE))
    assert documented == helped


# -- how it is installed ---------------------------------------------------------------------------

BY_NAME = re.compile(r"""pip install (?:-\S+ )*["']?holdfast\b""")
"""A stranger's package: the name on the public index is another project's."""


def test_nothing_tells_to_fetch_holdfast_by_its_name() -> None:
    trees = ("src", "docs", "examples", "scripts", "bench", ".ci", ".github")
    found = [path for tree in trees for path in (ROOT / tree).rglob("*")]
    texts = [path for path in found if path.is_file() and "__pycache__" not in path.parts]
    texts += [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.yml"), ROOT / "Makefile"]
    assert len(texts) > 300
    assert [named(path) for path in texts if BY_NAME.search(path.read_text())] == []


def test_that_check_can_fail() -> None:
    for wrong in ("'holdfast[redis]'", "holdfast", '-U "holdfast>=0.1"'):
        assert BY_NAME.search(f"run pip install {wrong} first")
    for right in ("'.[redis]'", "./holdfast-0.1.0-py3-none-any.whl", "'hiredis>=3'", "."):
        assert not BY_NAME.search(f"pip install {right}")


def test_errors_name_the_packages_of_each_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["optional-dependencies"]
    wanted = {extra: tuple(needs) for extra, needs in declared.items() if needs and extra != "all"}
    assert wanted == EXTRAS


# -- what pages say can be done --------------------------------------------------------------------


class Block(NamedTuple):
    page: Path
    line: int
    code: str
    excuse: str | None  # why it is not run


def blocks() -> list[Block]:
    found: list[Block] = []
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(
            r"(?:^<!-- not run: (?P<excuse>.+?) -->\n+)?^```python\n(?P<code>.*?)^```",
            text,
            re.M | re.S,
        ):
            line = text.count("\n", 0, match.start("code")) + 1
            found.append(Block(page, line, match["code"], match["excuse"]))
    return found


BLOCKS = blocks()


@pytest.mark.parametrize(
    "block",
    [pytest.param(b, id=f"{named(b.page)}:{b.line}") for b in BLOCKS if b.excuse is None],
)
def test_every_python_block_runs_as_it_stands(block: Block, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", block.code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)},
    )
    assert ran.returncode == 0, f"{named(block.page)}:{block.line}\n{ran.stdout}{ran.stderr}"
    assert "Exception ignored" not in ran.stderr


def test_the_readme_excuses_nothing() -> None:
    readme = [block for block in BLOCKS if block.page.name == "README.md"]
    assert readme
    assert [block.excuse for block in readme if block.page.parent == ROOT and block.excuse] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{named(page)}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{named(page)}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    text = page.read_text()
    named_targets = set(re.findall(r"(?:^|`|\$ |=\S+ )make ([a-z-]+)", text, re.M))
    assert named_targets <= targets


def command_lines(text: str) -> Iterator[list[str]]:
    """The words after `holdfast`, of code spans and of blocks that are not Python."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)
    inside = [block for language, block in fences if language != "python"]
    pattern = r"(?:^|^\$ |\* +|[(/=])holdfast ([a-z][^#|\n]*)"
    for block in (*inside, *code_spans(text)):
        for written in re.findall(pattern, block, re.M):
            yield written.partition(" -- ")[0].rstrip(")").split()


def unknown(name: str, *words: str) -> list[str]:
    """What there is not: the command itself, a flag of it, or a level of the lab."""
    known = {path[0]: command for path, command in commands() if path}
    if name not in known:
        return [name]
    there = {*flags(known[name]), *flags(app), "--help", "-h"}
    said = [word.strip(",[]").partition("=")[0] for word in words]
    missing = [word for word in said if word.startswith("-") and word not in there]
    if name == "lab" and said and re.match("[a-z]", said[0]):
        missing += [level for level in said[:1] if level not in LEVELS]
    return missing


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_line_that_is_shown_exists(page: Path) -> None:
    assert [line for line in command_lines(page.read_text()) if unknown(*line)] == []


def test_every_level_of_the_lab_is_named() -> None:
    table = (ROOT / "examples" / "lab" / "README.md").read_text()
    assert re.findall(r"^\| \[([a-z-]+)\]", table, re.M) == list(LEVELS)
    counted = {8: "eight", 9: "nine", 10: "ten", 11: "eleven"}[len(LEVELS)]
    for page in ("README.md", "CHANGELOG.md"):
        assert f"{counted} ways in which" in (ROOT / page).read_text()


def test_the_check_of_command_lines_can_fail() -> None:
    text = "`holdfast run x --ttl=5 -- sh --no` or\n```\nholdfast watch --interval 1 # --no\n```\n"
    assert [*command_lines(text)] == [["watch", "--interval", "1"], ["run", "x", "--ttl=5"]]
    assert unknown("run", "x", "--ttl=5", "--url", "u") == []
    assert unknown("wait", "x") == ["wait"]
    assert unknown("run", "x", "--patience", "5") == ["--patience"]
    assert unknown("lab", "no-expiry", "--html", "x") == []
    assert unknown("lab", "no-such-level") == ["no-such-level"]
    readme = [words[0] for words in command_lines((ROOT / "README.md").read_text())]
    assert {"run", "ls", "release", "sentinel", "lab"} <= set(readme)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_test_that_is_named_exists(page: Path) -> None:
    """As `test`, `path::test` or `path::Class::test`; files of tests too."""
    if page.name != "requirements.md":  # generated from the tests themselves
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        assert [test for test in in_text(text) if not exists(test)] == []


def test_every_bug_names_the_test_that_shows_it() -> None:
    """At least one, and all of them are where the page says that they are."""
    found = list(by_row((ROOT / "docs" / "concepts" / "found-bugs.md").read_text()))
    assert len(found) > 200
    assert [what for what, tests in found if not any(test.name for test in tests)] == []
    assert [test for _, tests in found for test in tests if not exists(test)] == []


def test_the_check_of_named_tests_can_fail() -> None:
    here, bound = "tests/test_docs.py", "tests/conformance/test_sql_bound.py"
    ours = "test_the_check_of_named_tests_can_fail"
    assert exists(Named(here, "", ours))
    assert exists(Named("", ANY, ours))
    assert exists(Named(here, "", ""))
    assert not exists(Named("tests/test_readme.py", "", ours))
    assert not exists(Named("tests/test_none.py", "", ""))
    assert not exists(Named("tests/unit", ANY, ours))
    assert exists(Named(bound, "TestPostgresAdvisory", "test_any_is_cancelled_anywhere"))
    assert not exists(Named(bound, "TestPostgresAdvisory", "test_what_nobody_wrote"))
    assert not exists(Named(here, "TestPostgresAdvisory", "test_any_is_cancelled_anywhere"))
    page = """Tests are in `tests/unit/a.py` unless another file is named.

| what | how it showed | test |
| --- | --- | --- |
| one | review | `test_4_digits`, `tests/b.py::C::test_5`, `...::test_6`, conformance: `test_7` |
| two | `test_8` | reading |
"""
    suite = "src/holdfast/testing/conformance"
    assert list(by_row(page)) == [
        ("one", [
            Named("tests/unit/a.py", ANY, "test_4_digits"),
            Named("tests/b.py", "C", "test_5"),
            Named("tests/b.py", "", "test_6"),
            Named(suite, ANY, "test_7"),
        ]),
        ("two", []),
    ]  # fmt: skip


def test_every_page_can_be_found_from_the_index() -> None:
    """docs/README.md leads to every page under docs."""
    index = ROOT / "docs" / "README.md"
    linked = {
        (index.parent / link.partition("#")[0]).resolve()
        for link in re.findall(r"\]\(([^)\s]+)\)", index.read_text())
    }
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - {index}
    assert {named(page) for page in pages - linked} == set()


@pytest.mark.timeout(300)  # all tests are collected, on a busy machine
@pytest.mark.parametrize("script", ["requirements_map", "matrix"])
def test_what_is_generated_is_up_to_date(script: str) -> None:
    ran = subprocess.run(
        [sys.executable, f"scripts/{script}.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
