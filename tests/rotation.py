"""What one run of the tests leaves to other runs.

Contract: where all of something would take too long in each run, a part is drawn by the run's seed,
which pytest prints; `--randomly-seed=N` repeats the draw, HOLDFAST_EVERYTHING=1 leaves nothing out.
HOLDFAST_SPARINGLY=1 is what `make test` sets for the machine's other Pythons.
"""

from __future__ import annotations

import os

__all__ = ["EVERYTHING", "SPARINGLY"]

EVERYTHING = bool(os.environ.get("HOLDFAST_EVERYTHING"))
SPARINGLY = bool(os.environ.get("HOLDFAST_SPARINGLY")) and not EVERYTHING
