"""From values to SQL text and from error numbers to kinds of trouble: MySQL's half of both ports.

Contract: MySQL's clients for Python have no prepared statements, so values become literals here.
Text and bytes are written in hexadecimal: no quoting, no character set and no `sql_mode` can make
anything else of them (law 10).
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

from pymysql import err
from pymysql.constants import CLIENT, CR

from holdfast.backends.addresses import reason_of
from holdfast.backends.sql.session import (
    Blocked,
    Conflict,
    Full,
    Gone,
    Refused,
    Statement,
    Trouble,
    Value,
)
from holdfast.errors import Misconfigured

__all__ = ["check_flags", "rendered", "translated"]

BLOCKED = {1205, 3572, 1969, 3024}  # lock wait timeout, NOWAIT, statement timeouts
CONFLICT = {1213, 1020, 3058, 1180}  # deadlocks (3058: of GET_LOCK), "record has changed" (MariaDB)
FULL = {1040, 1203, 1226}  # the server's, the user's and the account's limits
ENDED = {1053, 1077, 1079, 1080, 1152, 1153, 1158, 1159, 1160, 1161, 1184, 1927, 4031}
"""The server says that it ends this connection: shutdown, KILL, timeouts, broken packets."""


def check_flags(connection: Any) -> None:
    """What cannot be changed on a connection that somebody else has made."""
    if not connection.client_flag & CLIENT.FOUND_ROWS:
        raise Misconfigured(
            "connections must count the rows they find: make them with "
            "client_flag=pymysql.constants.CLIENT.FOUND_ROWS (an SQLAlchemy engine does)"
        )


def literal(value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        return f"_utf8mb4 x'{value.encode().hex()}'"
    return repr(value)


def rendered(statements: Sequence[Statement]) -> bytes:
    if len(statements) == 1:
        return _text(*statements[0]).encode()
    return ";".join(_text(text, values) for text, values in statements).encode()


def _text(text: str, values: Sequence[Value]) -> str:
    return text % tuple(map(literal, values)) if values else text.replace("%%", "%")


def translated(error: Exception) -> Trouble:
    """What a client's error means. It never holds more of a statement than the server quotes."""
    code: Any = error.args[0] if error.args else 0
    if distrust := _distrust(error):
        return Refused(f"TLS: {distrust}")
    if code == CR.CR_SSL_CONNECTION_ERROR:
        return Refused("the server does not offer TLS, which the URL asks for", str(code))
    if isinstance(error, err.InterfaceError) or (isinstance(code, int) and 2000 <= code < 3000):
        return Gone(_said(error), sent=code not in (2002, 2003, 2005), code=str(code))
    if not isinstance(error, err.MySQLError) or not isinstance(code, int):
        return Gone(f"{type(error).__name__}: {error}", sent=True)
    if code in ENDED:
        return Gone(_said(error), sent=True, code=str(code))
    kind = Refused
    for kinds, codes in ((Blocked, BLOCKED), (Conflict, CONFLICT), (Full, FULL)):
        if code in codes:
            kind = kinds
    return kind(_said(error), str(code))


def _distrust(error: BaseException | None) -> str:
    """What one side's certificate lacks in the eyes of the other, if that is what it was."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"certificate verify failed: {error.verify_message}"
        if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            return f"the server refuses us: {error.reason.lower().replace('_', ' ')}"
        error = error.__cause__ or error.__context__
    return ""


def _said(error: Exception) -> str:
    if len(error.args) < 2:
        return str(error) or type(error).__name__
    code, text = error.args[:2]
    if code == CR.CR_CONN_HOST_ERROR:  # each client has its way to say why
        why = getattr(error, "original_exception", None) or error.__cause__
        return f"{text.partition(' (')[0]}: {reason_of(why)}" if why else text
    ours = isinstance(code, int) and 2000 <= code < 3000  # the client's own: it says nothing more
    return str(text) if ours else f"{text} ({code})"
