"""The crash detector: `holdfast sentinel`. What it does, and why it is safe, is in
docs/concepts/crash-detector.md."""

from holdfast.sentinel.service import Event, Sentinel, status

__all__ = ["Event", "Sentinel", "status"]
