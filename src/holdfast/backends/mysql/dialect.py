"""MySQL's and MariaDB's words. Contract: `sql/dialect.py`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.mysql.presence import MySQLSight
from holdfast.backends.sql.dialect import Types
from holdfast.backends.sql.session import Statement, Value

__all__ = ["NOW", "MySQL"]

NOW = "CAST(@@timestamp * 1000000 AS SIGNED)"
"""UTC_TIMESTAMP(6) in microseconds since 1970: no time zone touches it, and it costs the server a
third of what TIMESTAMPDIFF does. A double, of which microseconds need 51 bits."""


class MySQL:
    types = Types(
        "VARBINARY(1024)",
        "VARBINARY(64)",
        "BLOB",
        "MEDIUMBLOB",
        "BIGINT NOT NULL AUTO_INCREMENT",
    )
    index_inside = True
    table_options = " ENGINE=InnoDB ROW_FORMAT=DYNAMIC"
    now = NOW
    returning = False
    insert_new = "INSERT IGNORE"
    if_new = ""
    from_nothing = " FROM DUAL"
    notify = ""
    # A session that does nothing inside a transaction was stopped, while others wait for the row
    # that it has locked: the server ends it. MySQL has no such limit but that of all idle sessions
    # (of which the pool notices that they ended).
    setup: Sequence[str] = (
        "SET SESSION autocommit = 1"
        " /*M!100300 , idle_transaction_timeout = 2 */ /*!80000 , wait_timeout = 10 */",
    )
    begin = "BEGIN"
    sight = MySQLSight()
    setup_pooled: Sequence[str] = ()
    no_table = frozenset({"1146"})
    denied = frozenset({"1044", "1142", "1143", "1227"})
    altered = frozenset({"1054", "1364", "1366", "1406"})

    def quote(self, identifier: str) -> str:
        return ".".join(f"`{part}`" for part in identifier.split("."))

    def making(self, texts: Sequence[str]) -> Sequence[str]:
        return texts

    def listen(self, channel: str) -> str:
        return ""

    def among(self, column: str, number: int) -> str:
        return f"{column} IN ({', '.join(['%s'] * number)})"

    def packed(self, values: Sequence[bytes]) -> Sequence[Value]:
        return values

    def renewal(self, locks: str, number: int) -> str:
        # An owner belongs to one name only, so two lists say as much as pairs.
        return (
            f"UPDATE {locks} SET expires = GREATEST(expires + 1, {self.now} + ttl)"
            f" WHERE {self.among('name', number)} AND {self.among('owner', number)}"
            f" AND expires > {self.now}"
        )

    def patience(self, seconds: int) -> Statement:
        return f"SET SESSION innodb_lock_wait_timeout = {seconds}", ()
