"""MySQL's and MariaDB's words. Contract: `sql/dialect.py`."""

from __future__ import annotations

__all__ = ["MySQL"]


class MySQL:
    name = "mysql"
