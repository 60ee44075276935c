"""Tries to break a running daemon, and writes docs/RELIABILITY.md: `python -m perf.reliability`."""
