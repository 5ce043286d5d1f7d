"""Redisson itself beside us: `python -m tests.interop.java [VERSION]`.

Not a part of `make test`: it needs a JDK, Maven and a place to fetch Redisson from.
"""
