"""What users touch, twice: `thread` blocks, `task` awaits. `sync.py` and `aio.py` open them.

Contract: enter, have one coroutine of `core` or `toolbox` run, return; a skin decides nothing. What
waits for nothing is below, once (`Handle`, `Keyring`, `MultiHandle`, `Striped`); so a file of one
skin and its namesake in the other differ in their `await`s, and where only tasks can be cancelled.

Hazard: Ctrl-C strikes between any two lines, a cancellation at any `await`. From the first request
until the lease is in the caller's hands everything is inside one `try`, whose handler abandons what
was begun: the keeper finishes it (law 4).
"""
