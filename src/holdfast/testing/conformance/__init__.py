"""The suite every backend must pass: parametrised by backend and port, public, for authors.

    from holdfast.testing.conformance import ConformanceSuite, Strategy

    class MyStrategy(Strategy):
        name = "mine"

        def url(self) -> str:
            return f"mine://localhost/{uuid.uuid4()}"

    class TestMine(ConformanceSuite):
        strategy = MyStrategy

Contract: what a backend does not claim in its `capabilities`, and faults its strategy cannot cause,
are skipped with the reason; everything else must hold, on threads and on asyncio. How to use it and
what the hooks do: docs/how-to/write-a-backend.md.
"""

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "holdfast.testing.conformance is a pytest suite, and pytest is not installed: "
        "pip install pytest",
        name=error.name,
    ) from None

# Before they are imported: the asserts of these modules shall explain themselves when they fail.
THEMES = (
    "barrier", "cancellation", "cells", "changing", "election", "exclusion", "faults", "fencing",
    "ghosts", "inspection", "latch", "leases", "losses", "modes", "multi", "names", "once",
    "optimistic", "processes", "protocol", "reentrancy", "stripes", "waiting",
)  # fmt: skip
pytest.register_assert_rewrite(*(f"{__name__}.{theme}" for theme in (*THEMES, "raw", "harness")))

from holdfast.testing.conformance.strategy import NotApplicable, Strategy  # noqa: E402
from holdfast.testing.conformance.suite import ConformanceSuite  # noqa: E402

__all__ = ["ConformanceSuite", "NotApplicable", "Strategy"]
