"""Counts how often an engine found no KV cells for a call. Admission reserves cells, so each time is our own bug.

Rules: a refusal is counted where the engine refuses, in llama.cpp's memory or in our pages. There is one counter per
process, as for metrics.
"""

from __future__ import annotations


class Refusals:
    """The counter. The owner of an engine adds to it; any thread may read it."""

    def __init__(self) -> None:
        self.n = 0

    def add(self) -> None:
        self.n += 1


refusals = Refusals()
