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


def test_nothing_is_fetched_from_elsewhere(site: ModuleType, tmp_path: Path) -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in settings
    assert "http" not in settings
    # Search without a server needs a script, which the plugin takes from elsewhere if none of this
    # name is there.
    assert "- offline" in settings
    for file in site.BESIDE:
        assert file in settings
        assert "http" not in (ROOT / file).read_text()
    assert any("iframe-worker" in file for file in site.BESIDE)
    site.lay_out(tmp_path)
    assert all((tmp_path / "docs" / file).is_file() for file in site.BESIDE)


def test_a_page_that_needs_a_network_is_noticed(site: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "own.css").touch()
    (tmp_path / "deep").mkdir()
    good = '<link rel="stylesheet" href="../own.css"><a href="https://example.com">x</a>'
    (tmp_path / "deep" / "good.html").write_text(good)
    assert list(site.missing(tmp_path)) == []
    for bad in (
        '<script src="https://unpkg.com/iframe-worker/shim"></script>',
        "<script src=//unpkg.com/x></script>",
        '<img alt="x" src="picture.svg">',
        '<link href="https://fonts.gstatic.com" rel="preconnect">',
        '<link rel="stylesheet" href="own.css">',
    ):
        (tmp_path / "deep" / "bad.html").write_text(good + bad)
        assert len(list(site.missing(tmp_path))) == 1, bad


def test_the_logo_leads_to_a_page() -> None:
    """Where there is no server a folder is a listing of its files."""
    assert "homepage: index.html" in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "img").glob("*.svg")), ids=str)
def test_a_picture_can_be_read_by_itself(picture: Path) -> None:
    """In light and in dark: its text has a ground of its own."""
    light, dark = picture.read_text().split("@media (prefers-color-scheme: dark)")
    assert ":root { color-scheme: light dark; background: #ffffff; }" in light
    assert ":root { background: #0d1117; }" in dark
