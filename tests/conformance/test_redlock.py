"""The conformance suite on three independent masters: `redlock://`, with tokens and without."""

from __future__ import annotations

from importlib import resources

import pytest

from holdfast.testing.conformance import ConformanceSuite
from tests.conformance.redlock import ACL, RedlockStrategy
from tests.conformance.test_redis import commands

OUTSIDE = {
    *("evalsha", "eval", "subscribe", "unsubscribe", "ping", "scan", "info", "role", "select"),
    "config|get",
    *("client|setname", "client|list"),  # with `crash_grace`
}
"""What clients say themselves; the rest is said by scripts."""


@pytest.mark.servers
class TestRedlock(ConformanceSuite):
    strategy = RedlockStrategy


@pytest.mark.req("R34")
def test_the_acl_allows_what_is_used_and_nothing_else() -> None:
    folder = resources.files("holdfast.backends.redlock").joinpath("scripts")
    used = commands("".join(path.read_text() for path in folder.iterdir()))
    allowed = {word[1:] for word in ACL if word.startswith("+")}
    assert allowed == used | OUTSIDE
    assert [word for word in ACL[2:] if not word.startswith(("+", ">"))] == [
        "~holdfast:*", "&holdfast:*", "-@all",
    ]  # fmt: skip
