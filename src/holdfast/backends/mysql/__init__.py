"""MySQL and MariaDB. Partners: `url.py`, where to begin; `sql/`, where the strategies are."""

from holdfast.backends.mysql.url import MySQLBackend

__all__ = ["MySQLBackend"]
