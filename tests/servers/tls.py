"""Certificates for test servers, and a Redis that speaks TLS beside its plain port.

Contract: made anew for each use, by an authority of its own; for this host, unless said otherwise.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from tests.servers.redis import RedisServer

__all__ = ["Certificates", "tls_server"]


class Certificates:
    """Files in a folder: an authority, a server's certificate, a client's."""

    def __init__(
        self,
        folder: Path,
        *,
        expired: bool = False,
        names: tuple[str, ...] = ("127.0.0.1", "localhost"),
    ) -> None:
        authority = trustme.CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        end = datetime.now(UTC) + timedelta(days=-1 if expired else 30)
        server = authority.issue_cert(*names, not_after=end)
        self.server, self.server_key = self._write(folder, "server", server)
        client = authority.issue_cert("client@example.org")
        self.client, self.client_key = self._write(folder, "client", client)

    @staticmethod
    def _write(folder: Path, name: str, leaf: trustme.LeafCert) -> tuple[Path, Path]:
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        leaf.private_key_pem.write_to_path(str(key))
        leaf.cert_chain_pems[0].write_to_path(str(certificate))
        return certificate, key


def tls_server(files: Certificates, *, ask_clients: bool = True) -> tuple[RedisServer, int]:
    """A server that is not started yet, and the port on which it will speak TLS."""
    settings = {
        "tls-cert-file": str(files.server),
        "tls-key-file": str(files.server_key),
        "tls-ca-cert-file": str(files.ca),
        "tls-auth-clients": "yes" if ask_clients else "no",
    }
    server = RedisServer(settings=settings)
    port = server.home.reserve_port()
    settings["tls-port"] = str(port)
    server._settings.update(settings)
    return server, port
