"""What the graph engine does not compute is refused by name, before any request is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.engine.conftest import DRAFT
from tests.engine.graph.conftest import SMALL
from tests.engine.graph.models import MODELS, RECURRENT, Model
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.graph.estimate import estimate
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.engine.llama.estimate import estimate as llama_estimate
from uma_core.errors import ErrorCode, UmaError

LLAMA = MODELS["llama"]
CASES = {
    "architecture phi2": replace(LLAMA, arch="phi2"),
    "metadata llama.attention.scale": replace(LLAMA, meta={"attention.scale": 0.5}),
    "metadata llama.attention.sliding_window": replace(LLAMA, meta={"attention.sliding_window": 64}),
    "metadata gemma3.attn_logit_softcapping": replace(MODELS["gemma3"], meta={"attn_logit_softcapping": 50.0}),
    "rope scaling of a new kind": replace(
        LLAMA, meta={"rope.scaling.type": "of a new kind", "rope.scaling.factor": 4.0}
    ),
    "metadata llama.expert_used_count that differs by layer": replace(LLAMA, meta={"expert_used_count": [2, 1]}),
    "a use of blk.0.attn_q.scale": replace(LLAMA, tensors={"blk.0.attn_q.scale": (1,)}),
    "K of these lengths": replace(MODELS["deepseek2"], dim=64),
    "K and V are not split by head": replace(MODELS["llama"], arch="deepseek2"),
    "3 of 4 groups of 6 experts": replace(
        MODELS["deepseek2"],
        n_expert=6,
        meta=MODELS["deepseek2"].meta | {"expert_group_count": 4, "expert_group_used_count": 3},
    ),
    "heads whose K and V differ in length": replace(LLAMA, dim_v=64),
    "block_count of 2147483647": replace(LLAMA, meta={"block_count": 2**31 - 1}),
    "metadata qwen2moe.expert_weights_scale": replace(
        MODELS["qwen2moe"], meta=MODELS["qwen2moe"].meta | {"expert_weights_scale": 2.5}
    ),
    "metadata minimax-m2.expert_weights_scale": replace(
        MODELS["minimax-m2"], meta=MODELS["minimax-m2"].meta | {"expert_weights_scale": 2.5}
    ),
    "attention.sliding_window of 0": replace(MODELS["gemma2"], meta={"attention.sliding_window": 0}),
    "KV heads of length 576": replace(LLAMA, dim=576),
    "rope.scaling.original_context_length of 0": replace(
        MODELS["phi3"], meta=MODELS["phi3"].meta | {"rope.scaling.original_context_length": 0}
    ),
    "rotary positions over 0 of 32": replace(
        MODELS["gpt-oss"], meta=MODELS["gpt-oss"].meta | {"rope.dimension_count": 0}
    ),
    "rope.scaling.alpha of heads of length 2": replace(MODELS["hunyuan-dense"], dim=2),
    "final_logit_softcapping of 0": replace(MODELS["gemma2"], meta={"final_logit_softcapping": 0.0}),
}
MINIMAX = MODELS["minimax-m2"]
DAMAGED = {
    "blk.1.ffn_up.weight": replace(LLAMA, without=("blk.1.ffn_up.weight",)),
    "blk.0.attn_norm.weight": replace(
        LLAMA, without=("blk.0.attn_norm.weight",), tensors={"blk.0.attn_norm.weight": (64,)}
    ),
    "invalid n_rot": replace(LLAMA, meta={"rope.dimension_count": 16}),
    "n_embd_head == n_rot": replace(MODELS["qwen2"], meta={"rope.dimension_count": 16}),
    "n_expert_used_max": replace(LLAMA, meta={"expert_used_count": 2}),
    "blk.0.ffn_gate.weight": replace(LLAMA, n_layer=1, meta={"feed_forward_length": 64}),
    "wrong number of tensors": replace(LLAMA, tensors={"output.bias": (320,)}),
    "wrong number of tensors; expected": replace(LLAMA, tensors={"blk": (4,)}),
    "output.weight": replace(MODELS["olmo2"], is_tied=True),
    "fatal error": replace(MINIMAX, meta=MINIMAX.meta | {"expert_gating_func": 0}),
}


@pytest.mark.parametrize("missing", CASES)
def test_a_model_that_is_not_understood(missing: str, written: Callable[[Model], str]) -> None:
    with pytest.raises(UmaError) as caught:
        GraphEngine(written(CASES[missing]), SMALL)
    assert caught.value.error is ErrorCode.CONFIG_INVALID
    assert missing in str(caught.value)
    assert caught.value.detail["option"] == "engine.engine"


@pytest.mark.parametrize("wrong", DAMAGED)
def test_a_file_that_llama_cpp_refuses(wrong: str, is_stock: bool, written: Callable[[Model], str]) -> None:
    """Some files could be read with defaults that only look right, and another engine would not take them either."""
    path = written(DAMAGED[wrong])
    for attempt in (
        lambda: GraphEngine(path, SMALL, is_stock=is_stock),
        lambda: estimate(path, SMALL, is_stock),
        lambda: llama_estimate(path, SMALL),
    ):
        with pytest.raises(UmaError, match=wrong) as caught:
            attempt()
        assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


@pytest.mark.parametrize(
    ("missing", "options"),
    [
        ("load mode mlock", {"load_mode": "mlock"}),
        ("not fused", {"flash_attn": "off"}),
    ],
)
def test_an_option_that_it_lacks(missing: str, options: dict[str, str]) -> None:
    with pytest.raises(UmaError, match=missing) as caught:
        GraphEngine(DRAFT, replace(SMALL, **options))  # type: ignore[arg-type]
    assert caught.value.error is ErrorCode.CONFIG_INVALID


@pytest.mark.parametrize("n_kept", [0, 3, 100, 200_000, 3_000_000])
def test_a_file_cut_short(n_kept: int, tmp_path: object) -> None:
    path = f"{tmp_path}/cut.gguf"
    with open(DRAFT, "rb") as whole, open(path, "wb") as cut:
        cut.write(whole.read(n_kept))
    with pytest.raises(UmaError) as caught:
        GraphEngine(path, SMALL)
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


def test_loading_can_be_given_up(is_stock: bool) -> None:
    for load_mode in ("auto", "mmap", "none"):
        with pytest.raises(UmaError) as caught:
            GraphEngine(DRAFT, replace(SMALL, load_mode=load_mode), lambda share: False, is_stock)
        assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


def test_a_context_that_nobody_says_how_long_it_is(written: Callable[[Model], str]) -> None:
    path = written(replace(LLAMA, meta={"context_length": 0}))
    with pytest.raises(UmaError, match="context_length of 0"):
        GraphEngine(path, replace(SMALL, n_ctx=0))


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("olmo2", "attention.head_count", [0, 4]),
        ("granitehybrid", "ssm.group_count", 0),
        ("granitehybrid", "ssm.time_step_rank", 0),
        ("qwen35", "ssm.group_count", 0),
        ("qwen35", "ssm.time_step_rank", 0),
    ],
)
def test_a_count_of_0_by_which_llama_cpp_divides(
    family: str, key: str, value: object, written: Callable[[Model], str]
) -> None:
    """Some processors end a process that divides by 0."""
    model = (MODELS | RECURRENT)[family]
    path = written(replace(model, meta=model.meta | {key: value}))
    for attempt in (lambda: llama_estimate(path, SMALL), lambda: LlamaEngine(path, SMALL)):
        with pytest.raises(UmaError) as caught:
            attempt()
        assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED
