"""Small programs of users, run by the interpreter of a clean environment.

Contract: each prints what its test reads; none may import anything but holdfast and the standard
library.
"""

__all__ = ["EMBEDDED", "IMPORTED", "MISTAKEN", "REFUSED", "TYPED", "UNREACHABLE"]

EMBEDDED = """\
import asyncio
import sys
import holdfast
from holdfast import aio

url = sys.argv[1]
with holdfast.connect(url) as locks:
    with locks.lock("a") as first:
        assert locks.lock("a").acquire(blocking=False) is None
    with locks.lock("a") as second, locks.rwlock("b").read(), locks.semaphore("c", 2):
        assert second.fence > first.fence

async def main():
    async with aio.connect(url) as locks:
        async with locks.lock("a") as lease:
            assert lease.held

asyncio.run(main())
import importlib.metadata as metadata
print(holdfast.__version__, metadata.version("holdfast"), holdfast.__file__)
print(*sorted(d.name for d in metadata.distributions()))
"""

UNREACHABLE = """\
import asyncio
import sys
import holdfast
from holdfast import aio

url = sys.argv[1]
with holdfast.connect(url, request_timeout=1.5) as locks:
    try:
        locks.lock("a").acquire()
    except holdfast.Unavailable as error:
        print("threads:", error)

async def main():
    async with aio.connect(url, request_timeout=1.5) as locks:
        try:
            await locks.lock("a").acquire()
        except holdfast.Unavailable as error:
            print("tasks:", error)

asyncio.run(main())
"""

REFUSED = """\
import sys
import holdfast

for url in sys.argv[1:]:
    try:
        holdfast.connect(url)
    except holdfast.Misconfigured as error:
        print(error)
    else:
        print(url, "was accepted")
"""

IMPORTED = """\
import sys
before = set(sys.modules)
import holdfast
print(*sorted(set(sys.modules) - before))
"""

TYPED = '''\
"""A user's module, as strict as its checker is."""

import asyncio

import holdfast
from holdfast import aio


def charge(invoice: int, token: int) -> str:
    return f"{invoice} charged under {token}"


def work(locks: holdfast.Locks) -> list[str]:
    said: list[str] = []
    with locks.lock("invoice:42", ttl=10, metadata={"job": "billing"}) as lease:
        said.append(charge(42, lease.fence))
    if found := locks.lock("nightly").acquire(blocking=False):
        found.release()
    with locks.semaphore("calls", 3) as permit:
        token: int | None = permit.fence
        said.append(str(token))
    return said


async def work_with_tasks() -> int:
    async with aio.connect("memory://") as locks, locks.lock("invoice:42") as lease:
        return lease.fence


print(work(holdfast.connect("memory://")), asyncio.run(work_with_tasks()))
'''

MISTAKEN = """\
import holdfast

number: str = holdfast.connect("memory://").lock("a").__enter__().fence
"""
