"""What cannot work is refused at once, by a specific exception that says what to do instead."""

from __future__ import annotations

import asyncio
import copy
import enum
import math
import pathlib
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Closed, Locks, Misconfigured, Unsupported, aio, backends

Call = Callable[[Locks], Any]


@pytest.fixture
def locks() -> Iterator[Locks]:
    with holdfast.connect("memory://bad-input") as client:
        yield client


REFUSED: dict[str, tuple[Call, str]] = {
    "empty name": (lambda c: c.lock(""), "needs a name"),
    "1025 bytes": (lambda c: c.lock("n" * 1025), "1025 bytes .* limit is 1024"),
    "1026 bytes in 342 characters": (lambda c: c.lock("€" * 342), "1026 bytes"),
    "bytes as a name": (lambda c: c.lock(b"x"), "text, not bytes"),  # type: ignore[arg-type]
    "lone surrogate": (lambda c: c.lock("\ud800"), "UTF-8"),
    "ttl 0": (lambda c: c.lock("x", ttl=0), "ttl=0 must be a positive"),
    "ttl negative": (lambda c: c.lock("x", ttl=-1), "ttl=-1 must be a positive"),
    "ttl NaN": (lambda c: c.lock("x", ttl=math.nan), "ttl=nan must be a positive"),
    "ttl inf": (lambda c: c.lock("x", ttl=math.inf), "ttl=inf must be a positive"),
    "ttl of centuries": (lambda c: c.lock("x", ttl=1e10), "more than ten years"),
    "ttl beyond floats": (lambda c: c.lock("x", ttl=10**400), "ttl=inf"),
    "ttl as text": (lambda c: c.lock("x", ttl="30"), "number of seconds"),  # type: ignore[arg-type]
    "ttl as a switch": (lambda c: c.lock("x", ttl=True), "number of seconds, not bool"),
    "timeout NaN": (lambda c: c.lock("x", timeout=math.nan), "timeout=nan: say -1"),
    "timeout None": (
        lambda c: c.lock("x", timeout=None),  # type: ignore[arg-type]
        "timeout=None: say -1 to wait for ever",
    ),
    "timeout -2": (lambda c: c.lock("x", timeout=-2), "timeout=-2: say -1"),
    "acquire NaN": (lambda c: c.lock("x").acquire(timeout=math.nan), "timeout=nan"),
    "acquire 5": (lambda c: c.lock("x").acquire(5), r"acquire\(timeout=5\)"),  # type: ignore[arg-type]
    "cancel_on_lost without asyncio": (
        lambda c: c.lock("x", cancel_on_lost=True),  # type: ignore[call-arg]
        "only asyncio",
    ),
    "locked without a name": (
        lambda c: c.locked(lambda: 0),  # type: ignore[arg-type]
        "wants the name of the lock",
    ),
    "try with a timeout": (
        lambda c: c.lock("x").acquire(blocking=False, timeout=1),
        "cannot have a timeout",
    ),
    "renew 0": (lambda c: c.lock("x", renew=0), "renew=0 must be a positive"),
    "renew as long as the ttl": (lambda c: c.lock("x", ttl=3, renew=3), "not shorter than ttl=3"),
    "permits 0": (lambda c: c.semaphore("x", 0), "whole permits, 1 or more"),
    "permits 2**31": (lambda c: c.semaphore("x", 2**31), "permits: at most 2147483647"),
    "permits 1.5": (lambda c: c.semaphore("x", 1.5), "whole permits"),  # type: ignore[arg-type]
    "permits beyond floats": (lambda c: c.semaphore("x", 10**400), "permits: at most 2147483647"),
    "take 0": (lambda c: c.semaphore("x", 2, take=0), "whole permits"),
    "take more than there are": (lambda c: c.semaphore("x", 2, take=3), "never be granted"),
    "reentrant semaphore": (lambda c: c.semaphore("x", 2, reentrant=True), "second permit"),
    "fair as text": (lambda c: c.lock("x", fair="no"), "True or False"),  # type: ignore[arg-type]
    "metadata of numbers": (
        lambda c: c.lock("x", metadata={"a": 1}),  # type: ignore[dict-item]
        "text to text",
    ),
    "huge metadata": (lambda c: c.lock("x", metadata={"a": "b" * 5000}), "5001 bytes; the limit"),
    "metadata posing as a host": (lambda c: c.lock("x", metadata={"host": "h"}), "'host'"),
    "on_lost not callable": (
        lambda c: c.lock("x", on_lost="mail me"),  # type: ignore[arg-type]
        "must be callable",
    ),
    "unknown option": (
        lambda c: c.lock("x", tttl=3),  # type: ignore[call-arg]
        "no option 'tttl'; did you mean 'ttl'",
    ),
    "template of an argument that is not there": (
        lambda c: c.locked("report:{user_id}")(lambda user: user),
        "needs an argument 'user_id', but .* has: user",
    ),
    "template that is no format": (lambda c: c.locked("{")(lambda: 0), "not a format"),
    "multi of one list": (
        lambda c: c.multi(["a", "b"]),  # type: ignore[arg-type]
        r"locks\.multi\(\*names\)",
    ),
    "multi of a generator": (
        lambda c: c.multi(name for name in "ab"),  # type: ignore[arg-type]
        r"locks\.multi\(\*names\)",
    ),
    "evict nothing": (lambda c: c.evict(""), "needs a name"),
    "inspect a number": (lambda c: c.inspect(5), "text, not int"),  # type: ignore[arg-type]
}


@pytest.mark.req("R7", "law 10")
@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_asked(locks: Locks, case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(Misconfigured, match=message):
        call(locks)
    assert locks.inspect() == []


def test_a_name_is_its_text_whatever_class_it_has(locks: Locks) -> None:
    """Formatted, a member of this class is "Kind.STOCK": its stripes were others."""

    class Kind(str, enum.Enum):  # noqa: UP042 - a StrEnum is formatted as its text
        STOCK = "stock"

    assert type(locks.lock(Kind.STOCK).name) is str
    with locks.stripes(Kind.STOCK, 2).all():
        assert locks.stripes("stock", 2).any().acquire(blocking=False) is None


def test_names_at_the_limit_are_fine(locks: Locks) -> None:
    for name in ("n" * 1024, "€" * 341, "\0", " ", "{}", "a/b", "x\ny"):
        with locks.lock(name):
            assert [info.name for info in locks.inspect()] == [name]


BAD_URLS: dict[str, tuple[str, str]] = {
    "no url": ("", "the URL is empty"),
    "not a url": ("localhost:6379", "is not a URL"),
    "unknown scheme": ("gopher://x", "no backend speaks gopher"),
    "scheme nearly right": ("memroy://", r"Did you mean memory://\?"),
    "unknown query option": (
        "memory://x?request_timeuot=3",
        "has no option 'request_timeuot'; did you mean 'request_timeout'",
    ),
    "zookeeper": ("zookeeper://h", r"Did you mean zk://\?"),
    "path": ("/tmp/x.db", r"A file is for SQLite: sqlite:///tmp/x\.db"),
    "relative path": ("locks.db", "A file is for SQLite"),
    "option of a lock": ("memory://x?ttl=5", r"'ttl' is an option of a lock: locks\.lock\("),
    "option of another kind": ("memory://x?request_timeout=soon", "not a number"),
    "option given twice": ("memory://x?label=a&label=b", "'label' is given twice"),
    "request_timeout 0": ("memory://x?request_timeout=0", "positive, finite"),
    "port for memory": ("memory://x:1", "have no port"),
    "bad port": ("memory://x:999999", "is no port"),
    "password with a slash": ("memory://u:se/cret@h", "@ after its host"),
    "NUL in a password": ("postgresql://u:se%00cret@h/db", "a NUL in it"),
    "unknown sslmode": ("postgresql://h/db?sslmode=on", "choose from disable, allow"),
    "unknown kind of host": (
        "postgresql://h/db?target_session_attrs=master",
        "choose from any, read-write",
    ),
    "a host with an empty part": ("memory://a..b", "a host with a part that is empty"),
    "a host with a long part": ("memory://" + "a" * 64, "empty or too long"),
    "a host forgotten": ("redlock://a,b,c,", "a comma with no host"),
    "a host with a port only": ("redis+cluster://a:1,:2", "a comma with no host"),
    "a user beyond UTF-8": ("memory://\ud800:secret@h", "cannot be written as UTF-8"),
    "centuries": ("memory://x?request_timeout=1e10", "more than ten years"),
    "redis, centuries": ("redis://x?window=1e10", "window=1e\\+10: more than ten years"),
    "redlock, centuries": ("redlock://x,y,z?fence_memory=1e18", "more than ten years"),
    "a login for each host": ("memory://u:secret@a,v:secret@b", "one user and password for all"),
}


@pytest.mark.parametrize("case", BAD_URLS)
def test_bad_urls(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url, message = BAD_URLS[case]
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    for connect in (holdfast.connect, aio.connect):
        with pytest.raises(Misconfigured, match=message):
            connect(url)


@pytest.mark.req("law 9")
@pytest.mark.parametrize(
    "url",
    [
        "memory://u:c4nary@h",
        "memory://u:c4na/ry@h",
        "memory://u:c4na\ud800ry@h",
        "memory://u:c4nary@a..b",
        "memory://:c4nary?x@h",
        "memory://u:c4nary@h?nope=1",
        "nope://u:c4nary@h",
        "u:c4nary@h",
    ],
)
def test_passwords_are_in_no_message(url: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        holdfast.connect(url)
    assert "c4na" not in f"{caught.value}{caught.value!r}"


def test_keyword_options_are_checked_like_those_of_the_url() -> None:
    with pytest.raises(Misconfigured, match="did you mean 'label'"):
        holdfast.connect("memory://", lable="x")
    with pytest.raises(Misconfigured, match="number of seconds, not str"):
        holdfast.connect("memory://", request_timeout="abc")


def test_an_option_of_a_lock_is_none_of_a_client() -> None:
    with pytest.raises(Misconfigured, match=r"locks\.lock\(name, ttl=\.\.\.\)"):
        holdfast.connect("memory://", ttl=5)


@pytest.mark.parametrize(
    ("source", "message"),
    [(object(), "; not an object$"), (pathlib.Path("/tmp/x.db"), r"sqlite:///tmp/x\.db$")],
)
def test_what_names_no_store(source: object, message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        holdfast.connect(source)


LONG = "n" * 3000


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.lock(LONG),
        lambda c: c.lock("x", **{LONG: 1}),
        lambda c: c.locked("{" + LONG)(lambda: 0),
        lambda c: c.locked("{" + LONG + "}")(lambda: 0),
        lambda c: c.semaphore("x", LONG),
        lambda c: c.latch("x", LONG),
        lambda c: holdfast.connect(LONG + "://"),
        lambda c: holdfast.connect(LONG),
    ],
)
def test_what_is_long_is_not_repeated_in_full(locks: Locks, call: Call) -> None:
    with pytest.raises(Misconfigured) as caught:
        call(locks)
    assert len(str(caught.value)) < 500


def test_a_bad_url_of_the_environment_says_where_it_is_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for bad in ("foo", "gopher://x"):
        monkeypatch.setenv("HOLDFAST_URL", bad)
        with pytest.raises(Misconfigured, match=r"\(from HOLDFAST_URL\)$"):
            holdfast.connect()
        with pytest.raises(Misconfigured) as caught:
            holdfast.connect("bar")
        assert "HOLDFAST_URL" not in str(caught.value)


def test_the_environment_names_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "memory://from-environment")
    with holdfast.connect() as client:
        assert "memory://from-environment" in repr(client)


@pytest.mark.parametrize(("extra", "package"), [("redis", "hiredis>=3"), ("theirs", "theirs")])
def test_a_missing_client_package_is_named(
    extra: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "needs_a_client.py").write_text("import a_client_nobody_has\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(backends, "_registry", dict(backends._registry))
    holdfast.register("needy", "needs_a_client:Backend", extra=extra)
    with pytest.raises(Misconfigured, match=f"a_client_nobody_has.*: pip install '{package}'$"):
        holdfast.connect("needy://host")
    sys.modules.pop("needs_a_client", None)


def test_a_backend_that_cannot_says_who_can() -> None:
    from holdfast.core.options import want
    from holdfast.types import Capabilities, Mode

    poor = Capabilities(frozenset({Mode.EXCLUSIVE}), "none", frozenset(), "ttl", "everything")
    with pytest.raises(Unsupported, match=r"no shared \(read\) locks .*memory://"):
        want("x", Mode.SHARED, {}, poor)


def test_use_after_close() -> None:
    locks = holdfast.connect("memory://closed")
    lock = locks.lock("x")
    locks.close()
    locks.close()
    uses: list[Callable[[], Any]] = [lock.acquire, lock.__enter__, lock.locked, locks.inspect]
    for use in uses:
        with pytest.raises(Closed, match="was closed; make a new one"):
            use()
    with pytest.raises(Closed):
        locks.evict("x")


def test_use_after_close_async() -> None:
    async def main() -> None:
        locks = aio.connect("memory://closed")
        lock = locks.lock("x")
        await locks.close()
        await locks.close()
        with pytest.raises(Closed, match="was closed; make a new one"):
            await lock.acquire()
        with pytest.raises(Closed):
            async with lock:
                pass

    asyncio.run(main())


def test_one_event_loop_for_each_client() -> None:
    locks = aio.connect("memory://loops")

    async def use() -> None:
        async with locks.lock("x"):
            pass

    asyncio.run(use())
    with pytest.raises(Misconfigured, match="another event loop"):
        asyncio.run(use())


def test_decorating_the_wrong_kind(locks: Locks) -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    def function() -> None: ...

    with pytest.raises(Misconfigured, match=r"holdfast\.aio\.connect"):
        locks.locked("x")(coroutine)
    with pytest.raises(Misconfigured, match="generator"):
        locks.locked("x")(generator)
    with pytest.raises(Misconfigured, match="text, not int"):
        locks.locked(5)(function)  # type: ignore[arg-type]
    with pytest.raises(Misconfigured, match="needs an argument 'width'"):
        locks.locked("{name:{width}}")(lambda name: None)
    other = aio.connect("memory://bad-input")
    with pytest.raises(Misconfigured, match=r"holdfast\.connect"):
        other.locked("x")(function)  # type: ignore[arg-type]
    with pytest.raises(Misconfigured, match="did you mean 'cancel_on_lost'"):
        other.lock("x", cancel_on_lots=False)  # type: ignore[call-arg]


def test_releasing_what_is_not_held(locks: Locks) -> None:
    with pytest.raises(holdfast.NotHeld, match="holds no lease"):
        locks.lock("x").release()
    with pytest.raises(RuntimeError):  # as threading.Lock has it
        locks.lock("x").release()


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_belongs_to_this_process_says_so(locks: Locks, copied: Call) -> None:
    """It was "cannot pickle '_thread.RLock' object"."""
    with locks.lock("x") as lease, pytest.raises(TypeError, match=r"lease\.fence"):
        copied(lease)  # type: ignore[arg-type]
    for one in (locks, aio.connect("memory://bad-input")):
        with pytest.raises(TypeError, match=r"connect\(\) where"):
            copied(one)  # type: ignore[arg-type]


def test_a_callback_that_is_none(locks: Locks) -> None:
    with locks.lock("x") as lease, pytest.raises(Misconfigured, match="callable, not int"):
        lease.on_lost(5)  # type: ignore[arg-type]


def test_a_label_that_is_none() -> None:
    with pytest.raises(Misconfigured, match="label is text"):
        holdfast.connect("memory://bad-input", label=5)
