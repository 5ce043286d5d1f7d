"""What the tests of etcd share: its own command line, and etcd behind TLS and with users."""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.servers import EtcdServer

HOST = "127.0.0.1"
PATIENCE = 20.0


def etcdctl(endpoints: str, *args: str, stdin: int | None = None) -> subprocess.Popen[str]:
    """etcd's own client, running."""
    return subprocess.Popen(
        ["etcdctl", f"--endpoints={endpoints}", *args],
        env={**os.environ, "ETCDCTL_API": "3"},
        stdin=stdin if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class Holder:
    """`etcdctl lock NAME`, which holds until `release`, waits until then, and prints its key."""

    def __init__(self, endpoints: str, name: str) -> None:
        self._process = etcdctl(endpoints, "lock", name, "--ttl=30")
        self.key = ""

    @property
    def waits(self) -> bool:
        assert self._process.poll() is None, "etcdctl has ended"
        return not self.key

    def granted(self) -> str:
        assert self._process.stdout is not None
        self.key = self._process.stdout.readline().strip()
        return self.key

    def release(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=PATIENCE)


# -- certificates ---------------------------------------------------------------------------------


def _openssl(folder: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)


def make_ca(folder: Path, name: str) -> None:
    _openssl(folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
             "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2",
             "-subj", f"/CN={name}")  # fmt: skip


def make_cert(folder: Path, ca: str, name: str, days: int = 2) -> None:
    _openssl(folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")  # fmt: skip
    (folder / "ext").write_text(f"subjectAltName=IP:{HOST},DNS:localhost\n")
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey",
             f"{ca}.key", "-CAcreateserial", "-out", f"{name}.pem", "-days", str(days),
             "-extfile", "ext")  # fmt: skip


class TlsEtcd(EtcdServer):
    """One member that talks TLS only, and to clients with a certificate of its CA only."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def command(self) -> list[str]:
        where = f"https://{HOST}:{self.port}"
        self._settings |= {
            "listen-client-urls": where,
            "advertise-client-urls": where,
            "cert-file": str(self._folder / "server.pem"),
            "key-file": str(self._folder / "server.key"),
            "client-cert-auth": "true",
            "trusted-ca-file": str(self._folder / "ca.pem"),
        }
        return super().command()

    def _request(self, method: str, path: str, body: object, timeout: float) -> Any:
        context = ssl.create_default_context(cafile=str(self._folder / "ca.pem"))
        context.load_cert_chain(self._folder / "client.pem", self._folder / "client.key")
        link = http.client.HTTPSConnection(HOST, self.port, timeout=timeout, context=context)
        try:
            link.request(method, path, None if body is None else json.dumps(body))
            return json.loads(link.getresponse().read())
        finally:
            link.close()


# -- users ----------------------------------------------------------------------------------------


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class GuardedEtcd(EtcdServer):
    """One member with authentication. `api` is root's."""

    def __init__(self, *, settings: dict[str, str] | None = None) -> None:
        super().__init__(settings=settings)
        self.token = ""

    def enable(self, role: Sequence[tuple[str, bytes, bytes]]) -> None:
        """Users root and holdfast, both with the password "secret"; holdfast has one role with
        these permissions: (kind, key, end of the range)."""
        self.api("/v3/auth/user/add", {"name": "root", "password": "secret"})
        self.api("/v3/auth/role/add", {"name": "root"})
        self.api("/v3/auth/user/grant", {"user": "root", "role": "root"})
        self.api("/v3/auth/user/add", {"name": "holdfast", "password": "secret"})
        self.api("/v3/auth/role/add", {"name": "locks"})
        for kind, key, end in role:
            permission = {"permType": kind, "key": b64(key), "range_end": b64(end)}
            self.api("/v3/auth/role/grant", {"name": "locks", "perm": permission})
        self.api("/v3/auth/user/grant", {"user": "holdfast", "role": "locks"})
        self.api("/v3/auth/enable")
        self.log_in()

    def log_in(self) -> None:
        self.token = ""
        answer = self.api("/v3/auth/authenticate", {"name": "root", "password": "secret"})
        self.token = answer["token"]

    def _request(self, method: str, path: str, body: object, timeout: float) -> Any:
        link = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        headers = {"Authorization": self.token} if self.token else {}
        try:
            link.request(method, path, None if body is None else json.dumps(body), headers)
            answer = link.getresponse()
            text = answer.read().decode()
        finally:
            link.close()
        if answer.status != 200 and method == "POST":
            if "invalid auth token" in text and self.token:
                self.log_in()
                return self._request(method, path, body, timeout)
            raise AssertionError(f"etcd answered {answer.status} to {path}: {text}")
        return json.loads(text)


def in_threads(number: int, work: Callable[[int], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(n,)) for n in range(number)]
    for thread in threads:
        thread.start()
    return threads
