"""The levels of the lab, one file each: the naive form that breaks, the fault, and the judge.

Read them in this order; each naive form is the usual mend of the one before.
"""

from __future__ import annotations

from holdfast.cli.lab.level import Level
from holdfast.cli.lab.levels import (
    check_then_delete,
    client_clocks,
    master_lost,
    no_expiry,
    no_owner_check,
    redlock_restart,
    reply_lost,
    short_lease,
    two_commands,
)

__all__ = ["LEVELS"]

_MODULES = (
    no_expiry,
    two_commands,
    client_clocks,
    no_owner_check,
    check_then_delete,
    short_lease,
    reply_lost,
    master_lost,
    redlock_restart,
)

LEVELS: dict[str, Level] = {module.LEVEL.name: module.LEVEL for module in _MODULES}
