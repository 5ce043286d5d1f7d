"""etcd://: locks on etcd's consensus, in the format of its own mutex."""

from holdfast.backends.etcd.backend import EtcdBackend

__all__ = ["EtcdBackend"]
