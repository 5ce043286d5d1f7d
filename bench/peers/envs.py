"""The environment of each peer: build/bench-venvs/NAME, with its one package, made when needed.

Contract: `python_of(name)` is the interpreter to start workers with: this one for peers that need
the standard library only, else one of the same version in the peer's own environment. Making one
needs a package index; where there is none `Missing` says so, and the peer is left out of the run.
Partner: `bench/peers/__init__.py` has the versions.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from bench.peers import EVERY

__all__ = ["Missing", "python_of"]

HOME = Path(__file__).resolve().parents[2] / "build" / "bench-venvs"
LIMIT = 300.0


class Missing(Exception):
    """A peer cannot be measured here, and why."""


def python_of(name: str) -> str:
    requires = EVERY[name].requires
    if not requires:
        return sys.executable
    wanted = f"{sys.version}\n{' '.join(requires)}\n"
    folder = HOME / name
    stamp, python = folder / "bench.stamp", folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"bench: making {folder} with {' '.join(requires)}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", "--no-input", *requires)
        stamp.write_text(wanted)
    return str(python)


def _run(*command: str) -> None:
    try:
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or error.stdout).strip().splitlines() or ["no reason was given"]
        raise Missing(f"{' '.join(command[1:])}: {reason[-1]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(str(error)) from error
