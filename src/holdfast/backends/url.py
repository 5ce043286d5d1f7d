"""URLs and their options: parsed once, checked against what the backend declares.

A store may also be named by where its connections come from: an SQLAlchemy engine, or a function.
Nothing is imported for that, an engine is known by what it can do; what is found becomes a `Url`
that carries its source, and the scheme's backend uses it.

Contract: a typo is an error that names the nearest option, never silently ignored; a password is
never part of a message (`Url` prints itself without one).
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, unquote

from holdfast.errors import Misconfigured

__all__ = ["Option", "Url", "found", "parse"]

ENCODE = "Characters like / ? # @ : in a user name, password or path are written as %2F and so on"

SCHEMES = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
"""What SQLAlchemy calls a database -> our scheme."""

CLIENTS = {"psycopg": "postgresql", "pymysql": "mysql", "aiomysql": "mysql"}
"""Whose `connect` it is -> our scheme."""

FILE = ". A file is for SQLite: sqlite:///tmp/x.db"
LIKE_A_FILE = re.compile(r"^[./~]|\.(db|sqlite3?)$")

SWITCH = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a backend's URL: documented where it is declared."""

    name: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()

    def parse(self, text: str) -> Any:
        """The value that `text` spells, of the default's type."""
        if self.choices and text not in self.choices:
            raise Misconfigured(
                f"option {self.name}={text!r}: choose from {', '.join(filter(None, self.choices))}"
            )
        if isinstance(self.default, bool):
            if text.lower() not in SWITCH:
                raise Misconfigured(f"option {self.name}={text!r}: say {' or '.join(SWITCH)}")
            return SWITCH[text.lower()]
        if not isinstance(self.default, int | float):
            return text
        try:
            value = type(self.default)(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise Misconfigured(f"option {self.name}={text!r} is not a number")
        return value


@dataclass(frozen=True, slots=True)
class Url:
    scheme: str
    user: str = ""
    password: str = field(default="", repr=False)
    hosts: tuple[tuple[str, int | None], ...] = ()
    path: str = ""
    query: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    logins: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """User and password of each host, where they differ; then `user` and `password` are empty."""
    source: Any = field(default=None, repr=False)  # where connections come from, if not from here

    @property
    def host(self) -> str:
        return self.hosts[0][0] if self.hosts else ""

    def __str__(self) -> str:
        hosts = [f"[{h}]" if ":" in h else h for h, _ in self.hosts]
        ports = ["" if p is None else f":{p}" for _, p in self.hosts]
        hosts = [host + port for host, port in zip(hosts, ports, strict=True)]
        if self.logins:
            hosts = [_veiled(*login) + host for login, host in zip(self.logins, hosts, strict=True)]
        login = _veiled(self.user, self.password)
        return f"{self.scheme}://{login}{','.join(hosts)}{self.path}"

    def refuse(self, *parts: str) -> None:
        """Parts of a URL that mean nothing to this backend are mistakes, not decoration."""
        given = {
            "user": self.user,
            "password": self.password,
            "port": next((p for _, p in self.hosts if p is not None), None),
            "path": self.path.strip("/"),
            "hosts": len(self.hosts) > 1,
        }
        for part in parts:
            if given[part]:
                raise Misconfigured(f"{self.scheme}:// URLs have no {part}: {self}")

    def options(self, declared: Iterable[Option], given: Mapping[str, Any]) -> dict[str, Any]:
        """The value of each declared option: a keyword argument, else the URL, else its default."""
        known = {option.name: option for option in declared}
        values = {name: option.default for name, option in known.items()}
        for name, text in self.query.items():
            values[name] = known[_known(name, known, self.scheme)].parse(text)
        for name, value in given.items():
            values[_known(name, known, self.scheme)] = value
        return values


def _known(name: str, known: Mapping[str, Option], scheme: str) -> str:
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(sorted(known))}"
    raise Misconfigured(f"{scheme}:// has no option {name!r}; {hint}")


def parse(text: str) -> Url:
    scheme, separator, rest = text.partition("://")
    if not separator or not scheme:
        raise Misconfigured(
            f"{_shorn(text)!r} is not a URL; a store is named like memory:// or redis://host:6379/0"
            f"{FILE if LIKE_A_FILE.search(text) else ''}"
        )
    if "\0" in unquote(rest):
        raise Misconfigured(
            f"the {scheme}:// URL has a NUL in it (%00): a client library may take it for the end, "
            "and go to another server"
        )
    if "@" in rest.partition("/")[2] or "@" in rest.partition("?")[2]:
        raise Misconfigured(f"the {scheme}:// URL has an @ after its host. {ENCODE}")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    try:
        authority.encode()
    except UnicodeEncodeError:
        raise Misconfigured(
            f"the user name, password or host of the {scheme}:// URL cannot be written as UTF-8"
        ) from None
    login, _, hosts = authority.rpartition("@")
    logins: tuple[tuple[str, str], ...] = ()
    parts = authority.split(",")
    if sum("@" in part for part in parts) > 1:
        split = [part.rpartition("@") for part in parts]
        logins = tuple(_login(login) for login, _, _ in split)
        login, hosts = "", ",".join(host for _, _, host in split)
    user, password = _login(login)
    if "," in hosts and not all(part.partition(":")[0] for part in hosts.split(",")):
        raise Misconfigured(f"the {scheme}:// URL has a comma with no host before or after it")
    pairs = parse_qsl(query, keep_blank_values=True)
    doubled = [name for name, _ in pairs if [n for n, _ in pairs].count(name) > 1]
    if doubled:
        raise Misconfigured(f"option {doubled[0]!r} is given twice in the URL")
    return Url(
        scheme.lower(),
        user,
        password,
        tuple(_host(part, scheme) for part in hosts.split(",")) if hosts else (),
        unquote(slash + path),
        dict(pairs),
        logins,
    )


def _login(text: str) -> tuple[str, str]:
    user, _, password = text.partition(":")
    return unquote(user), unquote(password)


def _veiled(user: str, password: str) -> str:
    return f"{user}{':***' if password else ''}@" if user or password else ""


def _host(text: str, scheme: str) -> tuple[str, int | None]:
    if text.startswith("["):  # IPv6
        host, _, tail = text[1:].partition("]")
        port = tail.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        # Not shown: it may be half of a password.
        raise Misconfigured(f"what follows a colon in the {scheme}:// URL is no port. {ENCODE}")
    host = unquote(host)
    try:
        if not host.startswith("/"):  # a directory of sockets
            host.encode("idna")  # as whoever looks it up must
    except UnicodeError:
        raise Misconfigured(
            f"the {scheme}:// URL names a host with a part that is empty or too long. {ENCODE}"
        ) from None
    return host, int(port) if port else None


def _shorn(text: str) -> str:
    """What may be shown of a text that is not a URL, and might hold a password."""
    return text.rpartition("@")[2][:40]


def found(source: Any, connection: Callable[[], Any] | None) -> Url:
    """The store that is meant by what was given to `connect`."""
    if isinstance(source, str):
        url = parse(source)
        return url if connection is None else replace(url, source=connection)
    if connection is not None:
        raise Misconfigured("`connection` goes with a URL that names the kind of store")
    if hasattr(source, "raw_connection") and hasattr(source, "dialect"):
        return _engine(source)
    if callable(source):
        client = getattr(source, "func", source).__module__.partition(".")[0]
        if client in CLIENTS:
            return Url(CLIENTS[client], source=source)
        raise Misconfigured(
            "which database does this function connect to? Say it by a URL: "
            'connect("postgresql://?strategy=row", connection=function)'
        )
    kind, file = type(source).__name__, isinstance(source, os.PathLike)
    raise Misconfigured(
        "connect() takes a URL, an SQLAlchemy engine, or a function that connects; not "
        f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}{FILE if file else ''}"
    )


def _engine(engine: Any) -> Url:
    name = str(engine.dialect.name)
    if name not in SCHEMES:
        raise Misconfigured(
            f"this engine's database is {name}: holdfast knows {', '.join(SCHEMES)}. For SQLite "
            "there is sqlite:///path"
        )
    place = engine.url
    hosts = ((place.host, place.port),) if place.host else ()
    path = f"/{place.database}" if place.database else ""
    return Url(SCHEMES[name], user=place.username or "", hosts=hosts, path=path, source=engine)
