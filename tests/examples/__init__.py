"""The programs under `examples`, run as they stand."""
