"""The conformance suite on a real redis-server: `pytest tests/conformance -k redis`.

All of it is run by a user who may do exactly what docs/backends/redis-acl.txt says: what the page
calls enough is enough. That nothing in there is too much is shown below.
"""

from __future__ import annotations

import re
from importlib import resources

import pytest

from holdfast.testing.conformance import ConformanceSuite
from tests.conformance.redis import ACL, PresentStrategy, RedisStrategy
from tests.conformance.rotation import Rotating


@pytest.mark.servers
class TestRedis(ConformanceSuite):
    strategy = RedisStrategy


@pytest.mark.servers
@pytest.mark.req("R23")
class TestRedisPresent(Rotating, ConformanceSuite):
    """Clients with `crash_grace` keep all the other rules, too."""

    strategy = PresentStrategy


OUTSIDE = {
    *("evalsha", "eval", "subscribe", "unsubscribe", "ping", "scan", "info", "role", "select"),
    *("wait", "cluster|slots", "asking"),
}
"""What clients say themselves; the rest is said by scripts."""
PRESENCE = {"client|setname", "client|list"}
"""With `crash_grace` also this."""

DIALECTS = re.compile("literal|plain|redisson")


def commands(script: str) -> set[str]:
    return {name.lower() for name in re.findall(r"redis\.p?call(?:\(|,)\s*'(\w+)'", script)}


@pytest.mark.req("R30", "R37")
def test_the_acl_allows_what_is_used_and_nothing_else() -> None:
    folder = resources.files("holdfast.backends.redis").joinpath("scripts")
    native = [path for path in folder.iterdir() if not DIALECTS.match(path.name)]
    used = commands("".join(path.read_text() for path in native))
    allowed = {word[1:] for word in ACL if word.startswith("+")}
    assert allowed == used | OUTSIDE | PRESENCE
    assert [word for word in ACL[2:] if not word.startswith(("+", ">"))] == [
        "~holdfast:*", "&holdfast:*", "-@all",
    ]  # fmt: skip
