"""sqlite://: locks between the processes of one host, in a file. The embedded default."""

from holdfast.backends.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
