"""The explorer: the core under a fake clock, through many schedules, checked by invariants.

`python -m tests.explorer` explores; `--replay SEED` shows one schedule step by step.
"""
