"""TLS, for every store whose connections this library makes: whom to trust, as whom to appear.

Contract: files that cannot be used are said when the URL is read, not when somebody needs a lock.
(PostgreSQL's client has its own options.)
"""

from __future__ import annotations

import ssl
from typing import Any

from holdfast.backends.url import Option
from holdfast.errors import Misconfigured

__all__ = ["TLS", "tls_context", "tls_of"]

TLS = (
    Option("tls_ca", "", "file with the certificates of the authorities to trust"),
    Option("tls_cert", "", "file with this client's certificate"),
    Option("tls_key", "", "file with its key"),
    Option("tls_check", True, "whether the server's certificate is checked"),
)
"""The options of stores that had no others before."""


def tls_of(values: dict[str, Any]) -> ssl.SSLContext:
    """What the options `TLS` mean."""
    ca, cert, key, check = (values[option.name] for option in TLS)
    return tls_context(ca, cert, key, verify=check)


def tls_context(
    ca: str, cert: str, key: str, *, verify: bool = True, verify_host: bool = True
) -> ssl.SSLContext:
    """`verify_host`: the certificate must be the host's; without `verify` it may be anybody's."""
    if key and not cert:
        raise Misconfigured("a client's key goes with its certificate: give both")
    what = ca
    try:
        context = ssl.create_default_context(cafile=ca or None)
        if cert:
            what = f"{cert} with {key}" if key else cert
            # A key with a password would be asked for at the terminal: better refused.
            context.load_cert_chain(cert, key or None, password="")
    except (OSError, ValueError) as error:
        raise Misconfigured(
            f"{what} cannot be loaded: {error}. Certificates and keys are PEM files, without a "
            "password"
        ) from None
    context.check_hostname = verify and verify_host
    if not verify:
        context.verify_mode = ssl.CERT_NONE
    return context
