"""A model's shape from its metadata: checked values, windows, scaling, and what a kernel can take."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from uma_core.engine.graph.shape import (
    MAX_GROUP,
    N_LAYER_MOST,
    Layer,
    Meta,
    Rope,
    Rules,
    Shape,
    State,
    Unsupported,
    recurrent,
    shape_of,
    window_of,
    windowed_by,
    with_windows,
    with_yarn,
    yarn_growth,
)

LLAMA = {
    "block_count": 3,
    "embedding_length": 128,
    "context_length": 512,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def header(**changes: Any) -> Any:
    """Return a header with LLAMA's metadata and these changes: None takes a key away; __ stands for a dot."""
    values = LLAMA | {key.replace("__", "."): value for key, value in changes.items()}
    values = {key: value for key, value in values.items() if value is not None}
    arrays = [f"test.{key}" for key, value in values.items() if isinstance(value, list)]
    return SimpleNamespace(
        arch="test",
        of_arch=lambda: values,
        arrays=lambda: arrays,
        tensors={"token_embd.weight": SimpleNamespace(ne=(128, 320, 1, 1))},
    )


def shape(**changes: Any) -> Shape:
    return shape_of(header(**changes))


def test_counts_and_their_defaults() -> None:
    found = shape()
    layer = found.layers[2]
    assert (found.n_layer, found.n_embd, found.n_vocab, found.n_ctx_train) == (3, 128, 320, 512)
    assert (layer.n_head, layer.n_head_kv, layer.dim_k, layer.dim_v, layer.kv) == (4, 2, 32, 32, 2)
    assert layer.rope == Rope(32, 10_000.0, 1.0) and found.scale == 1 / math.sqrt(32)
    assert shape(attention__head_count_kv=None).layers[0].n_head_kv == 4
    assert not found.has_states and found.window == 0


def test_layers_that_only_draft_are_not_the_models() -> None:
    assert shape(nextn_predict_layers=1).n_layer == 2
    assert [layer.n_head for layer in shape(nextn_predict_layers=1, attention__head_count=[4, 8, 2]).layers] == [4, 8]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"some__new_key": 1}, "metadata test.some.new_key"),
        ({"block_count": 0}, "a model without layers"),
        ({"nextn_predict_layers": 4}, "a model without layers"),
        ({"block_count": N_LAYER_MOST + 1}, f"block_count of {N_LAYER_MOST + 1}"),
        ({"block_count": -1}, "block_count of -1"),
        ({"block_count": 2.5}, "block_count that is not a whole number"),
        ({"embedding_length": None}, "a file without embedding_length"),
        ({"context_length": "long"}, "context_length that is not a whole number"),
        ({"attention__head_count": [4, 4]}, "attention.head_count of 2 layers"),
        ({"attention__head_count": 3}, "3 query heads over 2 KV heads"),
        ({"attention__head_count_kv": 0}, "4 query heads over 0 KV heads"),
        ({"attention__head_count": 0}, "0 query heads over 2 KV heads"),
        ({"attention__layer_norm_rms_epsilon": None}, "a norm other than RMS"),
        ({"attention__layer_norm_rms_epsilon": math.nan}, "attention.layer_norm_rms_epsilon of nan"),
        ({"rope__freq_base": "high"}, "rope.freq_base that is not a number"),
        ({"rope__dimension_count": 31}, "rotary positions over 31 of 32 elements"),
        ({"rope__scaling__type": "new"}, "rope scaling new"),
        ({"rope__scaling__type": "yarn", "rope__scaling__factor": -2.0}, "rope.scaling.factor of -2.0"),
        ({"expert_count": 4, "expert_used_count": 5}, "5 of 4 experts"),
        ({"embedding_length": [128, 128, 128]}, "metadata test.embedding_length that differs by layer"),
    ],
)
def test_what_is_not_understood_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported) as caught:
        shape(**changes)
    assert words in str(caught.value)


def test_an_option_may_ask_for_fewer_experts_and_not_for_more() -> None:
    mixture = header(expert_count=4, expert_used_count=2)
    assert shape_of(mixture).n_expert_used == 2 and shape_of(mixture, moe_top_k=1).n_expert_used == 1
    with pytest.raises(Unsupported, match="5 of 4 experts"):
        shape_of(mixture, moe_top_k=5)
    assert shape_of(header(), moe_top_k=2).n_expert_used == 0, "a model without experts"


@pytest.mark.parametrize(("n_head", "n_kv", "n_share"), [(8, 2, 1), (64, 1, 1), (128, 1, 2), (96, 1, 2), (130, 1, 5)])
def test_many_heads_are_shared_out_to_tasks(n_head: int, n_kv: int, n_share: int) -> None:
    layer = Layer(n_head, n_kv, 32, 32, None, 0)
    assert layer.n_share == n_share and n_head // n_kv % n_share == 0 and n_head // n_kv // n_share <= MAX_GROUP


@pytest.mark.parametrize(
    "state",
    [
        State(0, 64),
        State(17, 64),
        State(3, 0),
        State(3, 64, 4, 3, 32, 32),
        State(3, 64, 4, 0, 32, 32),
        State(3, 64, 4, 2, 24, 32),
        State(3, 64, 4, 2, 0, 32),
        State(3, 64, 4, 2, 32, 0),
    ],
)
def test_states_that_no_kernel_takes_are_refused(state: State) -> None:
    rules = Rules(adapt=lambda found, meta: replace(found, layers=(found.layers[0], recurrent(state))))
    with pytest.raises(Unsupported, match=r"a convolution of|a recurrence of"):
        shape_of(header(), rules)


def test_a_state_has_the_rows_of_its_convolution_and_its_matrices() -> None:
    assert State(3, 64).n_floats == 192
    assert State(3, 64, 4, 2, 32, 16).n_floats == 192 + 4 * 32 * 16


def test_which_layers_have_a_window() -> None:
    assert windowed_by(Meta(header(block_count=6)), 3) == [True, True, False] * 2
    assert windowed_by(Meta(header()), 0) == [True] * 3 and windowed_by(Meta(header()), 1) == [False] * 3
    pattern = "attention__sliding_window_pattern"
    assert windowed_by(Meta(header(**{pattern: 2})), 3) == [True, False, True]
    assert windowed_by(Meta(header(**{pattern: [0, 1, 1]})), 3) == [False, True, True]
    with pytest.raises(Unsupported, match=r"attention\.sliding_window of 0"):
        window_of(Meta(header(attention__sliding_window=0)))
    with pytest.raises(Unsupported, match=r"a file without attention\.sliding_window"):
        window_of(Meta(header()))
    assert window_of(Meta(header()), 4096) == 4096


def test_windowed_layers_may_have_positions_of_their_own() -> None:
    own = Rope(16, 1e4, 1.0)
    found = with_windows(shape(), 24, [True, False, True], own)
    assert [layer.window for layer in found.layers] == [24, 0, 24] and found.window == 24
    assert [layer.rope == own for layer in found.layers] == [True, False, True]
    assert with_windows(shape(), 24, [True] * 3).layers[0].rope == shape().layers[0].rope


def test_positions_are_scaled_as_the_file_says() -> None:
    linear = shape(rope__scaling__type="linear", rope__scaling__factor=4.0)
    assert linear.layers[0].rope is not None and linear.layers[0].rope.scale == 0.25
    none = shape(rope__scaling__type="none", rope__scaling__factor=4.0)
    assert none.layers[0].rope is not None and none.layers[0].rope.scale == 1.0
    old = shape(rope__scale_linear=2.0)
    assert old.layers[0].rope is not None and old.layers[0].rope.scale == 0.5
    yarn = shape(rope__scaling__type="yarn", rope__scaling__factor=8.0, rope__scaling__original_context_length=64)
    assert (yarn.scaling.n_ctx_orig, yarn.scaling.ext_factor) == (64, 1.0)
    assert shape(rope__scaling__type="longrope").scaling.is_long and shape().scaling.n_ctx_orig == 512


def test_the_growth_that_ggml_multiplies_by_is_taken_back() -> None:
    assert yarn_growth(8.0, 0.0) == pytest.approx(1.0)
    assert yarn_growth(1.0, 0.5) == pytest.approx(1.0)
    log = math.log(8.0)
    assert yarn_growth(8.0, 0.5) == pytest.approx(1 / (1 + 0.05 * log))
    assert yarn_growth(8.0, 0.5, 0.8) == pytest.approx((1 + 0.08 * log) / (1 + 0.05 * log) / (1 + 0.1 * log))


def test_yarns_own_keys_count_with_yarn_alone() -> None:
    keys = {"rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0}
    for kind, expected in (("yarn", (16.0, 2.0)), ("linear", (32.0, 1.0))):
        values = {"rope__scaling__type": kind, "rope__scaling__factor": 8.0}
        meta = Meta(header(**values, **{key.replace(".", "__"): value for key, value in keys.items()}))
        found = with_yarn(shape(**values), meta).scaling
        assert (found.beta_fast, found.beta_slow) == expected
