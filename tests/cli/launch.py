"""`python -m tests.cli.launch ...`: the command line, with `served://` known to it.

TEST_SCENE=SECONDS makes the first scene of the demonstration so long. TEST_PATIENT=1 lets it be
shown by a machine that stands still for seconds.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tests.conformance.served as _served  # noqa: F401 - registers its scheme
from holdfast.cli import main
from holdfast.cli.judge import Hold, Pause, Verdict

LATE = 20.0
"""What is not kept is so never, and not a little late."""


def patient(patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """No lease of the demonstration is lost, and no promise broken, because a process that had
    nothing done to it stood still."""
    from holdfast.cli import demo
    from holdfast.cli import judge as judges

    crash, pause = judges.judge_crash, judges.judge_pause

    def judge_crash(verdict: Verdict, holds: Sequence[Hold], killed: float, promise: float) -> None:
        crash(verdict, holds, killed, promise + LATE)

    def judge_pause(verdict: Verdict, shown: Pause) -> None:
        shown.ttl += LATE
        pause(verdict, shown)

    patch(demo.Contention, "TTL", 60.0)
    patch(demo.Interruption, "TTL", 6.0)
    patch(demo, "judge_crash", judge_crash)
    patch(demo, "judge_pause", judge_pause)


if __name__ == "__main__":
    if "TEST_SCENE" in os.environ:
        from holdfast.cli.demo import Contention

        Contention.LENGTH = float(os.environ["TEST_SCENE"])
    if "TEST_PATIENT" in os.environ:
        patient()
    sys.exit(main())
