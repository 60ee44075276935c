"""`--engine fake`: the shape that the options ask for, and a speed that the model's name may say."""

from __future__ import annotations

import pytest

from uma_core.config.options import EngineOptions
from uma_core.engine.fake.cost import INSTANT, MS
from uma_core.engine.fake.open import cost_of, estimate_fake, model_of, open_fake


def test_the_options_shape_it() -> None:
    options = EngineOptions(n_seq=3, n_ctx=999, n_batch=64, n_ubatch=32, prefill_lanes=0, kv_mode="unified")
    found = model_of(options)
    assert (found.n_seq_max, found.n_ctx, found.n_batch, found.n_ubatch) == (3, 999, 64, 32)
    assert found.n_prefill_slots == 0 and found.is_unified and not model_of(EngineOptions(kv_mode="streams")).is_unified


def test_a_context_that_nobody_asks_for_is_a_usual_one() -> None:
    assert model_of(EngineOptions(n_ctx=0)).n_ctx == 16384


def test_adapters_have_their_scales() -> None:
    options = EngineOptions(lora={"a": "a.gguf", "b": "b.gguf"}, lora_scale={"b": 0.5})
    assert model_of(options).adapters == (("a", 0.0), ("b", 0.5))


@pytest.mark.parametrize(("path", "ms"), [("step-3ms", 3), ("/models/step-0.5ms", 0.5)])
def test_a_name_may_say_how_slow_it_is(path: str, ms: float) -> None:
    cost = cost_of(path)
    assert cost.decode_ns([(1, 1000)]) == cost.decode_ns([(1, 0)] * 64) == ms * MS
    assert cost.prefill_ns(100, 1000) == pytest.approx(10 * ms * MS)


@pytest.mark.parametrize("path", ["", "model.gguf", "step-3ms.gguf", "a-step-3ms", "step-ms"])
def test_any_other_name_is_as_fast_as_it_can_be(path: str) -> None:
    assert cost_of(path) is INSTANT


def test_the_path_of_a_request_goes_before_that_of_the_options() -> None:
    options = EngineOptions(model="step-7ms")
    assert open_fake(options, "").cost.decode_ns([(1, 0)]) == 7 * MS
    assert open_fake(options, "step-2ms").cost.decode_ns([(1, 0)]) == 2 * MS


def test_the_estimate_is_what_it_reports() -> None:
    options = EngineOptions(n_ctx=2048)
    assert estimate_fake(options) == open_fake(options, "").memory()
