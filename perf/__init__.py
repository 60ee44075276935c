"""Measurements, side by side: `python -m perf --help`. Never imported by the product."""
