"""`python -m holdfast.cli`: the command line without its console script."""

import sys

from holdfast.cli import main

sys.exit(main())
