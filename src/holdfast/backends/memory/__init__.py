"""memory://: locks between the threads and tasks of one process. The reference backend."""

from holdfast.backends.memory.backend import MemoryBackend
from holdfast.backends.memory.store import Store

__all__ = ["MemoryBackend", "Store"]
