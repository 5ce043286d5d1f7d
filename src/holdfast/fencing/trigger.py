"""A trigger that refuses stale tokens, whoever writes: DDL for PostgreSQL, MySQL and SQLite.

Contract: with the trigger in place an UPDATE that lowers the row's token, or removes it, fails as a
whole, also from code that knows nothing of gates and merely sets the column (an ORM, psql).
`refusals` makes the driver's error a `StaleFence`.

Hazards: an UPDATE that does not mention the column keeps its value, and passes: no trigger can tell
it from a second write with the same token. DELETE, TRUNCATE, and what replaces rows (REPLACE,
INSERT OR REPLACE) are not seen. Partner: `table.py`, for who can change the statement.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Callable, Generator

from holdfast.errors import Misconfigured
from holdfast.fencing.sql import apart, identifier
from holdfast.fencing.tokens import Token, stale, token_of

__all__ = ["refusals", "trigger"]

MARK = "holdfast: stale fencing token"
"""How every refusal begins; `refusals` looks for it."""

LONGEST = 40
"""Characters of a name that others are added to: 63 is PostgreSQL's limit."""
QUOTES = '"`'

SEEN = re.compile(re.escape(MARK) + r" \S+, older than (\d+)")


def trigger(table: str, dialect: str, *, fence: str = "fence") -> tuple[str, ...]:
    """The statements that put the trigger on `table`, to be executed in order, one by one; harmless
    where it is there already. `dialect`: postgresql, mysql (MariaDB too) or sqlite."""
    make = DIALECTS.get(dialect.partition("+")[0])
    if make is None:
        raise Misconfigured(
            f"trigger(dialect={dialect!r:.80}): one of {', '.join(sorted(DIALECTS))}"
        )
    return make(identifier(table), identifier(fence), _name(table, fence))


def _name(table: str, fence: str) -> str:
    """What is made for a table is named after it, and for no other: where triggers have names of
    their own (MySQL, SQLite), making one would take another's away."""
    local = apart(table)[1]
    if fence == "fence" and local[0] not in '"`' and len(local) <= LONGEST:
        return f"{local}_fence"
    readable = re.sub(r"\W+", "_", f"{local.strip(QUOTES)}_{fence.strip(QUOTES)}")
    return f"{readable[:LONGEST]}_{zlib.crc32(f'{local} {fence}'.encode()):08x}"


def _stale(fence: str) -> str:
    return f"NEW.{fence} < OLD.{fence} OR (NEW.{fence} IS NULL AND OLD.{fence} IS NOT NULL)"


def _postgresql(table: str, fence: str, name: str) -> tuple[str, ...]:
    function = f"{apart(table)[0]}{name}_check"
    quote = "$$"
    while quote in fence:
        quote = f"$x{quote[1:]}"
    return (
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS {quote}\n"
        "BEGIN\n"
        f"  IF {_stale(fence)} THEN\n"
        f"    RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation', MESSAGE =\n"
        f"      concat('{MARK} ', coalesce(NEW.{fence}::text, 'NULL'), ', older than ', "
        f"OLD.{fence});\n"
        "  END IF;\n"
        "  RETURN NEW;\n"
        f"END {quote}",
        f"DROP TRIGGER IF EXISTS {name} ON {table}",
        f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION {function}()",
    )


def _mysql(table: str, fence: str, name: str) -> tuple[str, ...]:
    schema = apart(table)[0]
    return (
        f"DROP TRIGGER IF EXISTS {schema}{name}",
        f"CREATE TRIGGER {schema}{name} BEFORE UPDATE ON {table} FOR EACH ROW\n"
        "BEGIN\n"
        "  DECLARE told VARCHAR(128);\n"
        f"  IF {_stale(fence)} THEN\n"
        f"    SET told = CONCAT('{MARK} ', COALESCE(NEW.{fence}, 'NULL'), ', older than ', "
        f"OLD.{fence});\n"
        "    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = told;\n"
        "  END IF;\n"
        "END",
    )


def _sqlite(table: str, fence: str, name: str) -> tuple[str, ...]:
    schema, local = apart(table)
    return (
        f"DROP TRIGGER IF EXISTS {schema}{name}",
        f"CREATE TRIGGER {schema}{name} BEFORE UPDATE ON {local} FOR EACH ROW\n"
        f"WHEN {_stale(fence)}\n"
        f"BEGIN SELECT RAISE(ABORT, '{MARK}'); END",
    )


DIALECTS: dict[str, Callable[[str, str, str], tuple[str, ...]]] = {
    "postgresql": _postgresql,
    "mysql": _mysql,
    "mariadb": _mysql,
    "sqlite": _sqlite,
}


@contextlib.contextmanager
def refusals(lease: Token, resource: str = "the row") -> Generator[None]:
    """`with refusals(lease):` around statements, and around the commit of an ORM: the error that
    the trigger caused is raised as `StaleFence`, any other as it is. Works around `await` too."""
    token = token_of(lease)
    try:
        yield
    except Exception as error:
        text = str(error)
        if MARK not in text:
            raise
        seen = SEEN.search(text)
        raise stale(resource, token, int(seen[1]) if seen else None) from error
