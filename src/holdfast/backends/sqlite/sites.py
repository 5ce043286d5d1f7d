"""The sites of this process: who uses them, and what becomes of them at a fork.

Contract: one site for each database, shared by all clients; the last one to leave closes it. A
client that nobody closed is left when its object is collected. In a forked child nothing is left.

Locks are taken in one order, `_mutex` before a site's: so a database is never closed while somebody
else opens it. Finalisers take none: they only leave a note.
Partner: `site.py`.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from holdfast.backends.sqlite.site import Site

__all__ = ["abandon", "join", "leave"]

_sites: dict[str, Site] = {}
_mutex = threading.RLock()
_abandoned: deque[Site] = deque()
_forking: list[Site] = []


def join(path: Path, furnish: Callable[[Site], None]) -> Site:
    """The site of this database, to be left again. `furnish` is called with a new one. No I/O on
    the file."""
    real = Path(os.path.realpath(path))
    with _mutex:
        _clear_away()
        site = _sites.get(str(real))
        if site is None:
            site = Site(real)
            furnish(site)
            _sites[str(real)] = site
        site.users += 1
        return site


def leave(site: Site) -> None:
    """One client less; the last one closes everything."""
    with _mutex:
        _clear_away()
        _leave(site)


def abandon(site: Site) -> None:
    """The same, some day: a client was collected that nobody closed."""
    _abandoned.append(site)


def _clear_away() -> None:
    while _abandoned:
        _leave(_abandoned.popleft())


def _leave(site: Site) -> None:
    site.users -= 1
    if site.users <= 0:
        if _sites.get(str(site.path)) is site:
            del _sites[str(site.path)]
        site.close()


# -- fork ------------------------------------------------------------------------------------------


def _before() -> None:
    _mutex.acquire()
    for site in list(_sites.values()):
        if not site.entered:  # else this very thread is inside, in a signal handler or finaliser
            _forking.append(site)  # first: what an interrupt leaves locked is then let go, too
            site.before_fork()


def _in_parent() -> None:
    while _forking:
        _let_go(_forking[-1].mutex)
        _forking.pop()
    _let_go(_mutex)


def _let_go(mutex: threading.RLock) -> None:
    if mutex._is_owned():  # type: ignore[attr-defined]
        mutex.release()


def _in_child() -> None:
    global _mutex
    _mutex = threading.RLock()
    _abandoned.clear()
    _forking.clear()
    inherited = list(_sites.values())
    _sites.clear()
    for site in inherited:
        if not site.in_child():
            # Its connection is open, and must never be closed here: it stays where it is.
            site.users = 1
            _sites[str(site.path)] = site


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
# Ctrl-C may strike in a hook, and ends it: the same again does what was left, or nothing.
os.register_at_fork(after_in_parent=_in_parent, after_in_child=_in_child)
