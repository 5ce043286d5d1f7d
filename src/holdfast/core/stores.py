"""Which stores can do what, as messages name them to somebody whose store cannot.

Contract: each line names all stores that can and no other; tests/test_matrix.py asks the backends.
(A dialect of redis:// speaks somebody else's format, and has what that has: `why_not` says so.)
"""

from __future__ import annotations

__all__ = ["ALL_KINDS", "CELLS", "DOWNGRADING", "GUARDS", "WATCHED"]

ROWS = "mysql:// and postgresql:// with strategy=row"

ALL_KINDS = f"memory://, sqlite://, redis://, etcd://, zk://, and {ROWS}"
"""Every mode of a claim."""

CELLS = f"{ALL_KINDS} or optimistic"
"""Small versioned values, of which tools are made."""

DOWNGRADING = f"memory://, sqlite://, redis://, and {ROWS}"
"""A writer becomes a reader in one step."""

GUARDS = "etcd://"
"""A lease that a transaction of the store can compare."""

WATCHED = f"redis:// and redlock://, and {ROWS}"
"""The crash of a client is to be seen, and needs to be."""
