"""A password in a URL comes out nowhere: every scheme, both styles, every command, each stream.

What is looked at: messages, reprs and whole tracebacks of what is raised, with causes and contexts;
everything that is logged, at every level, by anybody; the reprs of all our objects; and what the
commands write, with HOLDFAST_DEBUG=1, which shows tracebacks.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
import warnings
from pathlib import Path

import pytest

import holdfast
from holdfast import aio
from holdfast.cli import main
from holdfast.cli.app import commands
from tests.cli.harness import line, started
from tests.security.canary import CANARY, LOGIN, SERVERS, ours, reprs, server, turncoat, urls

pytestmark = pytest.mark.req("law 9")

FAMILIES = ("redis", "redis+unix", "redlock", "etcd", "zk", "mysql", "postgresql")
NOT_ASKED = {"demo"}
"""Commands that never see a URL of the user's: what it starts is its own."""
OTHERWISE = {"lab", "completion"}
"""They see one, and have tests of their own here: it is not given by --url."""
WORDS: dict[str, tuple[str, ...]] = {
    "ls": (),
    "show": ("job",),
    "watch": (),
    "release": ("job", "--force"),
    "run": ("job", "--timeout", "0", "--", "true"),
    "sentinel": ("--status",),
    "schema": (),
    "sweep": (),
}


PATIENCE = {"refuses": 0.15, "echoes": 0.15, "repeats": 4.0}
"""Seconds for a request. Only the last server's answer must have come."""


def told_by(error: BaseException) -> str:
    return f"{error} {error!r} {error.args} {''.join(traceback.format_exception(error))}"


def threads(url: str) -> str:
    """All that is said by a client of this URL, and its end."""
    said: list[str] = []
    try:
        with holdfast.connect(url) as locks:
            said += [repr(locks), str(locks), repr(locks.lock("a"))]
            for ask in (locks.lock("a").acquire, locks.inspect):
                try:
                    ask()
                except Exception as error:  # what is no store may be misunderstood in any way
                    said.append(told_by(error))
            said += reprs(locks)
    except holdfast.HoldfastError as error:
        said.append(told_by(error))
    return "\n".join(said)


async def tasks(url: str) -> str:
    said: list[str] = []
    try:
        async with aio.connect(url) as locks:
            said += [repr(locks), repr(locks.lock("a"))]
            try:
                await locks.lock("a").acquire()
            except Exception as error:
                said.append(told_by(error))
            said += reprs(locks)
    except holdfast.HoldfastError as error:
        said.append(told_by(error))
    return "\n".join(said)


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [
        (scheme, kind)
        for scheme in ours()
        for kind in SERVERS
        if kind != "repeats" or scheme.partition("+")[0] in ("redis", "redlock")
    ],
)
def test_a_client_never_says_its_password(
    scheme: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), server(SERVERS[kind]) as port, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a client library, on what it hears
        for url in urls(scheme, port, PATIENCE[kind]):
            said = threads(url) + asyncio.run(tasks(url))
            where = "127.0.0.1" if scheme != "redis+unix" else ".sock"
            assert where in said, "nothing was said at all"
            assert CANARY not in said
            if kind == "repeats":
                assert "ERR unknown command `AUTH`" in said, "it was not provoked"
    assert CANARY not in caplog.text
    assert not [record for record in caplog.records if CANARY in str(vars(record))]


@pytest.mark.parametrize("url", [f"memory://me:{CANARY}@", f"sqlite://me:{CANARY}@/x.db"])
def test_a_password_where_there_is_none_is_not_repeated(url: str) -> None:
    with pytest.raises(holdfast.Misconfigured) as caught:
        holdfast.connect(url)
    assert CANARY not in told_by(caught.value)


def test_every_command_is_here() -> None:
    assert {path[0] for path, _ in commands() if path} == set(WORDS) | OTHERWISE | NOT_ASKED


@pytest.mark.parametrize("command", WORDS)
@pytest.mark.parametrize("how", ["option", "environment"])
def test_no_command_says_the_password(
    command: str, how: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    with server(None) as port:
        for scheme in FAMILIES:
            url = next(urls(scheme, port))
            if how == "environment":
                monkeypatch.setenv("HOLDFAST_URL", url)
            given = ("--url", url) if how == "option" else ()
            status = main([command, *given, *WORDS[command]])
            out, err = capfd.readouterr()
            assert CANARY not in out + err, scheme
            assert status == 0 or "holdfast: " in err


@pytest.mark.parametrize("form", ["redis://{0}{1}/0", "redis://{0}{1}/x?password=1", "{0}{1}"])
@pytest.mark.parametrize("kind", [*SERVERS, "turns"])
def test_the_lab_does_not_say_whose_redis_it_uses(
    kind: str, form: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor do its processes, in what they say or where they show an error came from."""
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    for words in ((), ("--json",)):
        with server(turncoat() if kind == "turns" else SERVERS[kind]) as port:
            where = form.format(LOGIN, f"127.0.0.1:{port}")
            status = main(["lab", "no-expiry", *words, "--redis", where])
        out, err = capfd.readouterr()
        assert status != 0
        assert CANARY not in out + err
        if kind == "turns" and form.endswith("/0"):
            assert "unknown command" in out + err, "it was not provoked"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("kind", SERVERS)
def test_completion_does_not_say_it(
    kind: str, shell: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    said = ""
    with server(SERVERS[kind]) as port:
        (url,) = urls("redis", port)
        monkeypatch.setenv("HOLDFAST_URL", url)
        assert main(["completion", shell]) == 0
        for text in ("holdfast show jo", f"holdfast --url {url} show jo", "holdfast lab --redis "):
            monkeypatch.setenv("_HOLDFAST_COMPLETE", f"{shell}_complete")
            monkeypatch.setenv("HOLDFAST_LINE", text)
            monkeypatch.setenv("COMP_WORDS", text)
            monkeypatch.setenv("COMP_CWORD", "jo" if shell == "fish" else str(text.count(" ")))
            main([])
            monkeypatch.delenv("_HOLDFAST_COMPLETE")
        said = "".join(capfd.readouterr())
    assert "_HOLDFAST_COMPLETE" in said
    assert CANARY not in said


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_running_sentinel_does_not_say_it(form: tuple[str, ...]) -> None:
    with server(None) as port:
        (url,) = urls("redis", port)
        with started("sentinel", *form, url=url) as process:
            said = line(process) + line(process)
            assert "127.0.0.1" in said
            assert CANARY not in said


def test_the_canary_would_be_found(caplog: pytest.LogCaptureFixture) -> None:
    class Leaking:
        __module__ = "holdfast.leaking"

        def __repr__(self) -> str:
            return CANARY

    assert CANARY in list(reprs([{"deep": (Leaking(),)}]))
    inner, outer = ValueError(CANARY), holdfast.Unavailable("away")
    outer.__context__ = inner
    assert CANARY in told_by(outer)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("anybody").debug("%s", CANARY)
    assert CANARY in caplog.text


# -- files -----------------------------------------------------------------------------------------


def test_nothing_of_a_url_is_left_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the state folder either, which the embedded store shares with nobody."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with server(None) as port:
        for scheme in FAMILIES:
            threads(next(urls(scheme, port)))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
