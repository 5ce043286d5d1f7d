"""Measuring holdfast: `python -m bench`, or `make bench`. See docs/how-to/benchmark.md."""
