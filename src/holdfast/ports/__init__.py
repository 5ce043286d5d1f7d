"""The two worlds the core runs in: threads that block, and an event loop that suspends."""
