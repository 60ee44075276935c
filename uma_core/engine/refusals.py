"""How often an engine found no KV cells for what it was asked: admission reserves them, so each time is a fault of
ours.

Rules: counted where the engine refuses, whether that is llama.cpp's memory or our pages; of the process, like its
metrics.
"""

from __future__ import annotations


class Refusals:
    """Counted by whoever owns an engine; any thread may look."""

    def __init__(self) -> None:
        self.n = 0

    def add(self) -> None:
        self.n += 1


refusals = Refusals()
