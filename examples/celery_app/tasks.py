"""Celery tasks that do not run beside one another, however many workers there are.

    HOLDFAST_URL=redis://... CELERY_BROKER_URL=redis://... celery -A tasks worker

One client for the module is enough: a worker forks, a child owns nothing of its parent's, and its
first use makes connections of its own. A task that finds its lock taken does not sit in a worker
and wait: it goes back to the broker (`settle`), or is not needed at all (`refresh`).
(docs/how-to/use-with-celery.md)
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

import holdfast
from holdfast.fencing import File

app = Celery("tasks")  # CELERY_BROKER_URL
app.conf.worker_prefetch_multiplier = 1
locks = holdfast.connect(label="celery")


@app.task(bind=True, max_retries=None, acks_late=True)  # type: ignore[untyped-decorator]  # Celery has no types
def settle(self: Any, account: str, amount: int) -> None:
    """Every one of them is done, one at a time for each account."""
    lease = locks.lock(f"settle:{account}").acquire(blocking=False)
    if lease is None:
        raise self.retry(countdown=0.2)
    with lease:
        path = Path(os.environ["ACCOUNTS"], account)
        balance = int(path.read_text()) if path.exists() else 0
        time.sleep(0.01)  # the work; somebody else would read the same balance
        File(path).write(lease, str(balance + amount))


@app.task  # type: ignore[untyped-decorator]  # Celery has no types
def refresh(account: str) -> None:
    """Whoever comes while it runs need not: it is being done."""
    lease = locks.lock(f"refresh:{account}").acquire(blocking=False)
    if lease is None:
        return
    with lease, Path(os.environ["ACCOUNTS"], f"{account}.log").open("a") as log:
        log.write("refreshed\n")
