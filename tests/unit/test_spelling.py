"""How names are spelled in Redis, etcd and ZooKeeper: byte by byte, for ever.

Another version of holdfast, or another library, has the same lock under the same key: what is
written here may not change. `Plain` is the spelling once more, as simply as it can be said.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.common import name_of, spelled
from holdfast.backends.etcd import keys as etcd
from holdfast.backends.redis import keys as redis
from holdfast.backends.zookeeper import naming as zookeeper

STORES = {"redis": redis.MARKS, "etcd": etcd.MARKS, "zookeeper": zookeeper.REFUSED}

# A name, and what Redis, etcd and ZooKeeper have.
TABLE = [
    ("plain", "plain", "plain", "plain"),
    ("a b:c", "a b:c", "a b:c", "a b:c"),
    ("ümläut 锁", "ümläut 锁", "ümläut 锁", "ümläut 锁"),
    ("a/b", "a/b", "a%2Fb", "a%2Fb"),
    ("/", "/", "%2F", "%2F"),
    ("100%", "100%25", "100%25", "100%25"),
    ("%2F", "%252F", "%252F", "%252F"),
    ("%2f%25%%", "%252f%2525%25%25", "%252f%2525%25%25", "%252f%2525%25%25"),
    ("{a}b", "%7Ba%7Db", "{a}b", "{a}b"),
    ("}{", "%7D%7B", "}{", "}{"),
    ("%7B{", "%257B%7B", "%257B{", "%257B{"),
    ("\x00\n\x1f", "\x00\n\x1f", "\x00\n\x1f", "%00%0A%1F"),
    ("\x7f\x9f\xa0", "\x7f\x9f\xa0", "\x7f\x9f\xa0", "%7F%C2%9F\xa0"),
    ("\ue000\uf8ff\uf900", "\ue000\uf8ff\uf900", "\ue000\uf8ff\uf900", "%EE%80%80%EF%A3%BF\uf900"),
    ("\uffef\ufff0\ufffd", "\uffef\ufff0\ufffd", "\uffef\ufff0\ufffd", "\uffef%EF%BF%B0%EF%BF%BD"),
    ("🔒", "🔒", "🔒", "%F0%9F%94%92"),
    (".", ".", ".", "%2E"),
    ("..", "..", "..", "%2E."),
    ("...", "...", "...", "..."),
    (".\n", ".\n", ".\n", ".%0A"),
    ("zookeeper", "zookeeper", "zookeeper", "%7Aookeeper"),
    ("zookeeper\n", "zookeeper\n", "zookeeper\n", "zookeeper%0A"),
    ("zookeepers", "zookeepers", "zookeepers", "zookeepers"),
    ("a zookeeper", "a zookeeper", "a zookeeper", "a zookeeper"),
    ("%cells", "%25cells", "%25cells", "%25cells"),
]

NASTY = st.text(alphabet="%/{}.zokeper2570ABDFf\n\x7f\x80\xa0\uf8ff\ufff0\ufffd🔒é锁", max_size=12)
NAMES = st.one_of(st.text(), NASTY, st.sampled_from([name for name, *_ in TABLE]))


class Plain:
    @staticmethod
    def redis(name: str) -> str:
        return name.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")

    @staticmethod
    def etcd(name: str) -> str:
        return name.replace("%", "%25").replace("/", "%2F")

    @staticmethod
    def zookeeper(name: str) -> str:
        if name in (".", "..", "zookeeper"):
            return f"%{ord(name[0]):02X}{name[1:]}"
        refused = re.compile("[\x00-\x1f\x7f-\x9f\ue000-\uf8ff\ufff0-\U0010ffff/%]")
        return "".join(
            "".join(f"%{byte:02X}" for byte in letter.encode()) if refused.match(letter) else letter
            for letter in name
        )


@pytest.mark.req("names", "law 10")
@pytest.mark.parametrize(("name", "in_redis", "in_etcd", "in_zookeeper"), TABLE)
def test_what_the_stores_have(name: str, in_redis: str, in_etcd: str, in_zookeeper: str) -> None:
    keys = redis.Keys("hf")
    assert keys.lock(name) == f"hf:{{{in_redis}}}"
    assert keys.cell(name) == f"hf:{{{in_redis}}}:v"
    assert keys.cell_channel(name) == f"hf:cell:{{{in_redis}}}"
    assert keys.name(f"hf:{{{in_redis}}}".encode()) == name

    lines = etcd.Keys(b"p/", False)
    assert lines.line(name) == f"p/{in_etcd}/".encode()
    assert lines.cell(name) == (f"p/%cell/{in_etcd}".encode(), f"p/%fence/{in_etcd}".encode())
    assert lines.split(f"p/{in_etcd}/hx-".encode()) == (name, b"hx-")

    assert zookeeper.encoded(name) == in_zookeeper
    assert zookeeper.decoded(in_zookeeper) == name


@pytest.mark.req("names", "law 10")
@pytest.mark.parametrize("store", STORES)
@given(name=NAMES)
def test_any_name_is_spelled_as_ever_and_comes_back(store: str, name: str) -> None:
    text = spelled(name, STORES[store])
    assert text == getattr(Plain, store)(name)
    assert name_of(text, STORES[store]) == name


@pytest.mark.req("names", "law 10")
@pytest.mark.parametrize("store", STORES)
@given(text=NAMES)
def test_what_is_spelled_otherwise_is_no_name(store: str, text: str) -> None:
    name = name_of(text, STORES[store])
    assert name is None or spelled(name, STORES[store]) == text


@pytest.mark.req("names")
@pytest.mark.parametrize("text", ["a%41", "a%2f", "%", "%2", "%zz", "%FF", "%C3%A9", "%25%2"])
def test_what_others_have_written_is_no_name(text: str) -> None:
    for marks in STORES.values():
        assert name_of(text, marks) is None
    assert redis.Keys("hf").name(f"hf:{{{text}}}".encode()) is None
    assert etcd.Keys(b"", False).split(f"{text}/hx-".encode()) is None
    assert zookeeper.decoded(text) is None
