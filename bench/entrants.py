"""Who takes part: holdfast over each target URL, the chosen peers, and the floors.

Contract: an `Entrant` is everything that starting its workers takes: interpreter, module, target,
options. Labels are what tables and plots show. No worker is started here; a server is, when a
target names it. A field is everybody who is measured over one store; `fields` makes them from what
was asked for. Partners: `bench/stores.py`, `bench/servers.py`, `bench/peers/` (the adapters),
`bench/crew.py` (starts workers).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import holdfast
from bench.peers import EVERY, KINDS, PEERS, PROCESSES
from bench.peers.envs import Missing, python_of
from bench.servers import Served, Servers
from bench.stores import EMBEDDED, STORES, Store, kind_of, store_of
from holdfast.backends import schemes
from holdfast.backends.url import Url, parse

__all__ = ["Entrant", "Field", "fields"]


@dataclass(frozen=True)
class Entrant:
    label: str
    module: str
    target: str
    python: str
    kinds: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    scheme: str = ""  # of holdfast's URL; empty for peers
    server: Served | None = None  # the run's own, if the target is there
    everywhere: bool = True  # or only in the contests that are for everybody
    waits: bool = True

    def having(self, label: str = "", **options: Any) -> Entrant:
        """The same with other options, under another label if that makes a difference."""
        return replace(
            self, label=f"{self.label} {label}".rstrip(), options={**self.options, **options}
        )


@dataclass
class Field:
    """Everybody who was asked to take part over one store."""

    folder: Path
    servers: Servers
    store: Store = EMBEDDED
    urls: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # peer -> why

    def __post_init__(self) -> None:
        self._targets = [self._holdfast(url) for url in self.urls]
        self._peers = list(self._installed())

    def targets(self, kind: str | None = None) -> list[Entrant]:
        """holdfast, once for each URL (that can serve waiters of that kind)."""
        return [target for target in self._targets if kind is None or kind in target.kinds]

    def peers(self, *kinds: str, everybody: bool = True, alone: bool = False) -> list[Entrant]:
        """Those for waiters of one of these kinds; `everybody`, or those that are everywhere.
        `alone`: nobody will have to wait."""
        return [
            peer
            for peer in self._peers
            if set(kinds) & set(peer.kinds)
            and (everybody or peer.everywhere)
            and (alone or peer.waits)
        ]

    def server_versions(self) -> dict[str, str]:
        """Of the run's own that somebody here uses."""
        servers = [entrant.server for entrant in (*self._targets, *self._peers)]
        return {server.kind: server.version for server in servers if server is not None}

    def floor(self, name: str) -> Entrant:
        """One that a scenario needs, whether or not it was asked for."""
        return self._peer(name, sys.executable)

    def _holdfast(self, url: str) -> Entrant:
        scheme = url.partition(":")[0]
        many = sum(other.startswith(f"{scheme}:") for other in self.urls) > 1
        url, server = self._filled(url)
        parsed = parse(url)
        scheme = kind_of(url)
        plain = scheme.partition(" ")[0]
        theirs = server is None and len(parsed.hosts) < 2
        shown = url if theirs else f"{plain}://" + _query(parsed)
        with holdfast.connect(url) as locks:  # contacts nobody
            processes = locks.capabilities.cross_process
        return Entrant(
            f"holdfast {shown if many else plain + '://'}",
            "bench.peers.holdfast",
            url,
            sys.executable,
            tuple(kind for kind in KINDS if processes or kind != PROCESSES),
            {"imports": self.imports} if self.imports else {},
            scheme,
            server,
        )

    def _installed(self) -> Iterator[Entrant]:
        for name in self.names:
            try:
                yield self._peer(name, python_of(name))
            except Missing as error:
                self.left_out[name] = str(error)

    def _peer(self, name: str, python: str) -> Entrant:
        peer = EVERY[name]
        target, server = self._filled(peer.target)
        return Entrant(
            name,
            f"bench.peers.{peer.module}",
            target,
            python,
            peer.kinds,
            server=server,
            everywhere=peer.everywhere,
            waits=peer.waits,
        )

    def _filled(self, target: str) -> tuple[str, Served | None]:
        server = self.servers.named_in(target)
        if server is not None:
            target = target.replace(f"{{{server.kind}}}", server.address)
        return target.replace("{folder}", str(self.folder)), server


def _query(url: Url) -> str:
    """What tells two targets on the same servers apart; quarantine has to be off for new ones, and
    nobody here is to run out of connections."""
    usual = ("quarantine", "max_connections")
    options = [f"{name}={text}" for name, text in url.query.items() if name not in usual]
    return f"?{'&'.join(options)}" if options else ""


def fields(
    folder: Path,
    servers: Servers,
    *,
    stores: Sequence[str] = (),
    urls: Sequence[str] = (),
    peers: Sequence[str] = (),
    imports: Sequence[str] = (),
) -> list[Field]:
    """One field for each store that was asked for: by its name, by a target, by one of its peers;
    if nothing was: every store that this version has. Peers without a target meet among themselves.
    The peer `none` is nobody, and chooses no store."""
    for module in imports:
        importlib.import_module(module)
    known = schemes()
    default = [url for store in STORES.values() for url in store.targets]
    targets = list(urls) or [url for url in default if url.partition(":")[0] in known]
    found: list[Field] = []
    for store in STORES.values():
        its_urls = [url for url in targets if store_of(url) is store]
        its_peers = [name for name, peer in PEERS.items() if peer.store == store.name]
        chosen = [name for name in its_peers if name in peers] if peers else its_peers
        asked = store.name in stores or (urls and its_urls) or (peers and chosen)
        nothing = not (stores or urls or any(name in PEERS for name in peers))
        if asked or (nothing and its_urls):
            found.append(Field(folder, servers, store, its_urls, chosen, list(imports)))
    return found
