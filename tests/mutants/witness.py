"""A pytest plugin for the runs of `tests.mutants`: whose code is tested, and what failed first.

Contract: nothing is believed that this plugin did not see. It refuses to run unless `holdfast` is
the mutated copy's (an editable install would shadow it), and writes the first failure down.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

COPY = "HOLDFAST_MUTANT_COPY"
VERDICT = "HOLDFAST_MUTANT_VERDICT"


def pytest_configure(config: pytest.Config) -> None:
    import holdfast

    copy = Path(os.environ[COPY]).resolve()
    if not Path(holdfast.__file__).resolve().is_relative_to(copy):
        pytest.exit(f"{holdfast.__file__} would be tested, not the copy in {copy}", returncode=99)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    verdict = Path(os.environ[VERDICT])
    if report.failed and not verdict.exists():
        reason = report.longreprtext
        seen = {"test": report.nodeid, "hang": "Timeout (>" in reason, "reason": reason}
        verdict.write_text(json.dumps(seen))
