"""What a store's URL says.

Nothing here waits, talks or reads a clock. What a user sees of a refusal, through `connect` and
`lock`, is in `test_bad_input.py`; here is the rule behind it, with both sides of each limit.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast.backends.url import Option, Url, parse
from holdfast.errors import Misconfigured


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("memory://", Url("memory")),
        ("MEMORY://Name", Url("memory", hosts=(("Name", None),))),
        ("redis://h:1/0", Url("redis", hosts=(("h", 1),), path="/0")),
        ("redis://a,b:2", Url("redis", hosts=(("a", None), ("b", 2)))),
        ("redis://[::1]:6379", Url("redis", hosts=(("::1", 6379),))),
        ("redis://[::1]", Url("redis", hosts=(("::1", None),))),
        ("x://u:p%40ss@h", Url("x", "u", "p@ss", (("h", None),))),
        ("x://:p@h", Url("x", "", "p", (("h", None),))),
        ("x://u@h", Url("x", "u", "", (("h", None),))),
        ("sqlite:///a%20b", Url("sqlite", path="/a b")),
        ("x://h?a=1&b=", Url("x", hosts=(("h", None),), query={"a": "1", "b": ""})),
    ],
)
def test_urls(text: str, url: Url) -> None:
    assert dataclasses.asdict(parse(text)) == dataclasses.asdict(url)


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("", "not a URL"),
        ("memory", "not a URL"),
        ("://h", "not a URL"),
        ("redis://h:port", "no port"),
        ("redis://h:0", "no port"),
        ("redis://h:65536", "no port"),
        ("redis://h/x@y", "@ after its host"),
        ("redis://u:p/q@h", "@ after its host"),
        ("redis://h?a=1&a=2", "'a' is given twice"),
    ],
)
def test_what_is_no_url(text: str, because: str) -> None:
    with pytest.raises(Misconfigured, match=because):
        parse(text)


@pytest.mark.req("law 9")
@pytest.mark.parametrize(
    "text",
    [
        "x://user:hunter2@h:1/p?k=v",
        "x://:hunter2@h",
        "x://user:hunter2@h:notaport",
        "x://user:hunter2@h/a@b",
        "x://user:pass/hunter2@h",
        "x://user:hunter2",  # an @ forgotten: the password looks like a port
        "user:hunter2@h",  # a scheme forgotten
        "x://h?password=hunter2",
        "x://u:hunter2@h,v:hunter2@i:1,j/0",
    ],
)
def test_a_password_is_never_shown(text: str) -> None:
    assert "hunter2" not in said_of(text)


def said_of(text: str) -> str:
    """Everything that is ever said of a URL that no backend wants."""
    try:
        url = parse(text)
    except Misconfigured as error:
        return str(error)
    said = [str(url), repr(url)]
    for part in ("user", "password", "port", "path", "hosts"):
        try:
            url.refuse(part)
        except Misconfigured as error:
            said.append(str(error))
    try:
        url.options([], {})
    except Misconfigured as error:
        said.append(str(error))
    return " ".join(said)


def test_a_url_is_printed_as_it_was_without_the_secret() -> None:
    assert str(parse("redis://me:pw@a:1,b/0?x=1")) == "redis://me:***@a:1,b/0"
    assert str(parse("x://me:pw@a:1,:s@b,c/0")) == "x://me:***@a:1,:***@b,c/0"
    assert str(parse("zk://[::1]:2181,[fe80::1],a/x")) == "zk://[::1]:2181,[fe80::1],a/x"


def test_each_host_may_have_a_login_of_its_own() -> None:
    url = parse("redlock://u:p%40@a:1,:q@b,c/0")
    assert url.hosts == (("a", 1), ("b", None), ("c", None))
    assert url.logins == (("u", "p@"), ("", "q"), ("", ""))
    assert parse("redlock://u:p,@a,b").logins == ()  # one for all


DECLARED = (
    Option("patience", 5.0, "seconds"),
    Option("shards", 3, "how many"),
    Option("tls", False, "encrypt"),
    Option("mode", "fast", "which", choices=("fast", "safe")),
)


@pytest.mark.parametrize(
    ("query", "name", "value"),
    [
        ("patience=0.5", "patience", 0.5),
        ("shards=7", "shards", 7),
        ("tls=TRUE", "tls", True),
        ("tls=0", "tls", False),
        ("mode=safe", "mode", "safe"),
        ("", "mode", "fast"),
    ],
)
def test_options_have_the_type_of_their_default(query: str, name: str, value: Any) -> None:
    values = parse(f"x://h?{query}").options(DECLARED, {})
    assert values[name] == value
    assert type(values[name]) is type(value)


def test_a_keyword_wins_over_the_url() -> None:
    assert parse("x://h?shards=7").options(DECLARED, {"shards": 9})["shards"] == 9


@pytest.mark.parametrize(
    ("query", "because"),
    [
        ("shards=many", "not a number"),
        ("shards=1.5", "not a number"),
        ("patience=nan", "not a number"),
        ("patience=inf", "not a number"),
        ("tls=maybe", "say 1 or true"),
        ("mode=slow", "choose from fast, safe"),
        ("pateince=1", "did you mean 'patience'"),
        ("zzz=1", "known are: mode, patience, shards, tls"),
    ],
)
def test_bad_options_of_a_url(query: str, because: str) -> None:
    with pytest.raises(Misconfigured, match=because):
        parse(f"x://h?{query}").options(DECLARED, {})
