"""examples/fastapi_app: requests to two instances of the service, on one store."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from holdfast import aio
from holdfast.fencing.aio import File
from tests.servers import RedisServer

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fastapi_app" / "app.py"

pytestmark = [pytest.mark.servers, pytest.mark.req("B3")]


def instance() -> ModuleType:
    """As another process would load it."""
    spec = importlib.util.spec_from_file_location("fastapi_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def store(redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"{redis_server.url}?prefix={tmp_path.name}:"
    monkeypatch.setenv("HOLDFAST_URL", url)
    monkeypatch.setenv("ACCOUNTS", str(tmp_path))
    return url


@asynccontextmanager
async def service(module: ModuleType) -> AsyncIterator[httpx.AsyncClient]:
    """A running application, and a client of it."""
    transport = httpx.ASGITransport(module.app)
    async with (
        module.app.router.lifespan_context(module.app),
        httpx.AsyncClient(transport=transport, base_url="http://bank") as client,
    ):
        yield client


async def withdraw(client: httpx.AsyncClient, account: int) -> httpx.Response:
    return await client.post(f"/accounts/{account}/withdraw", params={"amount": 10})


@pytest.mark.usefixtures("store")
@pytest.mark.req("R1")
def test_no_withdrawal_is_lost(tmp_path: Path) -> None:
    (tmp_path / "7").write_text("300")

    async def work() -> None:
        async with service(instance()) as one, service(instance()) as two:
            asked = [withdraw(client, 7) for _ in range(20) for client in (one, two)]
            answers = Counter(answer.status_code for answer in await asyncio.gather(*asked))
            assert answers == {200: 30, 409: 10}
            assert (await withdraw(one, 8)).status_code == 404

    asyncio.run(work())
    assert (tmp_path / "7").read_text() == "0"


@pytest.mark.req("R7", "B1")
def test_each_error_has_its_answer(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "7").write_text("300")
    real = aio.Locks.lock

    async def work() -> None:
        async with service(instance()) as client, aio.connect(store) as locks:
            async with locks.lock("account:7") as lease:
                with monkeypatch.context() as patch:  # as patient as this test
                    patch.setattr(aio.Locks, "lock", lambda *a, **k: real(*a, timeout=0))
                    busy = await withdraw(client, 7)
            assert (busy.status_code, busy.headers["Retry-After"]) == (423, "1")
            # Somebody with a newer token has written meanwhile.
            await File(tmp_path / "7").write(lease.fence + 10**12, "250")
            late = await withdraw(client, 7)
            assert (late.status_code, late.headers["Retry-After"]) == (503, "5")

    asyncio.run(work())
    assert (tmp_path / "7").read_text() == "250"


def test_a_store_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCOUNTS", str(tmp_path))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        monkeypatch.setenv("HOLDFAST_URL", f"redis://127.0.0.1:{port}?request_timeout=0.5")

        async def work() -> None:
            async with service(instance()) as client:
                answer = await withdraw(client, 7)
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")

        asyncio.run(work())
