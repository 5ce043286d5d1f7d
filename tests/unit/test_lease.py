"""The pure parts of the core: the lease's state machine, pauses, names, templates, URLs, options.

Nothing here waits, talks or reads a clock. What a user sees of a refusal, through `connect` and
`lock`, is in `test_bad_input.py`; here is the rule behind it, with both sides of each limit.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.url import Option, Url, parse
from holdfast.core import backoff
from holdfast.core.lease import JITTER, LeaseState, Lose, Renew, Sleep, Step, valid_until
from holdfast.core.names import (
    MAX_METADATA_BYTES,
    MAX_NAME_BYTES,
    checked_metadata,
    checked_name,
    checked_prefix,
)
from holdfast.core.options import (
    MAX_TTL,
    LockOptions,
    Want,
    check_known,
    checked_timeout,
    want,
)
from holdfast.core.template import namer
from holdfast.errors import Misconfigured, Unsupported
from holdfast.types import Mode

SENT = 1000.0


def lease(renew_every: float | None = 10.0, random: float = 0.0) -> LeaseState:
    return LeaseState(SENT, SENT + 30, renew_every, random)


# -- the lease -------------------------------------------------------------------------------------


@pytest.mark.req("law 1")
def test_validity_counts_from_before_the_request_and_loses_the_drift() -> None:
    assert valid_until(SENT, 30.0, drift=0.0) == SENT + 30
    assert valid_until(SENT, 30.0) == pytest.approx(SENT + 30 - 0.06)
    assert valid_until(SENT, 0.001) > SENT


@pytest.mark.req("R20", "law 5")
@pytest.mark.parametrize(
    ("now", "step"),
    [
        (SENT, Sleep(SENT + 10)),
        (SENT + 9.999, Sleep(SENT + 10)),
        (SENT + 10, Renew()),
        (SENT + 29.999, Renew()),
        (SENT + 30, Lose("its time ran out 0.000 s ago without a renewal")),
        (SENT + 31.5, Lose("its time ran out 1.500 s ago without a renewal")),
    ],
)
def test_what_to_do_when(now: float, step: Step) -> None:
    assert lease().step(now) == step


@pytest.mark.req("R22")
def test_a_fixed_lease_sleeps_until_its_end() -> None:
    fixed = lease(renew_every=None)
    assert fixed.step(SENT + 29) == Sleep(SENT + 30)
    assert isinstance(fixed.step(SENT + 30), Lose)


@pytest.mark.parametrize("random", [0.0, 0.5, 0.999])
def test_jitter_is_early_and_never_late(random: float) -> None:
    jittered = lease(random=random)
    assert SENT + 10 * (1 - JITTER) <= jittered.renew_at <= SENT + 10
    jittered.renewed(SENT + 10, SENT + 40, random)
    assert SENT + 10 + 10 * (1 - JITTER) <= jittered.renew_at <= SENT + 20


@pytest.mark.req("R20")
def test_a_renewal_moves_the_end_and_the_next_renewal() -> None:
    renewed = lease()
    renewed.renewed(SENT + 10, SENT + 40, 0.0)
    assert renewed.until == SENT + 40
    assert renewed.step(SENT + 11) == Sleep(SENT + 20)


@pytest.mark.req("law 6")
def test_a_renewal_never_shortens_what_is_believed() -> None:
    late = lease()
    late.renewed(SENT + 1, SENT + 5, 0.0)
    assert late.until == SENT + 30


def test_a_renewal_by_hand_starts_no_renewals() -> None:
    fixed = lease(renew_every=None)
    fixed.renewed(SENT + 10, SENT + 40, 0.0)
    assert fixed.renew_at == math.inf
    assert fixed.step(SENT + 39) == Sleep(SENT + 40)


@pytest.mark.req("R21")
def test_failures_are_counted_until_one_succeeds() -> None:
    failing = lease()
    for number in range(1, 4):
        failing.unanswered(SENT + 10 + number, 0.5)
        assert failing.failures == number
        assert failing.step(SENT + 10 + number) == Sleep(SENT + 10.5 + number)
    assert failing.until == SENT + 30  # no answer says nothing about the store
    failing.renewed(SENT + 15, SENT + 45, 0.0)
    assert failing.failures == 0


@pytest.mark.req("R21", "law 5")
def test_a_pause_past_the_end_does_not_outlive_it() -> None:
    failing = lease()
    failing.unanswered(SENT + 29, 10.0)
    assert failing.step(SENT + 29) == Sleep(SENT + 30)


@pytest.mark.req("law 1")
@pytest.mark.parametrize(
    ("now", "certain_until", "end", "trusted"),
    [
        (SENT, math.inf, "", True),
        (SENT + 29.999, math.inf, "", True),
        (SENT + 30, math.inf, "", False),
        (SENT + 5, SENT + 6, "", True),
        (SENT + 6, SENT + 6, "", False),
        (SENT, math.inf, "released", False),
    ],
)
def test_trust_is_computed_from_the_clock(
    now: float, certain_until: float, end: str, trusted: bool
) -> None:
    state = lease()
    state.certain_until, state.end = certain_until, end
    assert state.trusted(now) is trusted


# -- pauses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "random", "remaining", "pause"),
    [
        (1, 0.0, math.inf, 0.01),
        (1, 1.0, math.inf, 0.02),
        (2, 1.0, math.inf, 0.04),
        (6, 1.0, math.inf, 0.64),
        (7, 1.0, math.inf, 1.0),
        (10**9, 1.0, math.inf, 1.0),
        (7, 1.0, 0.4, 0.1),  # a quarter of what is left
        (7, 1.0, 0.0, 0.005),  # never a busy loop
        (7, 1.0, -3.0, 0.005),
    ],
)
def test_pauses_grow_and_stay_within_reason(
    failures: int, random: float, remaining: float, pause: float
) -> None:
    assert backoff.pause(failures, random, remaining) == pytest.approx(pause)


# -- names and metadata ----------------------------------------------------------------------------


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


# -- templates -------------------------------------------------------------------------------------


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


# -- URLs ------------------------------------------------------------------------------------------


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


# -- options of a lock -----------------------------------------------------------------------------


def wish(mode: Mode = Mode.EXCLUSIVE, permits: int = 1, limit: int = 1, **options: Any) -> Want:
    given: LockOptions = options  # type: ignore[assignment]
    check_known(given, LockOptions)
    return want("n", mode, given, MemoryBackend.capabilities, permits=permits, limit=limit)


def test_the_defaults() -> None:
    made = wish()
    assert (made.ttl, made.renew_every, made.timeout) == (30.0, 10.0, -1.0)
    assert (made.fair, made.reentrant, made.on_lost) == (True, False, None)


@pytest.mark.req("R20", "R22")
@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"ttl": 3}, "ttl", 3.0),
        ({"ttl": 3}, "renew_every", 1.0),
        ({"ttl": MAX_TTL}, "ttl", MAX_TTL),
        ({"renew": False}, "renew_every", None),
        ({"renew": 29.9}, "renew_every", 29.9),
        ({"timeout": 0}, "timeout", 0.0),
        ({"timeout": -1}, "timeout", -1.0),
        ({"timeout": math.inf}, "timeout", -1.0),
        ({"timeout": 10**400}, "timeout", -1.0),
    ],
)
def test_good_options(options: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(wish(**options), field) == value


@pytest.mark.parametrize(
    ("options", "because"),
    [
        *(({"ttl": ttl}, "ttl=.*positive") for ttl in (0, -1, math.nan, math.inf, -math.inf)),
        ({"ttl": 10**400}, "ttl=.*positive"),
        ({"ttl": MAX_TTL + 1}, "ten years"),
        ({"ttl": "30"}, "not str"),
        ({"ttl": True}, "not bool"),
        ({"ttl": None}, "not NoneType"),
        ({"renew": 30.0}, "not shorter than ttl=30"),
        ({"renew": 0}, "renew=0 must be"),
        ({"renew": math.nan}, "renew=nan"),
        ({"timeout": math.nan}, "NaN"),
        ({"timeout": -2}, "say -1"),
        ({"timeout": "1"}, "not str"),
        ({"fair": 1}, "True or False"),
        ({"reentrant": "yes"}, "True or False"),
        ({"on_lost": 7}, "callable"),
        ({"metadata": {"pid": "1"}}, "cannot set 'pid'"),
        ({"tttl": 1}, "did you mean 'ttl'"),
        ({"zzzzzz": 1}, "known are: ttl"),
    ],
)
def test_bad_options(options: dict[str, Any], because: str) -> None:
    with pytest.raises(Misconfigured, match=because):
        wish(**options)


@pytest.mark.parametrize(
    ("permits", "limit", "because"),
    [
        (0, 1, "take=0"),
        (1, 0, "permits=0"),
        (-1, 3, "take=-1"),
        (True, 3, "take=True"),
        (1.0, 3, "take=1.0"),
        (1, None, "permits=None"),
        (4, 3, "never be granted"),
    ],
)
def test_bad_permits(permits: Any, limit: Any, because: str) -> None:
    with pytest.raises(Misconfigured, match=because):
        wish(Mode.PERMITS, permits, limit)


def test_a_semaphore_is_not_reentrant() -> None:
    with pytest.raises(Misconfigured, match="second permit"):
        wish(Mode.PERMITS, 1, 2, reentrant=True)


def test_a_mode_the_backend_has_not() -> None:
    none = dataclasses.replace(MemoryBackend.capabilities, modes=frozenset({Mode.EXCLUSIVE}))
    with pytest.raises(Unsupported, match="it has: exclusive"):
        want("n", Mode.SHARED, {}, none)


@pytest.mark.parametrize("timeout", [-1, 0, 0.1, 1e9])
def test_timeouts_at_the_call(timeout: float) -> None:
    assert checked_timeout(timeout) == timeout


def test_each_acquire_makes_a_claim_of_its_own() -> None:
    made = wish(metadata={"job": "x"}, ttl=7)
    parent, child = {"host": "h", "pid": "1"}, {"host": "h", "pid": "2"}
    one, two = made.claim("o1", parent), made.claim("o2", parent)
    assert (one.owner, two.owner) == ("o1", "o2")
    assert one.info == {"host": "h", "pid": "1", "job": "x"}
    assert made.claim("o3", child).info["pid"] == "2"
    assert "o1" not in repr(one)
