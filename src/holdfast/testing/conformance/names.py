"""Every name is one identity, on every store, and nothing is cut off silently (law 10)."""

from __future__ import annotations

import unicodedata

import pytest

from holdfast import Misconfigured
from holdfast.testing.conformance.harness import Api, Theme, refused, take

NFC = unicodedata.normalize("NFC", "Überstraße")
NFD = unicodedata.normalize("NFD", NFC)

FAMILIES: dict[str, list[str]] = {
    "case": [
        "lock",
        "Lock",
        "LOCK",
        "straße",
        "STRASSE",
        "strasse",
        "i",
        "I",
        "\N{LATIN SMALL LETTER DOTLESS I}",
        "İ",
    ],
    "unicode forms": [NFC, NFD, "K", "\N{KELVIN SIGN}", "\N{LATIN SMALL LIGATURE FI}", "fi"],
    "prefixes": ["a", "a/", "a/b", "a/b/c", "a:", "a:b", "ab", "a.", "a-", "a\0", "a\0b"],
    "slashes": ["/", "//", "/a", "///", ".", "..", "./a", "../a", "a/../b", "\\", "\\\\"],
    "spaces": [" ", "  ", "x", " x", "x ", "\tx", "x\n", "x\r\n", "\N{NO-BREAK SPACE}x"],
    "nul": ["\0", "\0\0", "n\0", "n\0u", "n"],
    "braces": ["{}", "{a}", "{a}b", "{", "}", "}{", "{{a}}", "{}{a}", "%7Ba%7D"],
    "quotes": ["'", '"', "`", "''", "';DROP TABLE locks;--", '\\"', "\\'", "$1", "%s", "?", ":n"],
    "wildcards": ["*", "a*", "?a", "[a]", "%", "_", "a%", "a_", "^a", "a$"],
    "escapes": ["%2F", "%", "%25", "a%2Fb", "&amp;", "+", "\\0", "\\u0000", "=", "#", "&"],
    "other scripts": [
        "锁",
        "замок",
        "κλειδαριά",
        "قفل",
        "🔒",
        "🔒\N{VARIATION SELECTOR-16}",
        "מנעול",
    ],
    "controls": ["\x01", "\x1b[0m", "\x7f", "\x85", "\u2028", "\ufeff", "\ufeffx", "\U0010ffff"],
    "long": ["x" * 1024, "x" * 1023, "x" * 1023 + "y", "y" + "x" * 1023, "é" * 512, "🔒" * 256],
}


class Names(Theme):
    @pytest.mark.req("names", "R1")
    @pytest.mark.parametrize("family", FAMILIES)
    async def test_each_name_is_one_identity(self, api: Api, family: str) -> None:
        """All of them are held at once, by different clients, and each is refused a second time."""
        names = FAMILIES[family]
        leases = [
            await take((api.here, api.there)[n % 2].lock(name), timeout=0)
            for n, name in enumerate(names)
        ]
        for name, lease in zip(names, leases, strict=True):
            assert lease.name == name
            assert await refused(api.there.lock(name)), name
        if api.capabilities.inspection:
            infos = await api.here.inspect()
            assert [info.name for info in infos] == sorted(names)
            for name in names:
                found = {info.name for info in await api.there.inspect(name)}
                assert found == {other for other in names if other.startswith(name)}
                assert await api.there.lock(name).locked()
            assert await api.there.evict(names[0]) == 1
            assert await leases[0].release() is False
        for name, lease in zip(names[1:], leases[1:], strict=True):
            assert await refused(api.here.lock(name)), name  # the eviction hit one name only
            assert await lease.release() is True, name

    @pytest.mark.req("names")
    @pytest.mark.parametrize(
        "name", ["", "x" * 1025, "é" * 513, "\ud800"], ids=lambda name: f"{name:.1}"
    )
    async def test_what_no_store_could_keep_is_refused(self, api: Api, name: str) -> None:
        with pytest.raises(Misconfigured):
            api.here.lock(name)

    @pytest.mark.req("names")
    async def test_nasty_names_wait_and_renew_too(self, api: Api) -> None:
        for name in ("\0{}/'\"", "x" * 1024, f"{NFD}/*%"):
            lease = await take(api.here.lock(name))
            waiter = await api.queue_up(api.there.lock(name))
            await lease.renew()
            await lease.release()
            handed_over = await waiter
            assert handed_over is not None
            await handed_over.release()

    @pytest.mark.req("huge metadata")
    async def test_huge_metadata_is_refused(self, api: Api) -> None:
        with pytest.raises(Misconfigured, match="4096"):
            api.here.lock("x", metadata={"note": "x" * 4097})
        async with api.here.lock("x", metadata={"n": "x" * 4095}):
            assert await refused(api.there.lock("x"))

    @pytest.mark.req("names")
    async def test_nasty_metadata_comes_back_as_it_was(self, api: Api) -> None:
        api.need_inspection()
        metadata = {"note": "\0'\";--{}%s\N{KELVIN SIGN}🔒\n", "\0": "", "{}": "}{"}
        async with api.here.lock("x", metadata=metadata):
            shown = (await api.look("x")).holders[0].info
            assert {key: shown[key] for key in metadata} == metadata
