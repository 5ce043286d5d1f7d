"""Faults injected into the client itself: interrupts, forks, signals, exits."""
