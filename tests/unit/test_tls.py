"""TLS as the URL says it, the same for every store: what cannot work is said at once."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.tls import tls_context
from holdfast.errors import Misconfigured

URLS = {
    "redis": "rediss://h?tls_ca={ca}&tls_cert={cert}&tls_key={key}",
    "redlock": "redlocks://a,b,c?tls_ca={ca}&tls_cert={cert}&tls_key={key}",
    "mysql": "mysql://h/d?tls=1&tls_ca={ca}&tls_cert={cert}&tls_key={key}",
    "etcd": "etcds://h?ca={ca}&cert={cert}&key={key}",
    "zookeeper": "zk://h/x?tls=1&ca={ca}&cert={cert}&key={key}",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A certificate, and its key with a password."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-passout", "pass:secret", "-keyout", "locked", "-out", "cert", "-subj", "/CN=x"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return {name: folder / name for name in ("cert", "locked", "missing")}


@pytest.mark.req("R60", "wrong credentials")
@pytest.mark.parametrize("url", URLS.values(), ids=URLS)
def test_files_that_cannot_be_used(url: str, files: dict[str, Path]) -> None:
    def refused(message: str, **given: Path | str) -> None:
        with pytest.raises(Misconfigured, match=message):
            holdfast.connect(url.format(**{"ca": "", "cert": "", "key": "", **given}))

    refused("missing cannot be loaded", ca=files["missing"])
    refused("locked cannot be loaded", ca=files["locked"])  # a key is no certificate
    refused("missing with .*locked cannot be loaded", cert=files["missing"], key=files["locked"])
    refused("goes with its certificate", key=files["locked"])
    # Nobody is to be asked for its password at the terminal.
    refused("cannot be loaded", cert=files["cert"], key=files["locked"])


def test_what_is_checked() -> None:
    usual = tls_context("", "", "")
    assert (usual.verify_mode, usual.check_hostname) == (ssl.CERT_REQUIRED, True)
    anywhere = tls_context("", "", "", verify_host=False)
    assert (anywhere.verify_mode, anywhere.check_hostname) == (ssl.CERT_REQUIRED, False)
    anybody = tls_context("", "", "", verify=False)
    assert (anybody.verify_mode, anybody.check_hostname) == (ssl.CERT_NONE, False)
