"""Secrets stay secret: in what is printed, logged and raised, and in files."""
