"""`python -m holdfast.cli.lab.launch PARENT PROGRAM ...`: become that program, and die with PARENT.

The kernel's promise survives exec, so a server that the lab started cannot outlive it, whatever
kills the lab. Partner: `servers.py`.
"""

from __future__ import annotations

import os
import sys

from holdfast.cli import kernel

if __name__ == "__main__":
    if kernel.die_with_parent(int(sys.argv[1])):
        os.execv(sys.argv[2], sys.argv[2:])
