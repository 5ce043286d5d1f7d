"""Lay out the documentation site: `make docs`. What is built, and in which order, comes from here.

    python scripts/docs_site.py          # build/docs, the pages, and build/docs.yml, their order
    python scripts/docs_site.py --check  # of build/site: nothing comes from elsewhere, all is there

Contract: the pages are those of the repository, in the same places, so that a link which works on a
code host works on the site; beside them lie the files that they link to. The order is that of
docs/README.md, which leads to every page (tests/test_docs.py): there is no second list. Two pages
are made here, from the code: the API of its docstrings, and the commands of their `--help`.
Partners: mkdocs.yml, and tests/test_docs_site.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INDEX = Path("docs/README.md")
FRONT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/RESULTS.md")
"""Pages that are not under docs."""
BESIDE = ("docs/site/site.css", "docs/site/iframe-worker.js")
"""What mkdocs.yml names, and no page."""
KINDS = {
    "Learn": "Tutorial",
    "Do": "How-to",
    "Understand": "Concepts",
    "Look up": "Reference",
    "Backends": "Backends",
    "Work on holdfast": "Project",
}
"""What docs/README.md calls a kind of page -> the tab."""
GENERATED = {"Reference": ("docs/reference/docstrings.md", "docs/reference/help.md")}
MODULES = ("holdfast", "holdfast.aio", "holdfast.fencing", "holdfast.testing")

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)

Nav = list[dict[str, list[str] | str]]


def pages() -> list[Path]:
    """All of the repository's, as paths in it."""
    found = [path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")]
    examples = [path.relative_to(ROOT) for path in (ROOT / "examples").rglob("*.md")]
    return sorted([*map(Path, FRONT), *found, *examples])


def links(page: Path) -> Iterator[Path]:
    """The files of the repository that a page leads to, as paths in it."""
    text = FENCE.sub("", (ROOT / page).read_text())
    for link in LINK.findall(text) + re.findall(r'(?:src|href)="([^"]+)"', text):
        target = link.partition("#")[0]
        if target and ":" not in target:
            yield Path(os.path.normpath(page.parent / target))


def navigation() -> Nav:
    """Tabs and their pages, in the index's order; what it does not name goes into the last tab."""
    text = (ROOT / INDEX).read_text()
    tabs: Nav = [{"Home": ["README.md", str(INDEX)]}]
    named = {Path("README.md"), INDEX}
    for kind, body in re.findall(r"^\*\*([^*]+)\*\*: (.*?)(?=\n\n|\Z)", text, re.M | re.S):
        own = [Path(os.path.normpath(INDEX.parent / link)) for link in LINK.findall(body)]
        own = [page for page in dict.fromkeys(own) if page.suffix == ".md"]
        named |= set(own)
        tabs.append({KINDS[kind]: [*map(str, own), *GENERATED.get(KINDS[kind], ())]})
    rest = [str(page) for page in pages() if page not in named]
    last = next(iter(tabs[-1].values()))
    assert isinstance(last, list)
    last += rest
    return tabs


def docstrings() -> str:
    head = "# Docstrings\n\nAs they stand in the code. [The API in tables](api.md) is shorter.\n"
    return head + "".join(f"\n::: {module}\n" for module in MODULES)


def commands() -> str:
    """What each command says to `--help`."""
    said = ["# Help of each command", "", "As the commands print it. [In tables](cli.md).", ""]
    program = "from holdfast.cli.app import commands; print(*[p[0] for p, _ in commands() if p])"
    for name in ["", *_output("-c", program).split()]:
        words = f"holdfast {name}".strip()
        text = _output("-m", "holdfast.cli", *filter(None, [name]), "--help")
        said += [f"## {words}", "", "```text", text.strip(), "```", ""]
    return "\n".join(said)


def _output(*words: str) -> str:
    ran = subprocess.run(
        [sys.executable, *words],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
    )
    return ran.stdout


def lay_out(build: Path) -> None:
    tree = build / "docs"
    shutil.rmtree(tree, ignore_errors=True)
    for page in pages():
        _copy(page, tree)
        for target in links(page):
            if (ROOT / target).is_file() and target.suffix != ".md":
                _copy(target, tree)
    for file in map(Path, BESIDE):
        _copy(file, tree)
    (tree / "docs/reference/docstrings.md").write_text(docstrings())
    (tree / "docs/reference/help.md").write_text(commands())
    settings = {"INHERIT": "../mkdocs.yml", "docs_dir": "docs", "site_dir": "site"}
    (build / "docs.yml").write_text(json.dumps({**settings, "nav": navigation()}, indent=1))


def _copy(path: Path, tree: Path) -> None:
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / path, tree / path)


# -- what was built --------------------------------------------------------------------------------

LOADED = re.compile(r'<(?:script|img|iframe)\b[^>]*?\bsrc="?([^"\s>]+)|<link\b[^>]*>')
HREF = re.compile(r'\bhref="?([^"\s>]+)')


def missing(site: Path) -> Iterator[str]:
    """What pages load from elsewhere, or from where nothing is: they shall do without a network."""
    for page in sorted(site.rglob("*.html")):
        for match in LOADED.finditer(page.read_text()):
            address = match[1] or (found[1] if (found := HREF.search(match[0])) else "")
            address = address.partition("?")[0].partition("#")[0]
            if address.startswith("/") and page.name == "404.html":
                continue  # only servers have that page
            if ":" in address or address.startswith("//") or not (page.parent / address).exists():
                yield f"{page.relative_to(site)} loads {address}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit("\n".join(missing(ROOT / "build" / "site")) or None)
    lay_out(ROOT / "build")
