"""Micro-costs, by pytest-benchmark: `pytest perf/micro --benchmark-enable --benchmark-only`."""
