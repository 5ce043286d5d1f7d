"""PostgreSQL. Partners: `url.py`, where to begin; `sql/`, where the strategies are."""

from holdfast.backends.postgres.url import PostgresBackend

__all__ = ["PostgresBackend"]
