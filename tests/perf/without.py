"""The simulator without a mechanism of the scheduler: `python -m tests.perf.without MECHANISM`. Tests fork it."""

from __future__ import annotations

import sys

import uma_core.executor.executor  # noqa: F401 (what `switch_off` imports; a fork server imports it once)
from perf.ablation import switch_off
from perf.simulated import survey

CASE = ("storm",), ("cpu-llama",), ("calm",)

if __name__ == "__main__":
    switch_off(sys.argv[1])
    survey(*CASE, n_seeds=1)
