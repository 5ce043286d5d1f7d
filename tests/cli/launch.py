"""`python -m tests.cli.launch ...`: the command line, with `served://` known to it.

TEST_SCENE=SECONDS makes the first scene of the demonstration so long.
"""

import os
import sys

import tests.conformance.served as _served  # noqa: F401 - registers its scheme
from holdfast.cli import main

if __name__ == "__main__":
    if "TEST_SCENE" in os.environ:
        from holdfast.cli.demo import Contention

        Contention.LENGTH = float(os.environ["TEST_SCENE"])
    sys.exit(main())
