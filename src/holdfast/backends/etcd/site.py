"""What an `etcd://` URL means: endpoints, TLS, user, prefix."""

from __future__ import annotations

import ssl

from holdfast.backends.etcd.channel import Endpoint, Site
from holdfast.backends.etcd.keys import Keys
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
    # The options common to all backends are checked elsewhere.
    own = {option.name: option for option in OPTIONS}
    values = {name: option.default for name, option in own.items()}
    values |= {name: own[name].parse(text) for name, text in url.query.items() if name in own}
    if url.password and not url.user:
        raise Misconfigured(f"a password without a user: {url}")
    hosts = url.hosts or (("127.0.0.1", PORT),)
    endpoints = tuple(Endpoint(_host(host), port or PORT) for host, port in hosts)
    tls = None
    if url.scheme == "etcds":
        tls = _tls(values["ca"], values["cert"], values["key"])
    elif values["ca"] or values["cert"] or values["key"]:
        raise Misconfigured("ca, cert and key are for TLS: say etcds:// instead of etcd://")
    prefix = url.path[1:].encode()
    if prefix and not prefix.endswith(b"/"):
        prefix += b"/"
    return Site(endpoints, tls, url.user, url.password), Keys(prefix, values["name"] == "exact")


def _host(host: str) -> str:
    try:
        host.encode("idna")  # what a look-up will do, and raise out of nowhere
    except UnicodeError:
        raise Misconfigured(f"{host!r} is no name of a host") from None
    return host


def _tls(ca: str, cert: str, key: str) -> ssl.SSLContext:
    if key and not cert:
        raise Misconfigured("key= without cert=: a client's key goes with its certificate")
    what = f"ca={ca!r}"
    try:
        context = ssl.create_default_context(cafile=ca or None)
        context.set_alpn_protocols(["h2"])
        if cert:
            what = f"cert={cert!r}" + (f" with key={key!r}" if key else "")
            # A key with a password would be asked for at the terminal: better refused.
            context.load_cert_chain(cert, key or None, password="")
    except (OSError, ValueError) as error:
        raise Misconfigured(f"{what} cannot be loaded: {error}") from None
    return context
