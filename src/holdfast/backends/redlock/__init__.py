"""Locks on independent Redis masters: held when a majority of them says so."""

from holdfast.backends.redlock.url import RedlockBackend

__all__ = ["RedlockBackend"]
