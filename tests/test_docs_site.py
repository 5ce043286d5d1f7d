"""The documentation site's layout, without building it: every page has a place, and what pages lead
to is there. `make docs` builds it, strictly."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts" / "docs_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def named(site: ModuleType) -> list[str]:
    return [page for tab in site.navigation() for pages in tab.values() for page in pages]


def test_every_page_has_one_place(site: ModuleType) -> None:
    made = [page for pages in site.GENERATED.values() for page in pages]
    assert sorted(named(site)) == sorted([*map(str, site.pages()), *made])


def test_the_tabs_are_the_kinds_of_the_index(site: ModuleType) -> None:
    tabs = [name for tab in site.navigation() for name in tab]
    assert tabs == ["Home", *site.KINDS.values()]
    tutorials = next(tab["Tutorial"] for tab in site.navigation() if "Tutorial" in tab)
    assert "docs/tutorial/first-lock.md" in tutorials


def test_what_pages_lead_to_is_laid_beside_them(site: ModuleType, tmp_path: Path) -> None:
    site.lay_out(tmp_path)
    for page in site.pages():
        for target in site.links(page):
            assert (tmp_path / "docs" / target).exists(), f"{page} leads to {target}"
    help_page = (tmp_path / "docs/docs/reference/help.md").read_text()
    assert "## holdfast run" in help_page
    assert "--timeout" in help_page
    assert "::: holdfast.aio" in (tmp_path / "docs/docs/reference/docstrings.md").read_text()


def test_nothing_is_fetched_from_elsewhere() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in settings
    assert "http" not in settings
