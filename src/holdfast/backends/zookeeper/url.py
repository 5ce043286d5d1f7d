"""What a `zk://` URL means: servers, whom to trust, as whom to come, and below which node.

Contract: no I/O, except that certificates are read from their files. Partners: `place.py`, the
result; `backend.py`, whose options these are.
"""

from __future__ import annotations

import importlib.util
import ssl
from typing import Any

from holdfast.backends.tls import tls_context
from holdfast.backends.url import Option, Url
from holdfast.backends.zookeeper.naming import encoded
from holdfast.backends.zookeeper.place import Place
from holdfast.backends.zookeeper.requests import Acl
from holdfast.errors import Misconfigured

__all__ = ["OPTIONS", "place_of"]

PORT, TLS_PORT = 2181, 2281

ALL, READ = 31, 1
CREATOR, ANYBODY = ("auth", ""), ("world", "anyone")
ACLS = {
    "open": (Acl(ALL, *ANYBODY),),
    "creator": (Acl(ALL, *CREATOR), Acl(READ, *ANYBODY)),
    "private": (Acl(ALL, *CREATOR),),
}

OPTIONS = (
    Option(
        "acl",
        "",
        "who may take, release and evict: `open` (everybody; the default without a user), "
        "`creator` (only this user, others may look; the default with one), `private`",
        choices=("open", "creator", "private"),
    ),
    Option(
        "auth",
        "digest",
        "how user and password are presented: ZooKeeper's own `digest`, or by SASL",
        choices=("digest", "sasl"),
    ),
    Option(
        "parents",
        "container",
        "what a lock's own node is: a `container`, which the server removes when it is empty, "
        "or `persistent`, as kazoo makes it, which stays",
        choices=("container", "persistent"),
    ),
    Option("tls", False, "encrypt the connection (port 2281 unless the URL names one)"),
    Option("ca", "", "file with the certificates to trust; the system's if not given"),
    Option("cert", "", "file with the client's own certificate"),
    Option("key", "", "file with the client's own key"),
    Option("verify_host", True, "whether the server's certificate must name the host"),
)


def place_of(url: Url) -> tuple[Place, str, bool]:
    """Where to connect; below which node locks are, and whether their own nodes are containers."""
    values = url.options(OPTIONS, {})
    if not url.hosts:
        raise Misconfigured("zk:// needs a host: zk://localhost:2181")
    tls = bool(values["tls"])
    port = TLS_PORT if tls else PORT
    hosts = ",".join(
        f"{f'[{host}]' if ':' in host else host}:{number or port}" for host, number in url.hosts
    )
    acl = values["acl"] or ("creator" if url.user else "open")
    if acl != "open" and not url.user and not values["cert"]:
        raise Misconfigured(f"?acl={acl} needs to know whose: put a user into the URL")
    place = Place(hosts, ACLS[acl], **_login(url, values), tls=_tls(values) if tls else None)
    base = "/" + "/".join(encoded(part) for part in url.path.split("/") if part)
    return place, base.rstrip("/"), values["parents"] == "container"


def _login(url: Url, values: dict[str, Any]) -> dict[str, Any]:
    if not url.user:
        return {}
    if values["auth"] == "digest":
        return {"auth": (("digest", f"{url.user}:{url.password}"),)}
    if importlib.util.find_spec("puresasl") is None:
        raise Misconfigured("?auth=sasl needs the package pure-sasl: pip install 'kazoo[sasl]'")
    return {"sasl": {"mechanism": "DIGEST-MD5", "username": url.user, "password": url.password}}


def _tls(values: dict[str, Any]) -> ssl.SSLContext:
    files = (values["ca"], values["cert"], values["key"])
    return tls_context(*files, verify_host=values["verify_host"])
