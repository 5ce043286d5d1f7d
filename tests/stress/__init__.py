"""Many holds under random kills, pauses, forks and clock steps: `python -m tests.stress`.

`crew.py` starts workers (`worker.py`) and does things to them; they hold locks (`actor.py`), write
down what happened (`record.py`) and write to a resource that checks tokens (`resource.py`). At the
end `history.py` puts the records together, `check.py` says whether it may be so, and `leftovers.py`
whether anything is left. The checks are those at the end of faults.md.
"""
