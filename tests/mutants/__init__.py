"""Seeded bugs: small patches of the core, each of which some test of the suite must catch.

`python -m tests.mutants` (or `make mutants`) plants each and shows which test saw it. The patches
say in their headers which law they break; `docs/how-to/mutants.md` says how to add one.
"""
