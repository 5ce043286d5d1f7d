"""Names, metadata and templates.

Nothing here waits, talks or reads a clock. What a user sees of a refusal, through `connect` and
`lock`, is in `test_bad_input.py`; here is the rule behind it, with both sides of each limit.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.names import (
    MAX_METADATA_BYTES,
    MAX_NAME_BYTES,
    checked_metadata,
    checked_name,
    checked_prefix,
)
from holdfast.core.template import namer
from holdfast.errors import Misconfigured


@pytest.mark.req("names")
@pytest.mark.parametrize(
    "name",
    ["a", " ", "a/b", "A", "\n", "\x00", "é", "e\u0301", "🔒" * 256, "x" * MAX_NAME_BYTES, "{x}"],
)
def test_any_text_is_a_name_as_it_stands(name: str) -> None:
    assert checked_name(name) is name


@pytest.mark.req("names")
@pytest.mark.parametrize(
    ("name", "because"),
    [
        ("", "needs a name"),
        ("x" * (MAX_NAME_BYTES + 1), "1025 bytes"),
        ("é" * 513, "1026 bytes"),
        ("a\ud800", "lone surrogate at position 1"),
        (b"bytes", "not bytes"),
        (7, "not int"),
        (None, "not NoneType"),
    ],
)
def test_what_is_no_name(name: Any, because: str) -> None:
    with pytest.raises(Misconfigured, match=because):
        checked_name(name)


def test_a_prefix_may_be_empty_and_is_else_a_name() -> None:
    assert checked_prefix("") == ""
    assert checked_prefix("a") == "a"
    with pytest.raises(Misconfigured):
        checked_prefix(None)


def test_metadata_at_the_limit() -> None:
    full = {"k": "v" * (MAX_METADATA_BYTES - 1)}
    assert checked_metadata(full) == full
    assert checked_metadata(None) == {}
    assert checked_metadata({}) == {}


@pytest.mark.req("huge metadata")
@pytest.mark.parametrize(
    ("metadata", "because"),
    [
        ({"k": "v" * MAX_METADATA_BYTES}, "4097 bytes"),
        ({"é": "é" * 2048}, "4098 bytes"),
        ({"k": 1}, "text to text"),
        ({1: "v"}, "text to text"),
        ([("k", "v")], "text to text"),
        ("text", "text to text"),
        ({"k": "\ud800"}, "surrogate"),
        ({"host": "me"}, "cannot set 'host'"),
    ],
)
def test_bad_metadata(metadata: Any, because: str) -> None:
    with pytest.raises(Misconfigured, match=because):
        checked_metadata(metadata, reserved=("host",))


class User:
    id = 7


def report(user: User, *parts: str, year: int = 2026, **more: str) -> None: ...


def nothing() -> None: ...


@pytest.mark.parametrize(
    ("template", "args", "kwargs", "name"),
    [
        ("plain", (User(),), {}, "plain"),
        ("{{braces}}", (User(),), {}, "{braces}"),
        ("r:{user.id}", (User(),), {}, "r:7"),
        ("r:{year}", (User(),), {}, "r:2026"),
        ("r:{year:05d}", (User(),), {"year": 7}, "r:00007"),
        ("r:{parts[0]}", (User(), "x", "y"), {}, "r:x"),
        ("r:{more[k]}", (User(),), {"k": "v"}, "r:v"),
        ("{year!r}", (User(),), {"year": "x"}, "'x'"),
    ],
)
def test_names_from_arguments(template: str, args: Any, kwargs: Any, name: str) -> None:
    assert namer(template, report)(*args, **kwargs) == name


@pytest.mark.parametrize(
    ("template", "because"),
    [
        ("{nobody}", "'nobody'.*user, parts, year, more"),
        ("{}", "needs an argument ''"),
        ("{0}", "needs an argument '0'"),
        ("{year", "not a format"),
        ("}", "not a format"),
        ("", "needs a name"),
    ],
)
def test_a_bad_template_is_refused_when_decorating(template: str, because: str) -> None:
    with pytest.raises(Misconfigured, match=because):
        namer(template, report)


def test_a_function_without_arguments_is_named_as_such() -> None:
    with pytest.raises(Misconfigured, match="no arguments"):
        namer("{x}", nothing)
