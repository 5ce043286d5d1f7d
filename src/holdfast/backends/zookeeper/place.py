"""Where to connect, as whom, and whom to trust there."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from holdfast.backends.zookeeper.requests import Acl

__all__ = ["Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where and as whom to connect."""

    hosts: str
    acl: tuple[Acl, ...]
    auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    sasl: dict[str, str] | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
