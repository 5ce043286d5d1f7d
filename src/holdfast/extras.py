"""What the extras bring: for the errors that say what to install.

Hazard: on the public index the name `holdfast` belongs to another project, with the same import
name. So nothing here says `holdfast[redis]`: an error names the packages themselves.
Contract: the same as `optional-dependencies` in pyproject.toml; tests/test_docs.py compares.
"""

from __future__ import annotations

__all__ = ["EXTRAS", "how_to_get"]

EXTRAS: dict[str, tuple[str, ...]] = {
    "redis": ("hiredis>=3",),
    "zookeeper": ("kazoo>=2.10,<2.12",),
    "mysql": ("PyMySQL>=1.1", "aiomysql>=0.2"),
    "postgres": ("psycopg[binary]>=3.1",),
    "cli": ("click>=8.1", "rich>=13"),
}


def how_to_get(extra: str) -> str:
    """What installs the packages of an extra; one that is none of ours is a package itself."""
    return " ".join(["pip install", *(f"'{package}'" for package in EXTRAS.get(extra, (extra,)))])
