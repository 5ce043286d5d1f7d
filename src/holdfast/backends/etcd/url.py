"""What an `etcd://` URL means: endpoints, TLS, user, prefix.

Contract: no I/O, except that certificates are read from their files. Partners: `channel.py` and
`keys.py`, the results; `backend.py`, whose options these are.
"""

from __future__ import annotations

from holdfast.backends.etcd.channel import Endpoint, Site
from holdfast.backends.etcd.keys import Keys
from holdfast.backends.tls import tls_context
from holdfast.backends.url import Option, Url
from holdfast.errors import Misconfigured

__all__ = ["OPTIONS", "site_of"]

PORT = 2379

OPTIONS = (
    Option("name", "encoded", "`exact`: names are taken verbatim as keys, / included",
           choices=("encoded", "exact")),
    Option("ca", "", "etcds: file with the certificates to trust; default: the system's"),
    Option("cert", "", "etcds: file with this client's certificate"),
    Option("key", "", "etcds: file with the certificate's private key"),
)  # fmt: skip


def site_of(url: Url) -> tuple[Site, Keys]:
    values = url.options(OPTIONS, {})
    if url.password and not url.user:
        raise Misconfigured(f"a password without a user: {url}")
    hosts = url.hosts or (("127.0.0.1", PORT),)
    endpoints = tuple(Endpoint(host, port or PORT) for host, port in hosts)
    tls = None
    if url.scheme == "etcds":
        tls = tls_context(values["ca"], values["cert"], values["key"])
        tls.set_alpn_protocols(["h2"])
    elif values["ca"] or values["cert"] or values["key"]:
        raise Misconfigured("ca, cert and key are for TLS: say etcds:// instead of etcd://")
    prefix = url.path[1:].encode()
    if prefix and not prefix.endswith(b"/"):
        prefix += b"/"
    return Site(endpoints, tls, url.user, url.password), Keys(prefix, values["name"] == "exact")
