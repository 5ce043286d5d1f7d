"""`holdfast lab`: the failures of naive locks on Redis, live, beside the form that holds.

Contract: every result is computed from what processes recorded; nothing is shown that did not
happen. Read `levels/` as teaching material; `level.py` is what a level is, `scene.py` plays one,
`actor.py` is each process, `history.py` and the levels judge, `drawing.py`, `svg.py` and `page.py`
show. The command is in `command.py`; this module imports nothing.
"""
