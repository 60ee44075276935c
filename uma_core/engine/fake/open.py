"""The daemon's simulated engine (`--engine fake`): real waiting, the limits of the configuration."""

from __future__ import annotations

import os
import re

from uma_core.clock import MonotonicClock
from uma_core.config.options import EngineOptions
from uma_core.engine.api import MemoryUse
from uma_core.engine.fake.cost import INSTANT, MS, FakeCost
from uma_core.engine.fake.engine import FakeEngine, FakeModel

EOG_EVERY = 200  # answers end after about this many tokens
# a model of this name takes this long for a decode call, and a tenth of it for a prompt token
STEP = re.compile(r"step-(\d+(?:\.\d+)?)ms")


def model_of(options: EngineOptions) -> FakeModel:
    """The shape that the configuration asks for."""
    return FakeModel(
        n_seq_max=options.n_seq,
        n_ctx=options.n_ctx or 16384,
        n_batch=options.n_batch,
        n_ubatch=options.n_ubatch,
        n_prefill_slots=options.prefill_lanes,
        is_unified=options.kv_mode == "unified",
        eog_every=EOG_EVERY,
        adapters=tuple((name, options.lora_scale.get(name, 0.0)) for name in options.lora),
    )


def open_fake(options: EngineOptions, path: str) -> FakeEngine:
    """`path` is not read; its name may say how slow the model is (STEP)."""
    return FakeEngine(model_of(options), cost_of(path or options.model), MonotonicClock())


def cost_of(path: str) -> FakeCost:
    found = STEP.fullmatch(os.path.basename(path))
    if found is None:
        return INSTANT
    ns = float(found[1]) * MS
    return FakeCost(
        ((1, ns), (256, ns)), 0.0, ((1, ns / 10), (512, ns / 10 * 512)), ((1, 0.0),), 24, 0.3, 0.0, 0.0, 0.0
    )


def estimate_fake(options: EngineOptions) -> MemoryUse:
    return FakeEngine(model_of(options)).memory()
