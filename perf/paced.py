"""`python -m perf.paced daemon --engine fake ...`: our daemon on the simulated engine, with UMA_PERF_STEP_MS of time
between two tokens.

A measurement with such a daemon covers everything except the model: tokens come one by one, as from a model, but cost
no CPU time.
"""

from __future__ import annotations

import dataclasses
import os
import sys

from uma_core import cli
from uma_core.clock import MonotonicClock
from uma_core.config.options import EngineOptions
from uma_core.engine.fake import open as fake_open
from uma_core.engine.fake.cost import INSTANT
from uma_core.engine.fake.engine import FakeEngine

STEP = "UMA_PERF_STEP_MS"


def open_paced(options: EngineOptions, path: str) -> FakeEngine:
    step_ns = float(os.environ[STEP]) * 1e6
    cost = dataclasses.replace(INSTANT, decode=((1, step_ns), (1024, step_ns)))
    model = dataclasses.replace(fake_open.model_of(options), eog_every=0)  # answers do not end early
    return FakeEngine(model, cost, MonotonicClock())


if __name__ == "__main__":
    fake_open.open_fake = open_paced
    sys.exit(cli.main())
