"""Small random models of every family that the graph engine computes, and damaged ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from perf import fidelity
from perf.gguf_file import add_vocabulary, save

N_VOCAB = 320
WINDOW = {"attention.sliding_window": 24}
ROPES = {
    "rope.freq_base": 1e6,
    "rope.scaling.type": "linear",
    "rope.scaling.factor": 8.0,
}  # these belong to the layers that see everything
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64}
YARN_MORE = {
    "rope.scaling.yarn_beta_fast": 16.0,
    "rope.scaling.yarn_beta_slow": 2.0,
    "rope.scaling.yarn_log_multiplier": 0.8,
}
LONG = {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 128, "rope.scaling.attn_factor": 1.19}
LONG_FACTORS, LONG_FACTORS_16 = ({f"rope_factors_{kind}.weight": (n,) for kind in ("long", "short")} for n in (16, 8))
GRANITE = {"logit_scale": 8.0, "residual_scale": 0.22, "embedding_scale": 12.0, "attention.scale": 0.02}
TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "bf16": gguf.GGMLQuantizationType.BF16,
}
BLOCKS_OF_32 = ("q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4")
BLOCKS_OF_256 = ("q4_k", "q5_k", "q6_k", "iq4_xs")
TYPES |= {name: gguf.GGMLQuantizationType[name.upper()] for name in BLOCKS_OF_32 + BLOCKS_OF_256}
_BY_LLAMA = {TYPES[name] for name in BLOCKS_OF_32 + BLOCKS_OF_256}


@dataclass(frozen=True)
class Model:
    """A family's tensors and metadata. The `extra` metadata and tensors go to the file unchanged."""

    arch: str
    n_head: int = 4
    n_head_kv: int = 2
    dim: int = 32
    n_embd: int = 128
    n_ff: int = 160
    n_expert: int = 0
    n_ff_expert: int = 0  # n_ff of an expert, if it differs from n_ff
    is_tied: bool = True
    has_bias: bool = False
    has_qk_norm: bool = False
    has_post_norms: bool = False
    # centre of the weights of Q's norms: if scores are not scaled, 1 makes attention choose a single position
    q_norm: float = 1.0
    quant: str = "q8_0"
    n_layer: int = 2
    dim_v: int = 0  # length of a head of V, if it differs
    kinds: tuple[tuple[int, int], ...] = ()  # for the layers in turn: KV heads and length of a head
    is_joined: bool = False  # Q, K and V are one matrix, gate and up another
    meta: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)  # f32, numpy order
    layer_tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of every layer, drawn like the others
    model_tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)  # tensors of the model, drawn likewise
    renamed: dict[str, str] = field(default_factory=dict)  # of a layer
    without: tuple[str, ...] = ()  # names, or names of every layer


MODELS = {
    "llama": Model("llama", is_tied=False),
    "llama-mha": Model("llama", n_head=4, n_head_kv=4),
    "llama-rope": Model(
        "llama", meta={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, tensors={"rope_freqs.weight": (16,)}
    ),
    "llama-q4_0": Model("llama", quant="q4_0"),
    "llama-f16": Model("llama", quant="f16"),
    "llama-yarn": Model("llama", meta=YARN),
    "llama-long": Model("llama", meta=LONG, tensors=LONG_FACTORS),
    "mixtral": Model("llama", n_expert=4),
    "phi3": Model(
        "phi3",
        is_joined=True,
        meta={**LONG, "rope.dimension_count": 16, "attention.sliding_window": 16},
        tensors=LONG_FACTORS_16,
    ),
    "phi3-short": Model(
        "phi3",
        is_tied=False,
        meta=LONG | {"rope.scaling.original_context_length": 4096},
        is_joined=True,
        tensors=LONG_FACTORS,
    ),
    "mistral3": Model(
        "mistral3",
        meta={**YARN, **YARN_MORE, "attention.temperature_scale": 0.3, "rope.scaling.original_context_length": 24},
    ),
    "mistral3-plain": Model("mistral3", is_tied=False),
    "gpt-oss": Model(
        "gpt-oss",
        is_tied=False,
        n_layer=3,
        n_expert=4,
        has_bias=True,
        meta=WINDOW | YARN,
        layer_tensors={
            "attn_sinks.weight": (4,),
            "attn_output.bias": (128,),
            "ffn_gate_inp.bias": (4,),
            "ffn_gate_exps.bias": (4, 160),
            "ffn_up_exps.bias": (4, 160),
            "ffn_down_exps.bias": (4, 128),
        },
        renamed={"ffn_norm.weight": "post_attention_norm.weight"},
    ),
    "glm4": Model(
        "glm4",
        has_post_norms=True,
        meta={"rope.dimension_count": 16},
        layer_tensors={"ffn_up.weight": (320, 128)},
        without=("ffn_gate.weight",),
    ),
    "smollm3": Model("smollm3", n_layer=5),
    "seed_oss": Model(
        "seed_oss", has_bias=True, is_tied=False, renamed={"ffn_norm.weight": "post_attention_norm.weight"}
    ),
    "granite": Model("granite", meta=GRANITE),
    "granite-nope": Model("granite", meta=GRANITE | {"rope.scaling.finetuned": False}),
    "granitemoe": Model("granitemoe", n_expert=4, meta=GRANITE),
    "granitemoe-shared": Model(
        "granitemoe",
        n_expert=4,
        meta=GRANITE | {"expert_shared_feed_forward_length": 96},
        layer_tensors={
            "ffn_gate_shexp.weight": (96, 128),
            "ffn_up_shexp.weight": (96, 128),
            "ffn_down_shexp.weight": (128, 96),
        },
    ),
    "qwen2moe": Model(
        "qwen2moe",
        n_expert=4,
        has_bias=True,
        is_tied=False,
        meta={"expert_shared_feed_forward_length": 96},
        layer_tensors={
            "ffn_gate_shexp.weight": (96, 128),
            "ffn_up_shexp.weight": (96, 128),
            "ffn_down_shexp.weight": (128, 96),
            "ffn_gate_inp_shexp.weight": (128,),
        },
    ),
    "qwen2": Model("qwen2", has_bias=True),
    "qwen3": Model("qwen3", dim=64, has_qk_norm=True),
    "qwen3moe": Model("qwen3moe", dim=64, has_qk_norm=True, n_expert=4),
    "gemma": Model("gemma", n_head_kv=1, dim=64),
    "gemma2": Model(
        "gemma2", has_post_norms=True, meta={**WINDOW, "attn_logit_softcapping": 0.5, "final_logit_softcapping": 3.0}
    ),
    "gemma2-plain": Model("gemma2", has_post_norms=True),
    "gemma3": Model(
        "gemma3", has_post_norms=True, has_qk_norm=True, meta={**WINDOW, "attention.sliding_window_pattern": 2} | ROPES
    ),
    "gemma3-windows": Model(
        "gemma3", has_post_norms=True, has_qk_norm=True, is_tied=False, meta={**WINDOW, "rope.freq_base_swa": 500.0}
    ),
    "gemma3-plain": Model("gemma3", has_post_norms=True, has_qk_norm=True, meta={"final_logit_softcapping": 2.0}),
}

_GEMMA4 = Model(
    "gemma4", n_layer=6, kinds=((2, 32), (1, 64)), dim=64, q_norm=0.15, has_post_norms=True, has_qk_norm=True,
    meta={
        **WINDOW, "attention.sliding_window_pattern": [True, False] * 3, "attention.key_length_swa": 32,
        "attention.value_length_swa": 32,
        "rope.freq_base_swa": 500.0, "rope.dimension_count_swa": 32, "embedding_length_per_layer_input": 0,
    },
    layer_tensors={"layer_output_scale.weight": (1,)}, tensors={"rope_freqs.weight": (32,)},
)  # fmt: skip
MODELS |= {
    "gemma4": replace(_GEMMA4, without=("blk.3.attn_v.weight",)),  # V is then K
    "gemma4-small": replace(
        _GEMMA4,
        meta=_GEMMA4.meta | {"embedding_length_per_layer_input": 32, "attention.shared_kv_layers": 2,
        "final_logit_softcapping": 3.0},
        layer_tensors={**_GEMMA4.layer_tensors, "inp_gate.weight": (32, 128), "proj.weight": (128, 32),
        "post_norm.weight": (128,)},
        model_tensors={"per_layer_token_embd.weight": (N_VOCAB, 192), "per_layer_model_proj.weight": (192, 128),
        "per_layer_proj_norm.weight": (32,)},
        without=tuple(f"blk.{i}.attn_{name}.weight" for i in (4, 5) for name in ("k", "v", "k_norm")),
    ),
    "gemma4-experts": replace(
        _GEMMA4, n_expert=0,
        meta=_GEMMA4.meta | {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 96},
        layer_tensors={
            **_GEMMA4.layer_tensors, "ffn_gate_inp.weight": (4, 128), "ffn_gate_inp.scale": (128,),
            "pre_ffw_norm_2.weight": (128,),
            "post_ffw_norm_1.weight": (128,), "post_ffw_norm_2.weight": (128,), "ffn_gate_up_exps.weight": (4, 192,
            128),
            "ffn_down_exps.weight": (4, 128, 96), "ffn_down_exps.scale": (4,),
        },
    ),
}  # fmt: skip

_SHARED = {
    "ffn_gate_shexp.weight": (96, 128),
    "ffn_up_shexp.weight": (96, 128),
    "ffn_down_shexp.weight": (128, 96),
}
_DENSE = {f"blk.0.ffn_{name}.weight": (160, 128) for name in ("gate", "up")} | {"blk.0.ffn_down.weight": (128, 160)}
_MIXTURE: dict[str, Any] = {
    "leading_dense_block_count": 1,
    "expert_shared_count": 1,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
}
_MIXTURE["expert_feed_forward_length"] = 96
_NOT_DENSE = (
    *(f"blk.0.ffn_{name}_exps.weight" for name in ("gate", "up", "down")),
    *(f"blk.0.ffn_{name}_shexp.weight" for name in ("gate", "up", "down")),
    *("blk.0.ffn_gate_inp.weight", "blk.0.exp_probs_b.bias"),
)
_MIXED = Model(
    "glm4moe", n_layer=3, n_ff=160, n_expert=4, n_ff_expert=96, is_tied=False, meta=_MIXTURE, model_tensors=_DENSE,
    layer_tensors=_SHARED | {"exp_probs_b.bias": (4,)}, without=_NOT_DENSE,
)  # fmt: skip
_MLA = replace(
    _MIXED,
    arch="deepseek2",
    n_head_kv=1,
    n_expert=8,
    dim=96,  # of a stored row: 64 of the latent and 32 rotated ones
    dim_v=64,
    meta=_MIXTURE
    | {
        "attention.q_lora_rank": 64,
        "attention.kv_lora_rank": 64,
        "attention.key_length_mla": 64,
        "attention.value_length_mla": 32,
    }
    | {"rope.dimension_count": 32, "expert_gating_func": 2},
    layer_tensors=_SHARED
    | {
        "exp_probs_b.bias": (8,),
        "attn_q_a.weight": (64, 128),
        "attn_q_a_norm.weight": (64,),
        "attn_q_b.weight": (4 * 64, 64),
        "attn_kv_a_mqa.weight": (96, 128),
        "attn_kv_a_norm.weight": (64,),
        "attn_k_b.weight": (4, 64, 32),
        "attn_v_b.weight": (4, 32, 64),
        "attn_output.weight": (128, 4 * 32),
    },
    without=(*_NOT_DENSE, "attn_q.weight", "attn_k.weight", "attn_v.weight"),
)
_LITE_GATING = {"expert_gating_func": 1, "expert_weights_norm": False}
_POST_ONLY: dict[str, Any] = {"has_post_norms": True, "without": ("attn_norm.weight", "ffn_norm.weight")}
_LAYER_NORM = {"attention.layer_norm_epsilon": 1e-5}
_NORM_BIASES = {"attn_norm.bias": (128,), "ffn_norm.bias": (128,), "attn_output.bias": (128,)}
_NORM_BIASES |= {"ffn_up.bias": (160,), "ffn_down.bias": (128,)}
_ROWS = {"attn_q_norm.weight": (128,), "attn_k_norm.weight": (64,)}
MODELS |= {
    "deepseek2": _MLA,
    "deepseek2-groups": replace(
        _MLA,
        quant="f16",
        meta=_MLA.meta | YARN | {"rope.scaling.yarn_log_multiplier": 0.0707, "expert_group_count": 4,
        "expert_group_used_count": 2}
    ),
    "deepseek2-lite": replace(
        _MLA,
        quant="f16",
        n_layer=27,  # from this number llama.cpp knows that Q is one matrix
        meta=_MLA.meta | _LITE_GATING,
        layer_tensors={name: dims for name, dims in _MLA.layer_tensors.items() if "attn_q_" not in name}
        | {"attn_q.weight": (4 * 64, 128)},
        without=(*_NOT_DENSE, "attn_k.weight", "attn_v.weight"),
    ),
    "deepseek2-heads": replace(
        _MLA,  # more than one task of attention takes at a time
        quant="f16",
        n_head=96,
        layer_tensors=_MLA.layer_tensors
        | {"attn_q_b.weight": (96 * 64, 64), "attn_k_b.weight": (96, 64, 32), "attn_v_b.weight": (96, 32, 64),
        "attn_output.weight": (128, 96 * 32)},
    ),
    "mistral4": replace(
        _MLA,
        arch="mistral4",
        meta=_MLA.meta | YARN | {"rope.scaling.yarn_log_multiplier": 0.1, "attention.temperature_scale": 0.3,
        "attention.temperature_length": 24},
    ),
    "glm4moe": replace(_MIXED, has_bias=True, meta=_MIXTURE | {"rope.dimension_count": 16},
    renamed={"ffn_norm.weight": "post_attention_norm.weight"}),
    "glm4moe-drafting": replace(
        _MIXED,
        n_layer=4,
        has_qk_norm=True,
        meta=_MIXTURE | {"nextn_predict_layers": 1},
        renamed={"ffn_norm.weight": "post_attention_norm.weight"},
        model_tensors=_DENSE | {"blk.3.nextn.eh_proj.weight": (128, 256), "blk.3.nextn.enorm.weight": (128,),
        "blk.3.nextn.hnorm.weight": (128,)},
    ),
    "minimax-m2": Model(
        "minimax-m2", n_expert=4, is_tied=False, meta={"expert_gating_func": 2, "rope.dimension_count": 16},
        layer_tensors=_ROWS | {"exp_probs_b.bias": (4,)},
    ),
    "olmo2": Model("olmo2", is_tied=False, layer_tensors=_ROWS, **_POST_ONLY),
    "olmo2-windows": Model("olmo2", n_layer=5, is_tied=False, layer_tensors=_ROWS, meta=WINDOW | YARN, **_POST_ONLY),
    "exaone4": Model("exaone4", has_qk_norm=True, **_POST_ONLY),
    "exaone4-windows": Model("exaone4", n_layer=64, n_embd=64, n_head=2, n_ff=64, has_qk_norm=True, meta=WINDOW,
    **_POST_ONLY),
    "hunyuan-dense": Model("hunyuan-dense", has_qk_norm=True, meta={"rope.scaling.alpha": 3.0}),
    "command-r": Model("command-r", meta=_LAYER_NORM | {"logit_scale": 0.25}, without=("ffn_norm.weight",)),
    "cohere2": Model("cohere2", n_layer=5, meta=_LAYER_NORM | WINDOW | {"logit_scale": 0.25},
    without=("ffn_norm.weight",)),
    "starcoder2": Model(
        "starcoder2", has_bias=True, meta=_LAYER_NORM, layer_tensors=_NORM_BIASES,
        model_tensors={"output_norm.bias": (128,)},
        without=("ffn_gate.weight",),
    ),
    "nemotron": Model(
        "nemotron", is_tied=False, meta=_LAYER_NORM | {"rope.dimension_count": 16},
        model_tensors={"output_norm.bias": (128,)},
        layer_tensors=dict.fromkeys(("attn_norm.bias", "ffn_norm.bias"), (128,)), without=("ffn_gate.weight",),
    ),
}  # fmt: skip

_QWEN35 = Model(
    "qwen35", n_layer=4, has_qk_norm=True, renamed={"ffn_norm.weight": "post_attention_norm.weight"},
    meta={
        "rope.dimension_count": 16, "rope.dimension_sections": [3, 3, 2, 0], "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 128, "ssm.state_size": 32, "ssm.time_step_rank": 4, "ssm.group_count": 2,
    },
    layer_tensors={
        "attn_q.weight": (256, 128), "attn_qkv.weight": (256, 128), "attn_gate.weight": (128, 128),
        "ssm_conv1d.weight": (256, 4),
        "ssm_dt.bias": (4,), "ssm_a": (4,), "ssm_beta.weight": (4, 128), "ssm_alpha.weight": (4, 128),
        "ssm_norm.weight": (32,),
        "ssm_out.weight": (128, 128),
    },
)  # fmt: skip
_OF_ATTENTION = tuple(f"attn_{name}.weight" for name in ("q", "k", "v", "output", "q_norm", "k_norm"))
_OF_DELTA_NET = (
    *(f"{name}.weight" for name in ("attn_qkv", "attn_gate", "ssm_conv1d", "ssm_beta", "ssm_alpha", "ssm_norm",
    "ssm_out")),
    "ssm_dt.bias", "ssm_a",
)  # fmt: skip


def hybrid(model: Model, kinds: str, names: dict[str, tuple[str, ...]]) -> Model:
    """Without what each layer's kind, a letter, has no use for: `names` of it."""
    return replace(
        model, without=model.without + tuple(f"blk.{i}.{name}" for i, kind in enumerate(kinds) for name in names[kind])
    )


# families whose layers have states; not on devices
_QWEN35_NAMES = {"r": _OF_ATTENTION, "a": _OF_DELTA_NET}
RECURRENT = {
    "qwen35": hybrid(_QWEN35, "rrra", _QWEN35_NAMES),
    "qwen35-wide": hybrid(  # heads as long as the real ones, with one head of keys for two of values
        replace(
            _QWEN35,
            meta=_QWEN35.meta | {"ssm.state_size": 128, "ssm.inner_size": 256, "ssm.time_step_rank": 2,
            "ssm.group_count": 1},
            layer_tensors={
                "attn_q.weight": (256, 128), "attn_qkv.weight": (512, 128), "attn_gate.weight": (256, 128),
                "ssm_conv1d.weight": (512, 4),
                "ssm_dt.bias": (2,), "ssm_a": (2,), "ssm_beta.weight": (2, 128), "ssm_alpha.weight": (2, 128),
                "ssm_norm.weight": (128,), "ssm_out.weight": (128, 256),
            },
        ),
        "rrra", _QWEN35_NAMES,
    ),
    "qwen35-last": hybrid(
        replace(_QWEN35, n_layer=3, is_tied=False, meta=_QWEN35.meta | {"full_attention_interval": 2}), "rar",
        _QWEN35_NAMES
    ),
    "qwen35-next": replace(
        hybrid(
            replace(_QWEN35, n_layer=3, meta=_QWEN35.meta | {"full_attention_interval": 2, "nextn_predict_layers": 1}),
            "raa", _QWEN35_NAMES,
        ),
        model_tensors={
            "blk.2.nextn.eh_proj.weight": (128, 256), "blk.2.nextn.enorm.weight": (128,),
            "blk.2.nextn.hnorm.weight": (128,),
        },
    ),
    "qwen35moe": hybrid(
        replace(
            _QWEN35, arch="qwen35moe", n_expert=4, meta=_QWEN35.meta | {"expert_shared_feed_forward_length": 96},
            layer_tensors={
                **_QWEN35.layer_tensors, "ffn_gate_shexp.weight": (96, 128), "ffn_up_shexp.weight": (96, 128),
                "ffn_down_shexp.weight": (128, 96), "ffn_gate_inp_shexp.weight": (128,),
            },
        ),
        "rrra", _QWEN35_NAMES,
    ),
}  # fmt: skip

_GRANITEHYBRID = Model(
    "granitehybrid", n_layer=4, kinds=((0, 32), (2, 32), (0, 32), (0, 32)),
    meta=GRANITE | {
        "ssm.conv_kernel": 4, "ssm.inner_size": 256, "ssm.state_size": 32, "ssm.time_step_rank": 8,
        "ssm.group_count": 2,
        "rope.scaling.finetuned": False,
    },
    layer_tensors={
        "ssm_in.weight": (648, 128), "ssm_conv1d.weight": (384, 4), "ssm_conv1d.bias": (384,), "ssm_dt.bias": (8,),
        "ssm_a": (8, 1),
        "ssm_d": (8, 1), "ssm_norm.weight": (2, 128), "ssm_out.weight": (128, 256),
    },
)  # fmt: skip
_MAMBA_NAMES = {
    "r": ("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight"),
    "a": tuple(_GRANITEHYBRID.layer_tensors)
}  # fmt: skip
_LFM2 = Model(
    "lfm2", n_layer=3, kinds=((0, 32), (2, 32), (0, 32)), has_qk_norm=True, meta={"shortconv.l_cache": 3},
    without=("output_norm.weight",),
    layer_tensors={"shortconv.conv.weight": (128, 3), "shortconv.in_proj.weight": (384, 128),
    "shortconv.out_proj.weight": (128, 128)},
    model_tensors={"token_embd_norm.weight": (128,)},
)  # fmt: skip
_LFM2_NAMES = {"r": _OF_ATTENTION, "a": tuple(_LFM2.layer_tensors)}
_OF_EXPERTS = (
    *(f"ffn_{name}.weight" for name in ("gate_inp", "gate_exps", "up_exps", "down_exps")),
    "exp_probs_b.bias",
)
_LFM2_DENSE = {"ffn_gate.weight": (160, 128), "ffn_up.weight": (160, 128), "ffn_down.weight": (128, 160)}
RECURRENT |= {
    "granitehybrid": hybrid(_GRANITEHYBRID, "rarr", _MAMBA_NAMES),
    "granitehybrid-experts": hybrid(
        replace(
            _GRANITEHYBRID, n_expert=4, meta=_GRANITEHYBRID.meta | {"expert_shared_feed_forward_length": 96,
            "rope.scaling.finetuned": True},
            layer_tensors=_GRANITEHYBRID.layer_tensors | {
                "ffn_gate_shexp.weight": (96, 128), "ffn_up_shexp.weight": (96, 128), "ffn_down_shexp.weight": (128,
                96),
            },
        ),
        "rarr", _MAMBA_NAMES,
    ),
    "lfm2": hybrid(_LFM2, "rar", _LFM2_NAMES),
    "lfm2moe": hybrid(
        replace(
            _LFM2, arch="lfm2moe", n_expert=4, meta=_LFM2.meta | {"leading_dense_block_count": 1,
            "expert_gating_func": 2},
            layer_tensors=_LFM2.layer_tensors | _LFM2_DENSE | {"exp_probs_b.bias": (4,)},
        ),
        "dar",
        {
            "d": (*_OF_ATTENTION, *_OF_EXPERTS), "a": (*_LFM2.layer_tensors, *_LFM2_DENSE), "r": (*_OF_ATTENTION,
            *_LFM2_DENSE),
        },
    ),
}  # fmt: skip

# hybrids without their layers, and what each kind of layer has no use for
HYBRIDS = {
    "qwen35": (_QWEN35, _QWEN35_NAMES),
    "granitehybrid": (_GRANITEHYBRID, _MAMBA_NAMES),
    "lfm2": (_LFM2, _LFM2_NAMES),
}

# one family with every type of weights
TYPED = {
    **{f"llama-{quant}": Model("llama", quant=quant) for quant in (*BLOCKS_OF_32, "q4_0", "f16", "bf16")},
    **{f"llama-{quant}": Model("llama", dim=64, n_embd=256, n_ff=512, quant=quant) for quant in BLOCKS_OF_256},
    "mixtral-q4_k": Model("llama", dim=64, n_embd=256, n_ff=256, n_expert=4, quant="q4_k"),
    "mixtral-mxfp4": Model("llama", n_expert=4, quant="mxfp4"),
}


def write(model: Model, path: Path, seed: int = 1) -> str:
    """Write the model; the same seed gives the same weights."""
    writer = gguf.GGUFWriter(path, model.arch)
    _metadata(writer, model)
    draw = np.random.default_rng(seed)
    for name, dims in _tensors(model).items():
        if name not in model.without and name.partition(".")[2].partition(".")[2] not in model.without:
            _add(writer, name, dims, model, draw)
    for name, dims in model.tensors.items():
        writer.add_tensor(name, 1 + draw.random(dims, np.float32))
    save(writer)
    return str(path)


def _metadata(writer: gguf.GGUFWriter, model: Model) -> None:
    add_vocabulary(writer, N_VOCAB)
    for add, value in (
        (writer.add_context_length, 512),
        (writer.add_embedding_length, model.n_embd),
        (writer.add_block_count, model.n_layer),
        (writer.add_feed_forward_length, model.n_ff),
        (writer.add_head_count, model.n_head),
        (
            writer.add_head_count_kv,
            [model.kinds[i % len(model.kinds)][0] for i in range(model.n_layer)] if model.kinds else model.n_head_kv,
        ),
        (writer.add_key_length, model.dim),
        (writer.add_value_length, model.dim_v or model.dim),
        (writer.add_rope_dimension_count, model.dim),
        (writer.add_layer_norm_rms_eps, 1e-6),
    ):
        add(value)  # type: ignore[operator]
    if model.n_expert:
        writer.add_expert_count(model.n_expert)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(model.n_ff)
    adders: dict[type, Callable[..., None]] = {
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    adders |= {bool: writer.add_bool, list: writer.add_array}
    for key, value in model.meta.items():
        adders[type(value)](key if "split." in key else f"{model.arch}.{key}", value)


def _tensors(model: Model) -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (N_VOCAB, model.n_embd),
        "output_norm.weight": (model.n_embd,),
    }
    out |= model.model_tensors
    if not model.is_tied:
        out["output.weight"] = (N_VOCAB, model.n_embd)
    for i in range(model.n_layer):
        p = f"blk.{i}."
        n_kv, dim = model.kinds[i % len(model.kinds)] if model.kinds else (model.n_head_kv, model.dim)
        width, kv, kv_v = model.n_head * dim, n_kv * dim, n_kv * (model.dim_v or dim)
        out |= {p + "attn_norm.weight": (model.n_embd,), p + "ffn_norm.weight": (model.n_embd,)}
        out[p + "attn_output.weight"] = (model.n_embd, model.n_head * (model.dim_v or dim))
        for name, n in (("qkv", width + kv + kv_v),) if model.is_joined else (("q", width), ("k", kv), ("v", kv_v)):
            out[f"{p}attn_{name}.weight"] = (n, model.n_embd)
            if model.has_bias:
                out[f"{p}attn_{name}.bias"] = (n,)
        if model.has_post_norms:
            out |= {p + "post_attention_norm.weight": (model.n_embd,), p + "post_ffw_norm.weight": (model.n_embd,)}
        if model.has_qk_norm:
            out |= {p + "attn_q_norm.weight": (dim,), p + "attn_k_norm.weight": (dim,)}
        experts = (model.n_expert,) if model.n_expert else ()
        suffix = "_exps" if experts else ""
        n_ff = (experts and model.n_ff_expert) or model.n_ff
        halves = {"up": 2 * n_ff} if model.is_joined else dict.fromkeys(("gate", "up"), n_ff)
        out |= {f"{p}ffn_{name}{suffix}.weight": (*experts, n, model.n_embd) for name, n in halves.items()}
        out[f"{p}ffn_down{suffix}.weight"] = (*experts, model.n_embd, n_ff)
        if experts:
            out[p + "ffn_gate_inp.weight"] = (model.n_expert, model.n_embd)
        out |= {p + name: dims for name, dims in model.layer_tensors.items()}
        out = {
            p + model.renamed.get(name.removeprefix(p), name.removeprefix(p)) if name.startswith(p) else name: dims
            for name, dims in out.items()
        }
    return out


def _add(writer: gguf.GGUFWriter, name: str, dims: tuple[int, ...], model: Model, draw: np.random.Generator) -> None:
    """A quant of "exact TYPE" means f32 weights with exactly the values that TYPE can hold."""
    is_matrix = (
        len(dims) > 1
        and "gate_inp" not in name
        and "norm" not in name
        and not name.endswith(".bias")
        and dims[-1] % 32 == 0
    )
    scale = dims[-1] ** -0.5 if is_matrix or "gate_inp" in name else 0.2
    quant, mean = model.quant, model.q_norm if "q_norm" in name else float("norm" in name)
    data = (draw.standard_normal(dims) * scale + mean).astype(np.float32)
    if name.endswith("ssm_a"):
        data = -np.exp(data)  # states must decay
    kind = TYPES[quant.removeprefix("exact ") if is_matrix else "f32"]
    blocks = quantised(data, kind)
    if quant.startswith("exact ") and is_matrix:
        writer.add_tensor(name, gguf.dequantize(blocks, kind).astype(np.float32).reshape(dims))
    else:
        writer.add_tensor(name, blocks, raw_dtype=kind)


def quantised(data: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Return the bytes of each row. llama.cpp's own code makes the types that the gguf package cannot make."""
    return fidelity.quantised(data, kind) if kind in _BY_LLAMA else gguf.quants.quantize(data, kind)
