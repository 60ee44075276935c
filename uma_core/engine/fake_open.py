"""The daemon's simulated engine (`--engine fake`): real waiting, the limits of the configuration."""

from __future__ import annotations

from uma_core.clock import MonotonicClock
from uma_core.config import EngineOptions
from uma_core.engine.api import MemoryUse
from uma_core.engine.fake import FakeEngine, FakeModel

EOG_EVERY = 200  # answers end after about so many tokens


def model_of(options: EngineOptions) -> FakeModel:
    """The shape that the configuration asks for."""
    return FakeModel(
        n_seq_max=options.n_seq,
        n_ctx=options.n_ctx or 16384,
        n_batch=options.n_batch,
        n_ubatch=options.n_ubatch,
        n_prefill_lanes=options.prefill_lanes,
        is_unified=options.kv_mode == "unified",
        eog_every=EOG_EVERY,
        adapters=tuple((name, options.lora_scale.get(name, 0.0)) for name in options.lora),
    )


def open_fake(options: EngineOptions, path: str) -> FakeEngine:
    """`path` is not read."""
    return FakeEngine(model_of(options), clock=MonotonicClock())


def estimate_fake(options: EngineOptions) -> MemoryUse:
    return FakeEngine(model_of(options)).memory()
