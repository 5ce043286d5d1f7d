"""The example of `locks.stripes` does what its page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.req("R11")
def test_a_stock_of_100_is_sold_once() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "stock.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.findall(r"^ *(\d+) shelves: 100 sold, 0 left", ran.stdout, re.M) == ["1", "2", "10"]
    assert not ran.stderr
