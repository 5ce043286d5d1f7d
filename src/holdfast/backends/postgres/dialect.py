"""PostgreSQL's words. Contract: `sql/dialect.py`."""

from __future__ import annotations

__all__ = ["Postgres"]


class Postgres:
    name = "postgresql"
