"""Locks of other libraries beside ours, on the same keys."""
