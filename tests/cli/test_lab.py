"""`holdfast lab`: each naive form breaks, holdfast's holds, and what did not happen is not said.

Over 400 lines: a list of cases, each read by itself, that share the ways to play a level.
"""

from __future__ import annotations

import dataclasses
import html.parser
import io
import json
import re
import signal
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.lab import show
from holdfast.cli.lab.drawing import BOTH, rows
from holdfast.cli.lab.history import Event, History
from holdfast.cli.lab.level import Level, judge_exclusion
from holdfast.cli.lab.levels import LEVELS
from holdfast.cli.lab.page import page
from holdfast.cli.lab.resp import through
from holdfast.cli.lab.svg import timeline_svg
from holdfast.cli.screen import open_screen, timeline
from tests.cli.harness import (
    CLI,
    Terminal,
    environment,
    holdfast,
    kernel_children,
    line,
    started,
    until,
)
from tests.security.canary import echo, server
from tests.servers import RedisServer

PAIRS = {
    "client-clocks": ["ada", "bob"],
    "no-owner-check": ["bob", "cleo"],
    "check-then-delete": ["bob", "cleo"],
    "short-lease": ["ada", "bob"],
    "master-lost": ["ada", "bob"],
    "redlock-restart": ["ada", "bob"],
}
"""Which two hold at once, in the naive forms that break so; the others are deadlocks."""


# -- the levels ------------------------------------------------------------------------------------


@pytest.mark.servers
@pytest.mark.req("R71", "B7")
@pytest.mark.parametrize("name", LEVELS)
def test_the_naive_form_breaks_and_ours_holds(
    name: str, tmp_path: Path, redis_server: RedisServer
) -> None:
    ran = holdfast("lab", name, "--json", env={"TMPDIR": str(tmp_path)})
    assert ran.stderr == ""
    report = json.loads(ran.stdout)
    (level,) = report["levels"]
    outcomes = [(form["form"], form["outcome"], form["text"]) for form in level["forms"]]
    assert (ran.returncode, report["ok"], level["ok"]) == (0, True, True), outcomes
    naive, *others = level["forms"]
    assert naive["outcome"] == "broken"
    assert others
    assert {form["outcome"] for form in others} == {"held"}
    pairs = [sorted(overlap["who"]) for overlap in naive["overlaps"]]
    if name in PAIRS:
        assert PAIRS[name] in pairs
    else:
        assert pairs == []
        assert naive["text"].startswith("deadlock")
        assert "bob" in {event["who"] for event in naive["events"] if event["what"] == "gave up"}
    for form in others:
        if form["form"] != "holdfast, fencing":  # where two believe, and the resource decides
            assert form["overlaps"] == []
        assert [event for event in form["events"] if event["what"] == "hold"]
    # Both forms met the same fault.
    faults = [[e["what"] for e in form["events"] if e["what"] in FAULTS] for form in level["forms"]]
    assert faults[1:] == faults[:1] * len(others)
    assert bool(faults[0]) == (name not in ("client-clocks", "short-lease"))
    # What is only prepared is not drawn: the picture begins with what happens.
    assert all(0 <= form["events"][0]["at"] < 1 for form in level["forms"])
    assert list(tmp_path.iterdir()) == []


FAULTS = ("killed", "stopped", "woken", "swallowed", "delayed", "arrived", "cut")


@pytest.mark.servers
@pytest.mark.req("R33", "R71", "B1", "failover with the lock unreplicated")
def test_a_failover_is_met_by_wait_and_by_the_token(redis_server: RedisServer) -> None:
    report = json.loads(holdfast("lab", "master-lost", "--json").stdout)
    _, waiting, fencing = report["levels"][0]["forms"]
    assert not [e for e in waiting["events"] if (e["who"], e["what"]) == ("ada", "hold")]
    tokens = [
        int(found[1])
        for event in fencing["events"]
        if event["what"] == "hold" and (found := re.search(r"token (\d+)", event["text"]))
    ]
    assert len(tokens) == 2
    assert tokens[0] < tokens[1]
    writes = [(e["who"], e["text"]) for e in fencing["events"] if e["what"] == "write"]
    assert writes[0] == ("bob", "writes: accepted")
    assert writes[1][0] == "ada"
    assert f"token {tokens[0]} is older than {tokens[1]}" in writes[1][1]


# -- the command -----------------------------------------------------------------------------------


def test_the_list_needs_no_server() -> None:
    ran = holdfast("lab", "--list", env={"PATH": "/nonexistent"})
    assert ran.returncode == 0
    assert [text.split()[0] for text in ran.stdout.splitlines() if text[0] != " "] == list(LEVELS)
    listed = json.loads(holdfast("lab", "--list", "--json").stdout)
    assert [level["name"] for level in listed["levels"]] == list(LEVELS)


def test_an_unknown_level_suggests_the_nearest() -> None:
    ran = holdfast("lab", "reply-last")
    assert ran.returncode == 2
    assert "Did you mean 'reply-lost'?" in ran.stderr
    assert "There are: no-expiry, " in holdfast("lab", "zzz").stderr


def test_without_a_server_it_says_what_to_do() -> None:
    ran = holdfast("lab", "no-expiry", env={"PATH": "/nonexistent"})
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1
    assert "apt-get install redis-server" in ran.stderr
    assert "--redis redis://host:6379/0" in ran.stderr


NOT_REDIS = {
    "says back what it hears": (echo, "no Redis"),
    "says yes to everything": (lambda heard: b"+OK\r\n", "no Redis"),
    "a web server": (lambda heard: b"HTTP/1.1 400 Bad Request\r\n\r\n", "no Redis"),
    "no protocol at all": (lambda heard: b"\x15\x03\x01\0\n", "no Redis"),
    "no number": (lambda heard: b"$many\r\n", "no Redis"),
    "nothing listens": (None, "no Redis answers there"),
}


@pytest.mark.parametrize("debug", ["", "1"])
@pytest.mark.parametrize("who", NOT_REDIS)
def test_what_is_no_redis_is_told_as_such(who: str, debug: str) -> None:
    answer, said = NOT_REDIS[who]
    with server(answer) as port:
        url = f"redis://127.0.0.1:{port}/0"
        ran = holdfast("lab", "no-expiry", "--redis", url, env={"HOLDFAST_DEBUG": debug})
    assert ran.returncode == (69 if answer is None else 1)
    assert ran.stdout == ""
    line = ran.stderr.splitlines()[-1]
    assert said in line
    assert "--redis" in line or "the URL right?" in line
    assert "bug" not in line
    assert debug or ran.stderr.splitlines() == [line]


@pytest.mark.servers
def test_a_wrong_password_says_what_to_do(redis_server: RedisServer) -> None:
    redis_server.call("ACL", "SETUSER", "labs", "on", ">r1ght-one", "~*", "&*", "+@all")
    url = f"redis://labs:wr0ng-one@127.0.0.1:{redis_server.port}/0"
    ran = holdfast("lab", "no-expiry", "--redis", url)
    assert (ran.returncode, ran.stdout) == (1, "")
    warning, line = ran.stderr.splitlines()
    assert "has a password" in warning
    assert "WRONGPASS" in line
    assert "Are user and password right" in line
    assert "wr0ng-one" not in ran.stderr


@pytest.mark.servers
def test_a_level_that_kills_its_server_needs_one_of_its_own(redis_server: RedisServer) -> None:
    where = ("--redis", redis_server.url)
    ran = holdfast("lab", "master-lost", *where, env={"PATH": "/nonexistent"})
    assert ran.returncode == 1
    assert "never uses the one you named" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("url", "status", "said"),
    [
        ("redis://127.0.0.1:1/0", 69, "no Redis answers there"),
        ("rediss://127.0.0.1/0", 78, "redis://[user:password@]host:port/db"),
        ("redis://127.0.0.1:99999/0", 78, "redis://[user:password@]host:port/db"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_line(url: str, status: int, said: str) -> None:
    ran = holdfast("lab", "no-expiry", "--redis", url)
    assert ran.returncode == status
    assert said in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.servers
def test_a_running_server_is_left_as_it_was() -> None:
    with RedisServer(settings={"requirepass": "tr0ub4dor"}) as server:
        where = f"redis://:tr0ub4dor@127.0.0.1:{server.port}/3"
        ran = holdfast("lab", "two-commands", "--redis", where)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "warning" in ran.stderr
        assert "tr0ub4dor" not in ran.stdout + ran.stderr
        assert server.alive
        wrong = holdfast("lab", "two-commands", "--redis", where.replace("tr0ub4dor", "wrongpass"))
        assert wrong.returncode == 1
        assert "Redis refuses" in wrong.stderr
        assert "wrongpass" not in wrong.stderr.replace("warning", "")


@pytest.mark.servers
@pytest.mark.req("R71")
def test_the_page_is_whole_and_needs_nothing_else(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    out = tmp_path / "out.html"
    ran = holdfast("lab", "client-clocks", "--html", str(out))
    assert ran.returncode == 0
    assert "two at once" in ran.stdout  # the terminal shows it all the same
    check_page(out.read_text(), 1, 2)


def test_a_page_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere" / "out.html"):
        ran = holdfast("lab", "client-clocks", "--html", str(place))
        assert ran.returncode == 2
        assert ran.stdout == ""


class Balance(html.parser.HTMLParser):
    """Every element that is opened is closed, in order."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.addresses += [str(value) for name, value in attrs if name in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(text: str, levels: int, forms: int) -> None:
    assert text.startswith("<!DOCTYPE html>")
    parser = Balance()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert parser.seen.count("section") == levels
    assert not {"script", "link", "img", "iframe"} & set(parser.seen)
    assert all(address.startswith("#") for address in parser.addresses)
    assert "prefers-color-scheme: dark" in text
    pictures = re.findall(r"<svg .*?</svg>", text, re.S)
    assert len(pictures) == forms
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root[0].tag.endswith("title")
        assert [child for child in root if "hold" in child.get("class", "").split()]
        width = float(root.get("viewBox", "").split()[2])
        for child in root.iter("{http://www.w3.org/2000/svg}rect"):
            assert float(child.get("x", "")) >= 0
            assert float(child.get("x", "")) + float(child.get("width", "")) <= width + 2


@pytest.mark.servers
@pytest.mark.req("B7")
def test_the_lab_is_drawn_live_at_a_terminal(redis_server: RedisServer) -> None:
    env = environment(TERM="xterm-256color")
    with Terminal(*CLI, "lab", "client-clocks", env=env) as terminal:
        terminal.expect("client-clocks")
        terminal.expect(r"\x1b\[\d*A")
        terminal.expect("What this run showed")
        assert terminal.wait() == 0


# -- nothing stays behind --------------------------------------------------------------------------


@pytest.mark.servers
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_end_leaves_no_server_no_actor_and_no_file(
    number: int, status: int, tmp_path: Path, redis_server: RedisServer
) -> None:
    env = {"PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path)}
    with started("lab", "no-expiry", env=env) as process:
        while "s  bob " not in line(process):
            pass
        family = kernel_children(process.pid)
        assert len(family) >= 2  # bob and the server
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == status
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.servers
def test_servers_and_actors_die_with_the_lab(tmp_path: Path, redis_server: RedisServer) -> None:
    env = {"PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path)}
    with started("lab", "master-lost", env=env) as process:
        while "s  ada " not in line(process):
            pass
        family = kernel_children(process.pid)
        assert len(family) >= 4
        process.kill()
        until(lambda: not [pid for pid in family if Path(f"/proc/{pid}").exists()], "they are gone")


# -- judging ---------------------------------------------------------------------------------------


@pytest.mark.servers
@pytest.mark.req("R71")
def test_what_was_not_shown_is_said_and_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], redis_server: RedisServer
) -> None:
    """A naive form in the place of ours, and ours in the place of the naive one."""
    level = LEVELS["client-clocks"]
    naive, ours = level.forms
    swapped = (
        dataclasses.replace(naive, expected="held"),
        dataclasses.replace(ours, expected="broken"),
    )
    monkeypatch.setitem(LEVELS, level.name, dataclasses.replace(level, forms=swapped))
    report = show.play([level.name], redis_server.url)
    assert not report.ok
    assert [one.finding.outcome for one in report.levels[0][1]] == ["broken", "held"]
    said = capsys.readouterr().out
    assert said.count("! NOT AS EXPECTED") == 3  # each form, and the sum
    assert "NOT every level went" in page(report)


@pytest.mark.servers
def test_an_actor_that_dies_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    level = LEVELS["client-clocks"]
    broken = dataclasses.replace(level, ttl=-1.0, forms=level.forms[1:])
    monkeypatch.setitem(LEVELS, level.name, broken)
    monkeypatch.setattr("holdfast.cli.stage.PATIENCE", 5.0)
    report = show.play([level.name], redis_server.url, quiet=True)
    assert report.levels[0][1][0].finding.outcome == "unclear"
    assert not report.ok


def test_nothing_played_is_nothing_shown() -> None:
    assert not show.Report("7").ok


def told(*events: tuple[float, str, str] | tuple[float, str, str, dict[str, Any]]) -> History:
    return History(Event(*event) for event in events)


def test_two_at_once_are_found() -> None:
    history = told((1, "ada", "hold"), (2, "bob", "hold"), (3, "ada", "free"), (4, "bob", "free"))
    assert history.overlaps() == [("ada", "bob", 2, 3)]
    finding = judge_exclusion(history, "ada", "bob", "ada", "bob")
    assert finding.outcome == "broken"
    assert finding.text.endswith("at the same time, 1000 ms")
    assert judge_exclusion(history, "bob", "cleo", "ada", "bob").outcome == "unclear"


@pytest.mark.parametrize("length", [0.02, 1.0, 15.0, 600.0])
def test_what_was_over_at_once_is_drawn(length: float) -> None:
    """Two at once for a millisecond, at the end of a long picture: it is what the level proves."""
    end = length - 0.001
    history = told((0, "ada", "hold"), (end, "bob", "hold"), (length, "ada", "free"))
    drawn = rows(history, ["ada", "bob"], 0.0)
    assert [row.name for row in drawn] == ["ada", "bob", BOTH]
    assert "!" in timeline(drawn, length, length, open_screen(io.StringIO())).plain
    picture = ElementTree.fromstring(timeline_svg(drawn, length, [], "x"))
    boxes = {box.get("class"): box for box in picture.iter("{http://www.w3.org/2000/svg}rect")}
    for kind in (f"clash {BOTH}", "hold bob"):
        assert float(boxes[kind].get("width", "")) >= 4
        assert float(boxes[kind].get("x", "")) + float(boxes[kind].get("width", "")) <= 760


def test_one_after_the_other_is_held_only_if_everybody_had_it() -> None:
    history = told((1, "ada", "hold"), (2, "ada", "free"), (2, "bob", "hold"), (3, "bob", "free"))
    assert history.overlaps() == []
    assert judge_exclusion(history, "ada", "bob", "ada", "bob").outcome == "held"
    assert judge_exclusion(history, "ada", "bob", "ada", "bob", "cleo").outcome == "unclear"


@pytest.mark.parametrize(
    ("held", "overlaps"),
    [(True, [("bob", "ada", 4, 6)]), (False, [])],
    ids=["goes on", "sees that it is over"],
)
def test_a_stopped_holder_counts_again_if_it_goes_on(held: bool, overlaps: list[Any]) -> None:
    history = told(
        (1, "ada", "hold"),
        (2, "ada", "stopped"),
        (3, "bob", "hold"),
        (4, "ada", "woken"),
        (5, "ada", "look", {"held": held}),
        (6, "ada", "free"),
        (7, "bob", "free"),
    )
    assert history.overlaps() == overlaps


def test_a_holder_that_is_told_of_the_loss_acted_until_then() -> None:
    record = (1, "ada", "hold"), (3, "bob", "hold"), (4, "ada", "look", {"held": False})
    assert told(*record).overlaps() == [("ada", "bob", 3, 4)]  # it learned too late
    assert told(*record, (2, "ada", "lost")).overlaps() == []


def test_a_hold_that_nobody_ended_lasts_and_a_killed_one_does_not() -> None:
    endless = told((1, "ada", "hold"), (2, "bob", "hold"), (3, "bob", "free"))
    assert endless.overlaps() == [("ada", "bob", 2, 3)]
    killed = told(
        (1, "ada", "hold"), (2, "ada", "killed"), (2.5, "bob", "hold"), (3, "bob", "free")
    )
    assert killed.overlaps() == []


@pytest.mark.parametrize("level", LEVELS.values(), ids=lambda level: level.name)
def test_an_empty_record_shows_nothing(level: Level) -> None:
    assert level.judge(History()).outcome == "unclear"


def test_a_lock_that_will_end_is_no_deadlock() -> None:
    def record(pttl: int) -> History:
        return told(
            (1, "ada", "hold"),
            (2, "ada", "killed"),
            (2, "bob", "wait"),
            (5, "bob", "gave up"),
            (5, "server", "key", {"pttl": pttl, "value": "ada-1", "there": True}),
        )

    judge = LEVELS["no-expiry"].judge
    assert judge(record(-1)).outcome == "broken"
    assert judge(record(700)).outcome == "unclear"


@pytest.mark.parametrize(("at", "outcome"), [(2.9, "held"), (9.0, "broken")])
def test_a_lock_that_is_freed_late_is_broken(at: float, outcome: str) -> None:
    history = told(
        (1, "ada", "hold"), (2, "ada", "killed"), (2, "bob", "wait"), (at, "bob", "hold")
    )
    assert LEVELS["no-expiry"].judge(history).outcome == outcome


def test_work_within_the_lease_shows_nothing() -> None:
    short = told((1, "ada", "hold"), (1.5, "ada", "free"), (2, "bob", "hold"), (3, "bob", "free"))
    assert LEVELS["short-lease"].judge(short).outcome == "unclear"


def test_a_right_clock_shows_nothing() -> None:
    history = told(
        (1, "ada", "wait", {"clock": 100.0}),
        (1, "ada", "hold"),
        (2, "ada", "free"),
        (2, "bob", "wait", {"clock": 101.0}),
        (2, "bob", "hold"),
    )
    assert LEVELS["client-clocks"].judge(history).outcome == "unclear"


@pytest.mark.parametrize(
    ("figures", "outcome"),
    [({"accepted": True}, "broken"), ({"accepted": False, "refusal": "old"}, "held")],
)
def test_after_a_failover_the_resource_decides(figures: dict[str, Any], outcome: str) -> None:
    history = told(
        (1, "ada", "hold"),
        (2, "master", "killed"),
        (3, "bob", "hold"),
        (4, "ada", "write", figures),
        (5, "bob", "free"),
    )
    assert LEVELS["master-lost"].judge(history).outcome == outcome


def test_a_url_by_way_of_the_proxy_keeps_the_rest() -> None:
    url = "redis://me:p%40ss@host:6379/3?replicas=1"
    assert through(url, ("127.0.0.1", 5)) == "redis://me:p%40ss@127.0.0.1:5/3?replicas=1"


def test_every_level_says_two_sentences_why() -> None:
    for level in LEVELS.values():
        assert len(re.findall(r"\.(?= |$)", level.why)) == 2, level.name
        assert level.forms[0].expected == "broken"
        assert {form.expected for form in level.forms[1:]} == {"held"}
