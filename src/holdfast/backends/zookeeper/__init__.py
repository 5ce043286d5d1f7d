"""`zk://`: ZooKeeper. `backend.py` is the entry; `naming.py` is what others must agree with."""

from holdfast.backends.zookeeper.backend import ZooKeeperBackend

__all__ = ["ZooKeeperBackend"]
