"""Metrics: declared in `catalog`, counted by `core`, written out by `export`."""
