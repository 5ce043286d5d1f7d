"""Gates in a store, as text: the statements and keys that they make."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

import holdfast
from holdfast import Misconfigured, StaleFence, Unsupported, fencing
from holdfast.fencing.redis import beside
from holdfast.fencing.sql import STYLES, Statement, driver_of, identifier

pytestmark = pytest.mark.req("B1")


# -- SQL, as text ----------------------------------------------------------------------------------


@pytest.mark.req("law 10")
def test_names_of_tables_and_columns_are_checked() -> None:
    for good in ("account", "app.account", "a_1$", '"Account"', "`order`", 'x."Y y".z'):
        assert identifier(good) == good
    for wrong in ("", "a b", "a;--", '"a', "a.b.c.d", "1a", "a'b", '"a%b"', '"{}"', 'a"b"'):
        with pytest.raises(Misconfigured):
            identifier(wrong)
    rows = fencing.Table("account")
    with sqlite3.connect(":memory:") as connection:
        for key, values in (({"id = 1 --": 7}, {}), ({"id": 7}, {"a = 1, b": 7})):
            with pytest.raises(Misconfigured, match="no name"):
                rows.update(connection, 1, key, values)
        with pytest.raises(Misconfigured, match="identify"):
            rows.update(connection, 1, {}, {"a": 1})
        with pytest.raises(Misconfigured, match="set by the gate"):
            rows.update(connection, 1, {"id": 7}, {"fence": 1})
    connection.close()


@pytest.mark.parametrize("style", STYLES)
def test_parameters_in_every_style(style: str) -> None:
    text, values = Statement("a = {} AND b = {}", (1, 2)).for_driver(style)
    assert (text, values) == {
        "qmark": ("a = ? AND b = ?", (1, 2)),
        "format": ("a = %s AND b = %s", (1, 2)),
        "pyformat": ("a = %s AND b = %s", (1, 2)),
        "numeric": ("a = :1 AND b = :2", (1, 2)),
        "numeric_dollar": ("a = $1 AND b = $2", (1, 2)),
        "named": ("a = :p1 AND b = :p2", {"p1": 1, "p2": 2}),
    }[style]


def test_an_unknown_driver_is_asked_about() -> None:
    class Connection:
        pass

    with pytest.raises(Misconfigured, match="paramstyle="):
        driver_of(Connection(), None)
    assert driver_of(Connection(), "qmark").style == "qmark"
    with pytest.raises(Misconfigured):
        driver_of(Connection(), "guess")


class Fake:
    """A driver whose cursors answer as they are told: what real ones do rarely, or never."""

    def __init__(self, counts: list[int], row: Any = None) -> None:
        self.counts, self.row = counts, row

    def cursor(self) -> Fake:
        return self

    def execute(self, text: str, values: Any) -> None:
        self.rowcount = self.counts.pop(0) if text.startswith("UPDATE") else -1

    def fetchone(self) -> Any:
        return self.row

    def close(self) -> None: ...


def test_what_drivers_may_say() -> None:
    rows = fencing.Table("account", paramstyle="qmark")
    with pytest.raises(Unsupported, match="how many rows"):
        rows.update(Fake([-1]), 5, {"id": 7})
    with pytest.raises(Misconfigured, match="3 rows"):
        rows.update(Fake([3]), 5, {"kind": "x"})
    rows.update(Fake([0, 1], (4,)), 5, {"id": 7})  # inserted in between
    with pytest.raises(holdfast.Unavailable, match="faster"):
        rows.update(Fake([0, 0, 0], (5,)), 5, {"id": 7})
    with pytest.raises(StaleFence):
        rows.update(Fake([0], {"fence": 6}), 5, {"id": 7})  # rows as mappings


def test_a_trigger_for_a_database_that_we_do_not_know() -> None:
    with pytest.raises(Misconfigured, match="postgresql"):
        fencing.trigger("account", "oracle")
    with pytest.raises(Misconfigured):
        fencing.trigger("account; DROP TABLE x", "sqlite")
    assert fencing.trigger("account", "postgresql+psycopg")
    assert any("app.account_fence_check" in s for s in fencing.trigger("app.account", "postgresql"))


@pytest.mark.req("law 10")
def test_a_trigger_takes_no_others_place() -> None:
    """Of tables whose names differ in a quoted character, or of two columns of one table."""
    connection = sqlite3.connect(":memory:")
    wanted = [
        ('"a b"', "fence"), ("a_b", "fence"), ('"a.b"', "fence"), ("a_b", "other"),
        ("a", "b_fence"), (f"{'long' * 20}1", "fence"), (f"{'long' * 20}2", "fence"),
    ]  # fmt: skip
    for table, fence in wanted:
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {table} (other INT, fence INT, b_fence INT)"
        )
        for _ in range(2):
            for statement in fencing.trigger(table, "sqlite", fence=fence):
                connection.execute(statement)
    for table, fence in wanted:
        connection.execute(f"INSERT INTO {table} VALUES (9, 9, 9)")
        with pytest.raises(sqlite3.IntegrityError, match="stale"):
            connection.execute(f"UPDATE {table} SET {fence} = 3")
    connection.close()


@pytest.mark.req("law 10")
def test_a_name_does_not_end_the_function_of_a_trigger() -> None:
    for fence in ("a$$b", '"f$$; DROP TABLE t; --"', '"$$ $x$"'):
        function = fencing.trigger("t", "postgresql", fence=fence)[0]
        quote = function.rpartition(" ")[2]
        assert function.count(quote) == 2
    assert fencing.trigger('app."my.table"', "postgresql")[0].split()[4].startswith("app.my_table_")


def test_a_class_of_the_callers_own_is_its_drivers() -> None:
    class Connection(sqlite3.Connection):
        pass

    connection = sqlite3.connect(":memory:", factory=Connection)
    connection.execute("CREATE TABLE account (id INT, fence INT)")
    connection.execute("INSERT INTO account VALUES (7, 9)")
    for table in (fencing.Table("account"), fencing.Table("account", paramstyle="qmark")):
        with pytest.raises(StaleFence):
            table.update(connection, 3, {"id": 7})
    connection.close()


# -- Redis, as text --------------------------------------------------------------------------------


def test_the_token_is_in_the_keys_own_slot() -> None:
    assert beside("account:7") == "{account:7}:fence"
    assert beside("{user}:account") == "{user}:account:fence"
    assert beside("{account:7}") == "{account:7}::fence"  # and not that of another key
    assert beside(b"a{b") == b"{a{b}:fence"
    assert beside(b"\xff") == b"{\xff}:fence"
    for wrong in ("{}x", "a}b", "}{"):
        with pytest.raises(Misconfigured, match="fence_key="):
            beside(wrong)
