"""Where to connect, as whom, and whom to trust there."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field

from holdfast.backends.zookeeper.requests import Acl

__all__ = ["Place", "Tls"]


@dataclass(frozen=True, slots=True)
class Tls:
    """Whom to trust, and as whom to appear; files."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    verify_host: bool = True

    def wrap(self, link: socket.socket, hostname: str | None) -> socket.socket:
        context = ssl.create_default_context(cafile=self.ca or None)
        context.check_hostname = self.verify_host
        if self.cert:
            context.load_cert_chain(self.cert, self.key)
        return context.wrap_socket(link, server_hostname=hostname)


@dataclass(frozen=True, slots=True)
class Place:
    """Where and as whom to connect."""

    hosts: str
    acl: tuple[Acl, ...]
    auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    sasl: dict[str, str] | None = field(default=None, repr=False)
    tls: Tls | None = None
