"""Header values that would end the process are refused before an engine takes the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from perf.gguf_file import save
from tests.engine import encoders
from tests.engine.encoders import Encoder
from tests.engine.graph.models import HYBRIDS, MODELS, RECURRENT, Model, hybrid, write
from tests.engine.headers import is_encoder
from uma_core.errors import ErrorCode, UmaError

EPSILON = "llama.attention.layer_norm_rms_epsilon"


def written(path: Path, change: Callable[[gguf.GGUFWriter], object]) -> str:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float16))
    change(writer)
    save(writer)
    return str(path)


def weights(values: np.ndarray, kind: gguf.GGMLQuantizationType | None = None) -> Callable[[gguf.GGUFWriter], object]:
    return lambda writer: writer.add_tensor("blk.0.ffn_up.weight", values, raw_dtype=kind)


def heads_of(n: int) -> Callable[[gguf.GGUFWriter], object]:
    """Three heads, and no count of rotated elements: all of a head's are."""
    return lambda writer: (writer.add_embedding_length(3 * n), writer.add_head_count(3))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (weights(np.zeros((4, 32), np.int8)), "type i8"),
        (weights(np.zeros((4, 32), np.int32)), "type i32"),
        (weights(np.zeros((4, 32), np.float64)), "type f64"),
        (weights(np.zeros((4, 292), np.uint8), gguf.GGMLQuantizationType.Q8_K), "type q8_K"),
        (lambda writer: writer.add_float32(EPSILON, -1.0), "epsilon of -1.0"),
        (lambda writer: writer.add_float32(EPSILON, float("nan")), "epsilon of nan"),
        (lambda writer: writer.add_uint64("split.count", 1 << 40), "1099511627776 files"),
        (heads_of(21), "rope.dimension_count of 21 in heads of 21"),
        (heads_of(1), "rope.dimension_count of 1 in heads of 1"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_what_would_end_the_process(change: Callable[[gguf.GGUFWriter], object], words: str, tmp_path: Path) -> None:
    with pytest.raises(UmaError, match=words) as caught:
        is_encoder(written(tmp_path / "model.gguf", change))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


@pytest.mark.parametrize(
    ("arch", "kind", "words"),
    [
        ("clip", "mmproj", "mmproj"),
        ("clip", None, "mmproj"),
        ("llama", "adapter", "LoRA adapter.*engine.lora"),
        ("controlvector", None, "control vector"),
        ("imatrix", "imatrix", "importance matrix"),
        ("t5", "model", "T5"),
        ("t5encoder", None, "T5"),
        ("llama", "model", "without weights"),
        ("llama", None, "without weights"),
    ],
)
def test_a_file_that_is_no_model_is_refused_as_what_it_is(
    arch: str, kind: str | None, words: str, tmp_path: Path
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", arch)
    if kind:
        writer.add_type(kind)
    if "weights" not in words:
        writer.add_tensor("some", np.zeros((4, 32), np.float16))
    save(writer)
    with pytest.raises(UmaError, match=words) as caught:
        is_encoder(str(tmp_path / "model.gguf"))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


@pytest.mark.parametrize(("name", "words"), [("Qwen/Qwen2.5-0.5B", "nothing is downloaded"), (".", "a folder: give")])
def test_what_is_no_file_is_answered_with_what_a_model_is(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UmaError, match=words) as caught:
        is_encoder(str(tmp_path / name))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


def test_a_pointer_of_git_lfs_is_refused_as_one(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(UmaError, match="Git LFS pointer") as caught:
        is_encoder(str(path))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_norm.weight",
        "output_norm.weight",
        "rope_freqs.weight",
        "blk.11.attn_q.bias",
        "blk.0.attn_sinks.weight",
        "blk.0.exp_probs_b.bias",
        "blk.0.post_ffw_norm_1.weight",
        "blk.0.nextn.hnorm.weight",
        "blk.0.ffn_down_exps.scale",
        "blk.0.ssm_a",
        "blk.0.shortconv.conv.weight",
        "dec.blk.0.attn_norm.weight",
    ],
)
@pytest.mark.parametrize("kind", [np.float16, np.float64, np.int8])
def test_what_has_to_be_of_f32(name: str, kind: type[np.generic], tmp_path: Path) -> None:
    """ggml adds and multiplies rows only with f32 tensors, and ends the process at any other."""
    assert not is_encoder(written(tmp_path / "sound.gguf", lambda w: w.add_tensor(name, np.ones(32, np.float32))))
    with pytest.raises(UmaError, match=f"{name} of type") as caught:
        is_encoder(written(tmp_path / "model.gguf", lambda writer: writer.add_tensor(name, np.ones(32, kind))))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


@pytest.mark.parametrize("kind", ["Q8_0", "Q2_K", "TQ1_0", "BF16"])
def test_types_that_weights_have(kind: str, tmp_path: Path) -> None:
    quant = gguf.GGMLQuantizationType[kind]
    n_block, n_bytes = gguf.GGML_QUANT_SIZES[quant]
    values = np.zeros((4, 256 // n_block * n_bytes), np.uint8)
    assert not is_encoder(written(tmp_path / "model.gguf", weights(values, quant)))


@pytest.mark.parametrize(
    ("family", "missing"),
    [
        ("phi3", "blk.1.attn_qkv.weight"),
        ("qwen35", "blk.0.attn_qkv.weight"),
        ("qwen35moe", "blk.1.attn_gate.weight"),
        ("granitehybrid", "blk.3.ssm_conv1d.bias"),
    ],
)
def test_what_llama_cpp_loads_without_and_reads_nevertheless(family: str, missing: str, tmp_path: Path) -> None:
    model = (MODELS | RECURRENT)[family]
    assert not is_encoder(write(model, tmp_path / "whole.gguf"))
    with pytest.raises(UmaError, match=f"missing tensor {missing}") as caught:
        is_encoder(write(replace(model, without=(*model.without, missing)), tmp_path / "model.gguf"))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


GLM_5 = replace(
    MODELS["deepseek2"],
    arch="glm-dsa",
    meta=MODELS["deepseek2"].meta
    | {"attention.indexer.head_count": 2, "attention.indexer.key_length": 64, "attention.indexer.top_k": 16},
    layer_tensors=MODELS["deepseek2"].layer_tensors
    | {
        "indexer.k_norm.weight": (64,),
        "indexer.k_norm.bias": (64,),
        "indexer.proj.weight": (2, 128),
        "indexer.attn_k.weight": (64, 128),
        "indexer.attn_q_b.weight": (128, 64),
    },
)


@pytest.mark.parametrize(
    ("meta", "n_layer", "choosing"),
    [
        ({}, 3, [0, 1, 2]),
        ({"attention.indexer.types": [1, 0, 1]}, 3, [0, 2]),
        ({"context_length": 1 << 20}, 8, [0, 1, 2, 6]),
    ],
)
def test_layers_of_glm_5_that_choose_positions_can(
    meta: dict[str, object], n_layer: int, choosing: list[int], tmp_path: Path
) -> None:
    """llama.cpp loads the layers without their tensors, and then reads tensors that do not exist."""
    model = replace(GLM_5, meta=GLM_5.meta | meta, n_layer=n_layer)
    for layer in range(n_layer):
        name = f"blk.{layer}.indexer.proj.weight"
        path = write(replace(model, without=(*model.without, name)), tmp_path / "model.gguf")
        if layer in choosing:
            with pytest.raises(UmaError, match=f"missing tensor {name}") as caught:
                is_encoder(path)
            assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED
        else:
            assert not is_encoder(path)


def test_a_shared_expert_of_kimi_k3_is_whole(tmp_path: Path) -> None:
    tensors = {"blk.0.ssm_f_a.weight": (32, 128)}  # of a recurrent layer
    layers = {"ffn_gate_shexp.weight": (96, 128)}
    model = replace(MODELS["llama"], arch="kimi-k3", layer_tensors=layers, model_tensors=tensors)
    with pytest.raises(UmaError, match=r"missing tensor .*ffn_up_shexp"):
        is_encoder(write(model, tmp_path / "model.gguf"))


def test_q_k_and_v_may_be_three_matrices(tmp_path: Path) -> None:
    apart = replace(MODELS["phi3"], without=("attn_qkv.weight",), layer_tensors={
        "attn_q.weight": (128, 128), "attn_k.weight": (64, 128), "attn_v.weight": (64, 128),
    })  # fmt: skip
    assert not is_encoder(write(apart, tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("family", "key", "n"),
    [
        ("cohere2", "rope.dimension_count", 33),
        ("cohere2", "rope.dimension_count", 0),
        ("command-r", "rope.dimension_count", 64),
        ("qwen35", "rope.dimension_count", 17),
        ("gemma4", "rope.dimension_count_swa", 64),
    ],
)
def test_rotary_positions_that_no_head_has(family: str, key: str, n: int, tmp_path: Path) -> None:
    """ggml notices only while it computes. Then it ends the process, or never ends."""
    model = (MODELS | RECURRENT)[family]
    assert not is_encoder(write(model, tmp_path / "whole.gguf"))
    with pytest.raises(UmaError, match=f"{key} of {n} in heads of {model.kinds[0][1] if model.kinds else model.dim}"):
        is_encoder(write(replace(model, meta=model.meta | {key: n}), tmp_path / "model.gguf"))


def test_heads_with_a_window_rotate_as_many_elements_as_the_others(tmp_path: Path) -> None:
    """Where the file gives no count of its own for them, these heads may be too short for that of the others."""
    model = MODELS["gemma4"]
    meta = {key: value for key, value in model.meta.items() if key != "rope.dimension_count_swa"}
    with pytest.raises(UmaError, match=r"rope\.dimension_count_swa of 64 in heads of 32") as caught:
        is_encoder(write(replace(model, meta=meta), tmp_path / "model.gguf"))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


def of_one_kind(family: str, kind: str) -> Model:
    """A hybrid whose layers are all recurrent (r) or all attention (a)."""
    model, names = HYBRIDS[family]
    n_kv = 0 if kind == "r" else 2
    kinds = tuple((n_kv, dim) for _, dim in model.kinds)
    interval = {"full_attention_interval": model.n_layer + 1 if kind == "r" else 1} if family == "qwen35" else {}
    return hybrid(replace(model, kinds=kinds, meta=model.meta | interval), kind * model.n_layer, names)


@pytest.mark.parametrize("family", HYBRIDS)
@pytest.mark.parametrize(("kind", "missing"), [("r", "attention"), ("a", "recurrent layers")])
def test_a_hybrid_whose_layers_are_all_alike(family: str, kind: str, missing: str, tmp_path: Path) -> None:
    """llama.cpp loads it, and ends the process at the first call."""
    with pytest.raises(UmaError, match=f"a hybrid model without {missing}") as caught:
        is_encoder(write(of_one_kind(family, kind), tmp_path / "model.gguf"))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


KDA = ("attn_output.weight", "ssm_f_a.weight")


@pytest.mark.parametrize(
    ("arch", "recurrent"),
    [
        ("bailingmoe3", KDA),
        ("glm5-next", KDA),
        ("kimi-k3", KDA),
        ("kimi-linear", KDA),
        ("minimax-01", ("attn_output.weight", "attn_norm_2.weight")),
        ("qwen4exp", ("ssm_out.weight", "ssm_conv1d.weight")),
    ],
)
@pytest.mark.parametrize(("kinds", "missing"), [("ra", ""), ("rr", "attention"), ("aa", "recurrent layers")])
def test_hybrids_of_other_families(
    arch: str, recurrent: tuple[str, ...], kinds: str, missing: str, tmp_path: Path
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", arch)
    writer.add_block_count(len(kinds))
    writer.add_rope_dimension_sections([4, 6, 6, 0])
    for i, kind in enumerate(kinds):
        for name in recurrent if kind == "r" else ("attn_output.weight",):
            writer.add_tensor(f"blk.{i}.{name}", np.zeros((4, 32), np.float32))
    save(writer)
    if not missing:
        assert not is_encoder(str(tmp_path / "model.gguf"))
        return
    with pytest.raises(UmaError, match=f"a hybrid model without {missing}") as caught:
        is_encoder(str(tmp_path / "model.gguf"))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


@pytest.mark.parametrize(
    ("n_layer", "meta", "words"),
    [
        (4, {}, ""),
        (3, {}, "3 layers, all with rotary positions"),
        (4, {"attention.sliding_window": 0}, "sliding_window of 0"),
    ],
)
def test_a_llama_4_needs_layers_without_rotary_positions(
    n_layer: int, meta: dict[str, object], words: str, tmp_path: Path
) -> None:
    """llama.cpp fills the factors of their Q, and ends the process at the first call if no layer reads them."""
    path = write(replace(MODELS["mixtral"], arch="llama4", n_layer=n_layer, meta=meta), tmp_path / "model.gguf")
    if not words:
        assert not is_encoder(path)
        return
    with pytest.raises(UmaError, match=words) as caught:
        is_encoder(path)
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


@pytest.mark.parametrize("family", ["mistral4", "deepseek2"])
@pytest.mark.parametrize("length", [{}, {"attention.temperature_length": 0}])
def test_q_that_grows_with_the_position_needs_a_length(family: str, length: dict[str, object], tmp_path: Path) -> None:
    """llama.cpp asserts, at the first call, that it is not 0."""
    model = MODELS[family]
    meta = {key: value for key, value in model.meta.items() if not key.startswith("attention.temperature")}
    meta["attention.temperature_scale"] = 0.3
    sound = meta | {"attention.temperature_length": 24}
    assert not is_encoder(write(replace(model, meta=sound), tmp_path / "whole.gguf"))
    assert not is_encoder(write(replace(model, meta=meta | {"attention.temperature_scale": 0.0}), tmp_path / "no.gguf"))
    with pytest.raises(UmaError, match=r"attention\.temperature_length of") as caught:
        is_encoder(write(replace(model, meta=meta | length), tmp_path / "model.gguf"))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


def test_layers_that_draft_are_not_a_hybrids_own(tmp_path: Path) -> None:
    """The layer that drafts for Qwen 3.5 is attention, whatever the model's own layers are."""
    model, names = HYBRIDS["qwen35"]
    meta = {"full_attention_interval": 4, "nextn_predict_layers": 1}
    with pytest.raises(UmaError, match="a hybrid model without attention"):
        is_encoder(write(hybrid(replace(model, meta=model.meta | meta), "rrra", names), tmp_path / "model.gguf"))


WINDOWS = {"attention.sliding_window": 24}
PATTERN = "attention.sliding_window_pattern"


@pytest.mark.parametrize(
    ("arch", "n_layer", "meta", "is_sound"),
    [
        ("gemma-embedding", 6, WINDOWS, True),
        ("gemma-embedding", 5, WINDOWS, False),
        ("gemma-embedding", 2, WINDOWS | {PATTERN: 2}, True),
        ("gemma-embedding", 2, WINDOWS | {PATTERN: 1}, False),
        ("gemma-embedding", 2, WINDOWS | {PATTERN: 0}, False),
        ("modern-bert", 2, WINDOWS, True),
        ("modern-bert", 1, WINDOWS, False),
        ("modern-bert", 1, {}, True),
        ("modern-bert", 2, WINDOWS | {PATTERN: [True, False]}, True),
        ("modern-bert", 2, WINDOWS | {PATTERN: [True, True]}, False),
        ("modern-bert", 2, WINDOWS | {PATTERN: [False, False]}, False),
    ],
)
def test_an_encoder_with_windows_has_layers_with_and_without(
    arch: str, n_layer: int, meta: dict[str, object], is_sound: bool, tmp_path: Path
) -> None:
    """llama.cpp loads the others too, and ends the process at the first call."""
    path = write(replace(MODELS["llama"], arch=arch, n_layer=n_layer, meta=meta), tmp_path / "model.gguf")
    if is_sound:
        assert is_encoder(path)
        return
    with pytest.raises(UmaError, match=r"no layers with(out)? a window") as caught:
        is_encoder(path)
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


@pytest.mark.parametrize("meta", [{}, {"attention.sliding_window": 0}])
def test_a_family_that_always_has_windows(meta: dict[str, object], tmp_path: Path) -> None:
    """Without a window llama.cpp reads from a memory that does not exist."""
    model = replace(MODELS["mixtral"], arch="afmoe")
    assert not is_encoder(write(replace(model, meta=WINDOWS), tmp_path / "whole.gguf"))
    with pytest.raises(UmaError, match="sliding_window of") as caught:
        is_encoder(write(replace(model, meta=meta), tmp_path / "model.gguf"))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


@pytest.mark.parametrize("meta", [{}, {"rope.dimension_sections": 0}, {"rope.dimension_sections": [0, 0, 0, 16]}])
def test_sections_of_rotary_positions_that_a_file_need_not_give(meta: dict[str, object], tmp_path: Path) -> None:
    """PaddleOCR's are optional for llama.cpp, but ggml ends the process without them."""
    model = replace(MODELS["llama"], arch="paddleocr")
    sound = {"rope.dimension_sections": [4, 6, 6, 0]}
    assert not is_encoder(write(replace(model, meta=sound), tmp_path / "whole.gguf"))
    with pytest.raises(UmaError, match=r"rope\.dimension_sections of") as caught:
        is_encoder(write(replace(model, meta=meta), tmp_path / "model.gguf"))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


@pytest.mark.parametrize(("key", "value"), [("rope.dimension_sections", [0, 0, 0, 0]), ("full_attention_interval", 0)])
def test_numbers_that_a_hybrid_cannot_have(key: str, value: object, tmp_path: Path) -> None:
    model = RECURRENT["qwen35"]
    with pytest.raises(UmaError, match=f"{key} of") as caught:
        is_encoder(write(replace(model, meta=model.meta | {key: value}), tmp_path / "model.gguf"))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


def test_rotary_positions_that_are_not_used_may_be_of_any_number(tmp_path: Path) -> None:
    model = MODELS["granite-nope"]
    assert not is_encoder(write(replace(model, meta=model.meta | {"rope.dimension_count": 0}), tmp_path / "model.gguf"))


@pytest.mark.parametrize("arch", ["bert", "qwen3"])
@pytest.mark.parametrize(
    ("n_scores", "has_head"), [(0, False), (5000, False), (3, True)], ids=["nothing", "labels", "labels and a layer"]
)
def test_a_reranker_without_a_classifier(arch: str, n_scores: int, has_head: bool, tmp_path: Path) -> None:
    """Hidden states would be its scores, and llama.cpp would read behind them for 5,000 labels."""
    model = Encoder(arch, 4, n_scores=n_scores, has_head=has_head, has_classifier=False)
    with pytest.raises(UmaError, match="reranker without a classifier") as caught:
        is_encoder(encoders.write(model, tmp_path / "model.gguf"))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


def test_a_dense_layer_may_be_the_whole_classifier(tmp_path: Path) -> None:
    assert is_encoder(encoders.write(Encoder("bert", 4, has_head=True), tmp_path / "model.gguf"))


def test_every_family_is_computable(tmp_path: Path) -> None:
    for model in (MODELS | RECURRENT).values():
        assert not is_encoder(write(model, tmp_path / "model.gguf"))


BYTES = [f"\\x{byte:02x}" for byte in range(256)]


def with_words(path: Path, kind: str, words: list[str]) -> str:
    return written(path, lambda writer: (writer.add_tokenizer_model(kind), writer.add_token_list(words)))


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        ([*BYTES, "ab", "\\n\\n", "\\xff\\xfe", "\\\\t"], ""),
        (["a", "\\n", "\\xe4", "\\x", "\\", "ab", "\\n\\n", "\\xe4\\xbd"], ""),
        ([*BYTES[:10], *BYTES[11:], "\\n\\n"], "0a"),
        (["a", "ab", "bc"], "62"),
        (["a", ""], "5b"),
        (["a", "\\xe4\\xbd"], "e4"),
    ],
)
def test_a_vocabulary_of_rwkv_has_each_byte_with_which_a_word_begins(
    words: list[str], lost: str, tmp_path: Path
) -> None:
    """A text that begins like a word, but with no word, keeps llama.cpp's tokenizer forever and takes all memory."""
    path = with_words(tmp_path / "model.gguf", "rwkv", words)
    if not lost:
        assert not is_encoder(path)
        return
    with pytest.raises(UmaError, match=f"without the byte {lost}") as caught:
        is_encoder(path)
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


@pytest.mark.parametrize("kind", ["t5", "rwkv", "plamo2"])
def test_words_that_would_overflow_the_stack(kind: str, tmp_path: Path) -> None:
    """llama.cpp recurses once for each byte of a word of these tokenizers."""
    assert not is_encoder(with_words(tmp_path / "sound.gguf", kind, ["a", "a" * 1024]))
    with pytest.raises(UmaError, match="a word of 1025 bytes") as caught:
        is_encoder(with_words(tmp_path / "model.gguf", kind, ["a", "a" * 1025]))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED


def test_other_tokenizers_may_have_long_words(tmp_path: Path) -> None:
    assert not is_encoder(with_words(tmp_path / "model.gguf", "gpt2", ["a", "a" * 100_000]))
