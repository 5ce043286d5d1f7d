"""For people who test their own code, or their own backend, against holdfast.

`FaultProxy` stands between a client and a real server and misbehaves on request;
`holdfast.testing.conformance` is the suite every backend must pass;
`holdfast.testing.world` runs the core under a fake clock, one chosen step at a time.
"""

from holdfast.testing.proxy import FaultProxy

__all__ = ["FaultProxy"]
