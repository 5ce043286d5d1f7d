"""Who takes part: holdfast over each target URL, the chosen peers, and the floors.

Contract: an `Entrant` is everything that starting its workers takes: interpreter, module, target,
options. Labels are what tables and plots show. Nothing is started here.
Partners: `bench/peers/` (the adapters), `bench/crew.py` (starts workers).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import holdfast
from bench.peers import EVERY, KINDS, PEERS, PROCESSES
from bench.peers.envs import Missing, python_of
from holdfast.backends import schemes
from holdfast.backends.url import parse

__all__ = ["Entrant", "Field"]

DEFAULT_TARGETS = ("memory://bench", "sqlite:///{folder}/holdfast.db")
"""Those that this version has; {folder} is the run's own temporary folder."""


@dataclass(frozen=True)
class Entrant:
    label: str
    module: str
    target: str
    python: str
    kinds: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    scheme: str = ""  # of holdfast's URL; empty for peers

    def having(self, label: str = "", **options: Any) -> Entrant:
        """The same with other options, under another label if that makes a difference."""
        return replace(
            self, label=f"{self.label} {label}".rstrip(), options={**self.options, **options}
        )


@dataclass
class Field:
    """Everybody who was asked to take part."""

    folder: Path
    urls: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # peer -> why

    def __post_init__(self) -> None:
        for module in self.imports:
            importlib.import_module(module)
        self.urls = self.urls or [u for u in DEFAULT_TARGETS if u.partition(":")[0] in schemes()]
        self.names = self.names or list(PEERS)
        self._targets = [self._holdfast(url) for url in self.urls]
        self._peers = list(self._installed())

    def targets(self, kind: str | None = None) -> list[Entrant]:
        """holdfast, once for each URL (that can serve waiters of that kind)."""
        return [target for target in self._targets if kind is None or kind in target.kinds]

    def peers(self, kind: str) -> list[Entrant]:
        return [peer for peer in self._peers if kind in peer.kinds]

    def floor(self, name: str) -> Entrant:
        """One that a scenario needs, whether or not it was asked for."""
        return self._peer(name, sys.executable)

    def _holdfast(self, url: str) -> Entrant:
        url = url.replace("{folder}", str(self.folder))
        scheme = parse(url).scheme
        many = sum(other.startswith(f"{scheme}:") for other in self.urls) > 1
        with holdfast.connect(url) as locks:  # contacts nobody
            processes = locks.capabilities.cross_process
        return Entrant(
            f"holdfast {url if many else scheme + '://'}",
            "bench.peers.holdfast",
            url,
            sys.executable,
            tuple(kind for kind in KINDS if processes or kind != PROCESSES),
            {"imports": self.imports} if self.imports else {},
            scheme,
        )

    def _installed(self) -> Iterator[Entrant]:
        for name in self.names:
            try:
                yield self._peer(name, python_of(name))
            except Missing as error:
                self.left_out[name] = str(error)

    def _peer(self, name: str, python: str) -> Entrant:
        peer = EVERY[name]
        target = peer.target.format(folder=self.folder)
        return Entrant(name, f"bench.peers.{peer.module}", target, python, peer.kinds)
