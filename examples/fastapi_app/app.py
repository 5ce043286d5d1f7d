"""A web service whose workers and hosts share a lock for each account.

    HOLDFAST_URL=redis://... ACCOUNTS=/srv/accounts uvicorn app:app --workers 4

One asyncio client for each process, opened and closed with the application. Each error of a lock
has an answer of its own: busy is 423, a store that cannot be reached is 503, and both say when to
come back. The body of `async with` is cancelled if the lease is lost; and should a write come too
late all the same, the file's gate refuses it. (docs/how-to/use-with-fastapi.md)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from holdfast import AcquireTimeout, LeaseLost, StaleFence, Unavailable, aio
from holdfast.fencing.aio import File


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with aio.connect(label="bank") as app.state.locks:
        yield


app = FastAPI(lifespan=lifespan)


def client_of(request: Request) -> aio.Locks:
    locks: aio.Locks = request.app.state.locks
    return locks


Locks = Annotated[aio.Locks, Depends(client_of)]


@app.post("/accounts/{number}/withdraw")
async def withdraw(number: int, amount: int, locks: Locks) -> dict[str, int]:
    async with locks.lock(f"account:{number}", timeout=10) as lease:
        path = Path(os.environ["ACCOUNTS"], str(number))
        try:
            balance = int(await asyncio.to_thread(path.read_text)) - amount
        except FileNotFoundError:
            raise HTTPException(404, "no such account") from None
        if balance < 0:
            raise HTTPException(409, "not enough money")
        await File(path).write(lease, str(balance))
        return {"balance": balance}


@app.exception_handler(AcquireTimeout)
async def busy(request: Request, error: AcquireTimeout) -> JSONResponse:
    return JSONResponse({"detail": "busy"}, 423, {"Retry-After": "1"})


@app.exception_handler(Unavailable)
@app.exception_handler(LeaseLost)
@app.exception_handler(StaleFence)
async def unsure(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": "try again"}, 503, {"Retry-After": "5"})
