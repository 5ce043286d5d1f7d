"""RESP, the handshake, and what can go wrong with an exchange: what both transports share.

Written by hand on hiredis, the parser that Redis keeps, rather than on redis-py's connection: that
one cannot bound connecting, greeting and asking by a single deadline, has no multiplexed asyncio
connection, and costs a third of the time of an uncontended lock (bench/RESULTS.md).
Contract: no I/O and no decisions here. Partners: `threads.py`, `loops.py`, `fleet.py`.
"""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import hiredis

from holdfast.backends.addresses import Reasons, reason_of
from holdfast.errors import HoldfastError, Misconfigured, Unavailable

__all__ = [
    "NOTHING",
    "Address",
    "Garbled",
    "NoAnswer",
    "NotSent",
    "ReplyError",
    "Settings",
    "TooLate",
    "info_field",
    "new_reader",
    "pack",
    "pack_word",
    "show",
    "trouble",
    "unreachable",
]

Address: TypeAlias = tuple[str, int]
"""Host and port; a unix socket is its path and port 0."""

log = logging.getLogger("holdfast")

ReplyError = hiredis.ReplyError

NOTHING = object()
"""What a reader gives while a reply is not complete."""


class NotSent(Exception):
    """The request surely did not reach the server."""


class NoAnswer(Exception):
    """The request was sent, and no answer came: it may have been applied, or be later."""


class TooLate(NoAnswer):
    """Not in time; the connection itself may be healthy."""


class Garbled(NoAnswer):
    """What came is no RESP: whoever is there, it is no Redis."""


def new_reader() -> hiredis.Reader:
    return hiredis.Reader(notEnoughData=NOTHING, protocolError=Garbled, replyError=_discreet)


def _discreet(text: str) -> ReplyError:
    """Who does not know a command repeats its arguments: of AUTH, the password (law 9)."""
    return ReplyError(text.partition(", with args beginning with")[0])


def pack_word(word: bytes | str) -> bytes:
    if isinstance(word, str):
        word = word.encode()
    return b"$%d\r\n%s\r\n" % (len(word), word)


def pack(*words: bytes | str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(map(pack_word, words))


@dataclass(frozen=True)
class Settings:
    """How to talk to every server of a deployment, but not where it is."""

    user: str = ""
    password: str = field(default="", repr=False)
    db: int = 0
    protocol: int = 2
    tls: ssl.SSLContext | None = None
    certified: bool = False
    """TLS: whether we have a certificate to show."""
    must_be_master: bool = False
    """Sentinel: a master that was demoted a moment ago still accepts connections."""
    changing: bool = False
    """Sentinel, cluster: a server may have gone, and its address be another's by now."""
    mode: str = "standalone"
    """What a server must say it is: standalone, cluster, or sentinel."""
    reasons: Reasons = field(default_factory=Reasons, repr=False)
    told: set[str] = field(default_factory=set[str], repr=False)
    """Who may evict keys, and was warned about."""
    curt: set[str] = field(default_factory=set[str], repr=False)
    """TLS: who hung up at our first words. It may have said why, and that is lost when words are
    under way to a closed connection: the next time they are heard out first."""

    @property
    def uncertified(self) -> bool:
        return self.tls is not None and not self.certified

    def at(self, address: Address) -> Settings:
        """Where servers differ: how to talk to this one."""
        return self

    def greeting(self) -> tuple[bytes, int]:
        """What to say first, and how many replies it has."""
        login = [self.user or "default", self.password] if self.password or self.user else []
        said: list[bytes] = []
        if self.protocol == 3:
            said.append(pack("HELLO", "3", *(["AUTH", *login] if login else [])))
        elif login:
            said.append(pack("AUTH", *(login if self.user else login[1:])))
        if self.db:
            said.append(pack("SELECT", str(self.db)))
        said.append(pack("CLIENT", "SETINFO", "LIB-NAME", "holdfast"))
        said.append(pack("ROLE"))
        said.append(pack("INFO", "server"))
        said.append(pack("INFO", "memory"))
        return b"".join(said), len(said)

    def greeted(self, address: Address, replies: Sequence[Any]) -> str:
        """The server's run_id, empty if this user may not know it; raises if we are not let in."""
        where = show(address)
        *first, _, role, server, memory = replies
        for reply in first:
            if isinstance(reply, ReplyError):
                raise _refusal(str(reply), where)
        if isinstance(role, ReplyError) and str(role).startswith(("NOAUTH", "LOADING", "DENIED")):
            raise _refusal(str(role), where)
        if not isinstance(role, ReplyError) and not (isinstance(role, list) and role):
            raise Misconfigured(f"what answers at {where} is no Redis")
        mode = info_field(server, b"redis_mode:")
        if mode and mode != self.mode:
            raise Misconfigured(f"{where} {OTHERS[self.mode, mode]}")
        if self.must_be_master and isinstance(role, list) and role[0] != b"master":
            raise NotSent(f"{where} is no master any more")
        self._warn(where, memory)
        return info_field(server, b"run_id:")

    def _warn(self, where: str, memory: Any) -> None:
        policy = info_field(memory, b"maxmemory_policy:")
        if where in self.told or policy in ("", "noeviction"):
            return
        if info_field(memory, b"maxmemory:") not in ("", "0"):
            self.told.add(where)
            log.warning(
                "Redis at %s may evict keys when its memory is full (maxmemory-policy %s): a lock "
                "that is evicted is free for others while it is held. Use noeviction for locks",
                where,
                policy,
            )


_PART = "is a part of a Redis Cluster: use redis+cluster:// for it"
_WATCHER = "is a sentinel: use redis+sentinel://host:26379/NAME-OF-THE-MASTER for it"
_ALONE = "is no part of a Redis Cluster: use redis:// for it"
_SERVER = "is no sentinel: name the sentinels here, or use redis:// for a server"

HEARING_OUT = 0.1
"""Seconds that a server is given to say that it does not want us, before we say anything."""

OTHERS = {
    ("standalone", "cluster"): _PART,
    ("standalone", "sentinel"): _WATCHER,
    ("cluster", "standalone"): _ALONE,
    ("cluster", "sentinel"): _WATCHER,
    ("sentinel", "standalone"): _SERVER,
    ("sentinel", "cluster"): _SERVER,
}
"""What to say about a server that is (the second) not what it was taken for (the first)."""


def info_field(info: Any, field: bytes) -> str:
    if not isinstance(info, bytes):
        return ""
    return info.partition(b"\n" + field)[2].partition(b"\r\n")[0].decode()


def show(address: Address) -> str:
    host, port = address
    return f"{host}:{port}" if port else host


def unreachable(
    error: BaseException,
    where: str,
    said: Sequence[Any],
    settings: Settings,
    begun: float = 0.0,
    deadline: float = math.inf,
) -> Exception:
    """What it means that a connection was not made, for which there was time from `begun` on:
    `Misconfigured` if trying again is no use."""
    for reply in said:
        if isinstance(reply, ReplyError) and str(reply).startswith(HANGING_UP):
            return _refusal(str(reply), where)
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).replace("_", " ").lower()
        if isinstance(error, ssl.SSLCertVerificationError):
            return Misconfigured(
                f"the certificate of Redis at {where} is not trusted ({error.verify_message}). "
                "Check its date and names, or give the file of its authority as tls_ca"
            )
        if "wrong version number" in reason or "record layer failure" in reason:
            return Misconfigured(f"Redis at {where} does not speak TLS ({reason}): use redis://")
        if "alert" in reason:
            return Misconfigured(
                f"Redis at {where} refused our certificate ({reason}): give one that it trusts as "
                "tls_cert and tls_key"
            )
    if isinstance(error, Garbled):
        text = f"what answers at {where} is no Redis ({error})"
        if not settings.changing:
            return Misconfigured(text)
        return NotSent(settings.reasons.why(where, text, begun, deadline))
    if settings.tls and not said:
        settings.curt.add(where)
    # A server that wants a certificate hangs up after the handshake, and what it says may be lost.
    hint = "; it may want a certificate: tls_cert" if settings.uncertified else ""
    if settings.tls and isinstance(error, TimeoutError):  # a plain Redis waits for us to go on
        hint = "; if it does not speak TLS, use redis://"
    text = f"could not connect: {reason_of(error) or 'no answer in time'}{hint}"
    return NotSent(settings.reasons.why(where, text, begun, deadline))


HANGING_UP = ("DENIED", "ERR max number of clients")
"""What a server says before it closes a connection that it does not want."""

FORBIDDEN = ("can't run this command", "can't access at least one", "ACL failure in script")
"""How a script says that the ACL forbids one of its commands, keys or channels."""


def _refusal(text: str, where: str) -> Exception:
    if text.startswith(("WRONGPASS", "NOAUTH", "ERR invalid password", "ERR AUTH", "ERR Client")):
        return Misconfigured(
            f"Redis at {where} refused the user name or password ({text.partition(' ')[0]}). Put "
            "them into the URL, redis://user:password@host, or check its ACL"
        )
    if text.startswith("NOPERM") or any(mark in text for mark in FORBIDDEN):
        return Misconfigured(
            f"Redis at {where} lets this user in, but not do what locks need ({text}). Its "
            "page in docs/backends has the exact ACL"
        )
    if text.startswith(
        ("ERR DB index", "ERR invalid DB", "ERR SELECT", "ERR value is not an integer")
    ):
        return Misconfigured(f"Redis at {where} has no such database ({text})")
    if text.startswith(("NOPROTO", "ERR unknown command 'HELLO'", "ERR unknown command `HELLO`")):
        return Misconfigured(f"Redis at {where} does not speak RESP3; use protocol=2")
    return NotSent(f"{where} said {text}")


APPLIED_IN_PART = ("script:", "Error running script", "user_script")
"""What an error says that struck inside a script: what came before it in the script is done."""


WROTE_NOTHING = ("READONLY", "OOM", "MISCONF", "NOREPLICAS")
"""With these Redis refuses the first write of a script, and no later one."""


def trouble(error: ReplyError, where: str) -> HoldfastError | None:
    """What an error reply to a request means: an error to raise, as it surely was not applied; or
    None when that cannot be known."""
    text = str(error)
    refusal = _refusal(text, where)
    if isinstance(refusal, Misconfigured):
        return refusal
    if any(mark in text for mark in APPLIED_IN_PART) and not text.startswith(WROTE_NOTHING):
        return None
    return Unavailable(f"Redis at {where} refused: {text}")
