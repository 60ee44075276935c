"""The header of a GGUF, read through gguf.h: metadata, and the place of each tensor in the file, or in one of several
files.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from typing import Any, NamedTuple

from uma_core.engine.lib import ffi, lib, text
from uma_core.engine.llama.log import tap
from uma_core.errors import ErrorCode, UmaError

Scalar = int | float | bool | str
Value = Scalar | list[int] | list[float] | list[bool]

_QKV_AND_GATE = ("attn_qkv.weight", "attn_gate.weight")
_MAMBA_2 = ("ssm_conv1d.weight", (("ssm_conv1d.bias",),))
# A layer that has the first tensor needs one of these sets. llama.cpp also loads layers without them, but then reads
# from a missing tensor when it lays out its graph.
NEEDS: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "phi3": ("attn_norm.weight", (("attn_qkv.weight",), ("attn_q.weight", "attn_k.weight", "attn_v.weight"))),
    "qwen35": ("ssm_conv1d.weight", (_QKV_AND_GATE,)),
    "qwen35moe": ("ssm_conv1d.weight", (_QKV_AND_GATE,)),
    "qwen3next": ("ssm_conv1d.weight", (_QKV_AND_GATE, ("ssm_in.weight",))),
    "granitehybrid": _MAMBA_2,
    "falcon-h1": _MAMBA_2,
    "nemotron_h": _MAMBA_2,
    "nemotron_h_moe": _MAMBA_2,
    "kimi-k3": ("ffn_gate_shexp.weight", (("ffn_up_shexp.weight", "ffn_down_shexp.weight"),)),
}
# Some layers of GLM 5 choose the positions that attention sees; the others take the choice of the layer before. Layers
# that choose need these tensors, but llama.cpp also loads such layers without them.
INDEXER = ("indexer.attn_q_b.weight", "indexer.attn_k.weight", "indexer.proj.weight")
GLM_5_2_CONTEXT = 1 << 20  # with this context or more, every fourth layer chooses if the file does not list them

# A reranker has the first tensor, or only the second one for a single score (jina-reranker-v1-tiny-en).
CLASSIFIER, DENSE_CLASSIFIER = "cls.output.weight", "cls.weight"

# These architectures have no rotary positions, but their files may give a count of them, even 0.
NOT_ROTATED = frozenset({"kimi-linear", "kimi-k3", "glm5-next"})
# These have none either, and the length of their heads may be odd.
NEVER_ROTATED = frozenset({"bert", "bloom", "gpt2", "jina-bert-v2", "mpt", "refact", "starcoder"})
# ggml asserts that one of their sections of rotary positions is not empty.
IN_SECTIONS = frozenset({"paddleocr", "qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen4exp"})

# llama.cpp sets memory aside for two kinds of layers of these architectures: recurrent layers and attention. It fills
# an input for each kind, and ends the process at the first call if no layer reads one of them.
HYBRIDS = frozenset({
    "bailingmoe3", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "minimax-01",
    "nemotron_h", "nemotron_h_moe", "plamo2", "qwen35", "qwen35moe", "qwen3next", "qwen4exp",
})  # fmt: skip
# recurrent layers have one of these; attention has none of them, and an output matrix, which others may have, too
OF_STATES = ("ssm_conv1d.weight", "shortconv.conv.weight", "ssm_f_a.weight", "attn_norm_2.weight")
OF_ATTENTION = "attn_output.weight"
# The same is true of encoders that have both layers with a window and layers without one. If the file gives no pattern,
# one layer in this many has no window (load_swa_pattern in llama.cpp's models).
WINDOWED_ENCODERS = {"gemma-embedding": 6, "modern-bert": 3}
DENSE_FIRST = frozenset({"modern-bert"})  # that layer is the first one; in the others it is the last one
WINDOW, WINDOW_PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
# llama.cpp lays these out as if layers had windows, even if the file gives none, and reads from a missing memory.
ALWAYS_WINDOWED = frozenset({"afmoe"})
# Every fourth layer of Llama 4 has no rotary positions, and scales Q by its position instead. llama.cpp fills the input
# for it, and ends the process if no layer reads it, or if a file without windows gives no numbers for it.
LLAMA_4, N_ROTATED = "llama4", 4
# In these, too, Q may grow with the position, and llama.cpp asserts that the second number is not 0.
TEMPERED = frozenset({"deepseek2", "mistral4"})
TEMPERATURE = ("attention.temperature_scale", "attention.temperature_length")

# Tensors that ggml uses in operations that exist only for F32, such as adding them to rows (LLM_TENSOR_INFOS of
# llama.cpp's llama-arch.cpp). The same is true of every norm, bias and scale.
OF_FLOATS = frozenset({
    "altup_correct_scale", "attn_conv_base", "attn_res_score", "attn_sinks", "channel_mix_lerp_k", "channel_mix_lerp_r",
    "ffn_conv_base", "ffn_res_score", "hc_attn_base", "hc_attn_scale", "hc_ffn_base", "hc_ffn_scale",
    "layer_output_scale", "output_hc_base", "output_hc_scale", "output_res_score", "ple_conv1d", "rope_factors_long",
    "rope_factors_short", "rope_freqs", "shortconv.conv", "ssm_a", "ssm_conv1d", "ssm_conv1d_k", "ssm_conv1d_q",
    "ssm_conv1d_v", "ssm_d", "time_mix_a0", "time_mix_decay", "time_mix_first", "time_mix_k_a", "time_mix_k_k",
    "time_mix_lerp_fused", "time_mix_lerp_g", "time_mix_lerp_k", "time_mix_lerp_r", "time_mix_lerp_v",
    "time_mix_lerp_w", "time_mix_lerp_x", "time_mix_ln", "time_mix_r_k", "time_mix_v0", "time_mix_w0", "z_l_init",
})  # fmt: skip
_OF_LAYER = re.compile(r"^(?:\w+\.)?blk\.\d+\.")

# Files that are not models, or not models that can be served, by their `general.type` or their architecture. llama.cpp
# would report that something is missing, or name one of its own options. Decoding with T5 before its encoder has read
# something ends the process.
_PROJECTOR = "a projector (mmproj) of images or audio for another model: only text is served"
_T5 = "a model with an encoder of its own (T5), which is not served"
NO_MODELS = {
    "adapter": "a LoRA adapter, not a model: give its model, and this file with engine.lora",
    "mmproj": _PROJECTOR,
    "clip": _PROJECTOR,
    "imatrix": "an importance matrix for quantization, not a model",
    "controlvector": "a control vector, not a model; control vectors are not served",
    "t5": _T5,
    "t5encoder": _T5,
}
LFS = b"version https://git-lfs"  # how a Git LFS pointer begins

# llama.cpp's tokenizers of these names recurse once for each byte of a word (naive_trie). PLaMo 2's prepares in a time
# that grows with the cube of its length.
SHORT_WORDS = frozenset({"t5", "rwkv", "plamo2"})
N_WORD_MOST = 1024  # most bytes of a word for them; a thread's stack may be of 512 KiB (macOS)

N_FILES_MOST = 65_535  # most files of a split model: gguf-split counts them in 16 bits


def is_of_weights(kind: int) -> bool:
    """Whether weights can have this ggml_type. Two quantized types are for activations only: ggml has no products with
    weights of these types, and would call a function that does not exist.
    """
    if kind in (lib.GGML_TYPE_Q8_1, lib.GGML_TYPE_Q8_K):
        return False
    return kind in (lib.GGML_TYPE_F32, lib.GGML_TYPE_F16, lib.GGML_TYPE_BF16) or bool(lib.ggml_is_quantized(kind))


def is_of_floats(name: str) -> bool:
    """Whether the tensor must be F32. llama.cpp loads it in any type, but ggml then ends the process at the first row
    that it computes.
    """
    stem, _, kind = _OF_LAYER.sub("", name).rpartition(".")
    if kind != "weight":
        return kind in ("bias", "scale") or (f"{stem}.{kind}" if stem else kind) in OF_FLOATS
    return stem in OF_FLOATS or "norm" in stem.rpartition(".")[2]


def check_file(path: str) -> None:
    """Refuse a file that is clearly not a GGUF before the loader touches it: a pipe would block the loader forever.

    Raises: MODEL_LOAD_FAILED.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(fd).st_mode
            begin = os.read(fd, len(LFS)) if stat.S_ISREG(mode) else b""
        finally:
            os.close(fd)
    except OSError as error:
        advice = "; give the path of a GGUF file: nothing is downloaded" if error.errno == errno.ENOENT else ""
        raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: {error.strerror}{advice}", path=path) from error
    if not stat.S_ISREG(mode):
        what = "a folder: give the path of a GGUF file in it" if stat.S_ISDIR(mode) else "not a regular file"
        raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: {what}", path=path)
    if begin[:4] != b"GGUF":
        what = "only the Git LFS pointer to a file (git lfs pull fetches it)" if begin == LFS else "not a GGUF file"
        raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: {what}", path=path)


def refusal(path: str, mark: int) -> UmaError:
    """Make the error for a file that llama.cpp did not load, with its log messages since the line `mark`. The cause is
    a lack of memory, or the file itself.
    """
    error = ErrorCode.INSUFFICIENT_MEMORY if lib.uma_guard_is_short() else ErrorCode.MODEL_LOAD_FAILED
    return UmaError(error, f"{path}: {words_of_failure(mark)}", path=path)


def words_of_failure(mark: int) -> str:
    """Return llama.cpp's message about a call that failed on this thread."""
    return tap.errors(mark) or text(lib.uma_guard_message()) or "llama.cpp refused it"


class TensorPlace(NamedTuple):
    """One tensor of the file. `ne` is ggml's order: ne[0] is the row's length."""

    name: str
    type: int
    ne: tuple[int, int, int, int]
    offset: int  # offset from the beginning of its file
    n_bytes: int
    file: int = 0  # index of its file in `Header.paths`, for a model in several files


class Header:
    """Owns a gguf_context per file and a ggml_context of its tensors, which have no data. `close` frees them."""

    def __init__(self, path: str) -> None:
        """`path`: the first file, if the model has several. Raises: MODEL_LOAD_FAILED."""
        self.path = path
        self.paths = [path]
        self._handles: list[Any] = []
        self.contexts: list[Any] = []
        self.tensors: dict[str, TensorPlace] = {}
        self.unread: dict[str, TensorPlace] = {}  # see `leave_out`
        try:
            self._open(path)
            self.meta = self._read_meta()
            self.paths += self._others()
            for other in self.paths[1:]:
                self._open(other)
            for file in range(len(self.paths)):
                self.tensors |= self._read_tensors(file)
            if any(not self.tensor(name) for name in self.tensors):  # bytes that are not text
                raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: a tensor without a legible name", path=path)
        except BaseException:
            self.close()
            raise

    def _open(self, path: str) -> None:
        check_file(path)
        context = ffi.new("struct ggml_context **")
        mark = tap.pump()
        params = ffi.new("struct gguf_init_params *", {"no_alloc": True, "ctx": context})
        handle = lib.gguf_init_from_file(os.fsencode(path), params[0])
        if not handle:
            raise refusal(path, mark)
        self._handles.append(handle)
        self.contexts.append(context[0])

    def _others(self) -> list[str]:
        """The other files of a split model. Raises: MODEL_LOAD_FAILED, as llama.cpp does."""
        n = self.meta.get("split.count", 1)
        if not isinstance(n, int) or n <= 1:
            return []
        if n > N_FILES_MOST:
            raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{self.path}: a model of {n} files", path=self.path)
        if self.meta.get("split.no", 0) != 0:
            raise UmaError(
                ErrorCode.MODEL_LOAD_FAILED,
                f"{self.path}: not the first file of the {n} that the model is split into",
                path=self.path,
            )
        size = len(os.fsencode(self.path)) + 64
        prefix, name = ffi.new("char[]", size), ffi.new("char[]", size)
        if not lib.llama_split_prefix(prefix, size, os.fsencode(self.path), 0, n):
            raise UmaError(
                ErrorCode.MODEL_LOAD_FAILED,
                f"{self.path}: the name of a file of {n} does not end in -00001-of-{n:05}.gguf",
                path=self.path,
            )
        paths = []
        for i in range(1, n):
            lib.llama_split_path(name, size, prefix, i, n)
            paths.append(os.fsdecode(ffi.string(name)))
        return paths

    def check_computable(self) -> None:
        """Refuse files that are not models, and models that load but would end the process when they compute.

        Raises: MODEL_LOAD_FAILED.
        """
        self._check_kind()
        for name, place in self.tensors.items():
            if name.endswith(".weight") and not is_of_weights(place.type):
                kind = text(lib.ggml_type_name(place.type))
                raise self._damaged(f"{name} of type {kind}, which weights cannot have")
            if place.type != lib.GGML_TYPE_F32 and is_of_floats(name):
                raise self._damaged(f"{name} of type {text(lib.ggml_type_name(place.type))}, which must be f32")
        for key, value in self.of_arch().items():
            if key.endswith("epsilon") and not (isinstance(value, (int, float)) and 0.0 <= value < math.inf):
                raise self._damaged(f"{key} of {value}")
        if self.of_arch().get("full_attention_interval") == 0:  # llama.cpp divides by it
            raise self._damaged("full_attention_interval of 0")
        scale, length = map(self.of_arch().get, TEMPERATURE)
        if self.arch in TEMPERED and scale and not _is_positive(length):
            raise self._damaged(f"{TEMPERATURE[1]} of {length}")
        self._check_rope()
        self._check_layers()
        self._check_classifier()
        self._check_words()
        missing = self._missing()
        if missing:
            raise self._damaged(f"missing tensor {missing}")

    def _check_kind(self) -> None:
        for kind in (self.meta.get("general.type"), self.arch):
            if isinstance(kind, str) and kind in NO_MODELS:
                raise self._damaged(NO_MODELS[kind])
        if not self.tensors:
            raise self._damaged("a file without weights, such as a vocabulary alone")

    def _damaged(self, what: str) -> UmaError:
        return UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{self.path}: {what}", path=self.path)

    def _check_rope(self) -> None:
        """Check rotary positions: ggml rotates pairs of a head's elements, and would loop forever if there were none.

        Raises: MODEL_LOAD_FAILED.
        """
        meta = self.of_arch()
        if self.arch in NOT_ROTATED or meta.get("rope.scaling.finetuned") is False:  # Granite's key for "not rotated"
            return
        sections = meta.get("rope.dimension_sections")  # a single number counts for each section
        if self.arch in IN_SECTIONS and not any(_is_positive(n) for n in _listed(sections)[:3]):
            raise self._damaged(f"rope.dimension_sections of {sections}")
        n_embd, n_head = meta.get("embedding_length"), meta.get("attention.head_count")
        length: Value | None = None
        if isinstance(n_embd, int) and isinstance(n_head, int) and n_head > 0:
            length = n_embd // n_head
        length = meta.get("attention.key_length", length)
        n = None if self.arch in NEVER_ROTATED else length
        for kind in ("", "_swa"):  # heads with a window rotate as many elements as the others, unless the file says
            length = meta.get(f"attention.key_length{kind}", length)
            n = meta.get(f"rope.dimension_count{kind}", n)
            if isinstance(n, int) and (n <= 0 or n % 2 or (isinstance(length, int) and n > length)):
                raise self._damaged(f"rope.dimension_count{kind} of {n} in heads of {length}")

    def _check_layers(self) -> None:
        """Check that there are layers of both kinds, for architectures that need both. Raises: MODEL_LOAD_FAILED."""
        layers, window = self._layers(), self.of_arch().get(WINDOW)
        if self.arch in ALWAYS_WINDOWED and not _is_positive(window):
            raise self._damaged(f"{WINDOW} of {window}")
        if self.arch == LLAMA_4 and window == 0:
            raise self._damaged(f"{WINDOW} of 0")
        if self.arch == LLAMA_4 and len(layers) < N_ROTATED:
            raise self._damaged(f"{len(layers)} layers, all with rotary positions")
        if self.arch in HYBRIDS and layers:
            recurrent = {i for i in layers if any(f"blk.{i}.{name}" in self.tensors for name in OF_STATES)}
            if not recurrent:
                raise self._damaged("a hybrid model without recurrent layers")
            if not any(f"blk.{i}.{OF_ATTENTION}" in self.tensors for i in layers if i not in recurrent):
                raise self._damaged("a hybrid model without attention")
        windowed = self._windowed_layers()
        if windowed and len(set(windowed)) < 2:
            raise self._damaged(f"no layers {'without' if windowed[0] else 'with'} a window")

    def _windowed_layers(self) -> list[bool]:
        """Whether each layer of an encoder has a window; empty if there are no windows."""
        meta = self.of_arch()
        if self.arch not in WINDOWED_ENCODERS or (self.arch in DENSE_FIRST and not _is_positive(meta.get(WINDOW))):
            return []
        pattern, layers = meta.get(WINDOW_PATTERN, WINDOWED_ENCODERS[self.arch]), self._layers()
        if isinstance(pattern, list):
            return [i < len(pattern) and bool(pattern[i]) for i in layers]
        if not isinstance(pattern, int) or pattern < 0:
            return []  # llama.cpp refuses it
        dense = 0 if self.arch in DENSE_FIRST else pattern - 1
        return [not pattern or i % pattern != dense for i in layers]

    def _layers(self) -> range:
        """The model's own layers, without those that draft; no more than a damaged file can have."""
        meta = self.of_arch()
        n, n_heads = (meta.get(key, 0) for key in ("block_count", "nextn_predict_layers"))
        if not isinstance(n, int):
            return range(0)
        return range(min(n - n_heads if isinstance(n_heads, int) else n, len(self.tensors)))

    def _check_classifier(self) -> None:
        """Check that a reranker has a classifier. Without one, llama.cpp takes the first hidden states as scores, and
        ends the process if there are fewer of them than labels.

        Raises: MODEL_LOAD_FAILED.
        """
        if self.of_arch().get("pooling_type") != int(lib.LLAMA_POOLING_TYPE_RANK):
            return
        has_labels = len(self.strings(f"{self.arch}.classifier.output_labels")) > 1
        if CLASSIFIER not in self.tensors and (has_labels or DENSE_CLASSIFIER not in self.tensors):
            raise self._damaged(f"a reranker without a classifier ({CLASSIFIER})")

    def _check_words(self) -> None:
        """Check words that would overflow the stack, or keep llama.cpp's tokenizer forever and take all memory: with
        RWKV's, a text may begin like a word without having any word at its beginning.

        Raises: MODEL_LOAD_FAILED.
        """
        kind = self.meta.get("tokenizer.ggml.model")
        if kind not in SHORT_WORDS:
            return
        words = self.strings("tokenizer.ggml.tokens")
        longest = max(map(len, words), default=0)
        if longest > N_WORD_MOST:
            raise self._damaged(f"a word of {longest} bytes in its vocabulary")
        if kind == "rwkv":
            words = [_unescaped(word or b"[EMPTY") for word in words]  # llama.cpp's name for an empty word
            lost = {word[:1] for word in words if word} - set(words)
            if lost:
                raise self._damaged(f"a vocabulary without the byte {min(lost).hex()}, with which a word begins")

    def _missing(self) -> str:
        """Return the first tensor of NEEDS or INDEXER that the file lacks, or ""."""
        for i in self._choosing_layers():
            for name in INDEXER:
                if f"blk.{i}.{name}" not in self.tensors:
                    return f"blk.{i}.{name}"
        if self.arch not in NEEDS:
            return ""
        given, sets = NEEDS[self.arch]
        for name in self.tensors:
            layer = name.removesuffix(given)
            if layer != name and not any(self.tensors.keys() >= {layer + each for each in names} for names in sets):
                return next(layer + each for each in sets[0] if layer + each not in self.tensors)
        return ""

    def _choosing_layers(self) -> list[int]:
        """List the layers that choose positions (INDEXER). Source: llama.cpp's models/glm-dsa.cpp."""
        meta = self.of_arch()
        n_ctx, types = (meta.get(key) for key in ("context_length", "attention.indexer.types"))
        if self.arch != "glm-dsa" or not isinstance(n_ctx, int):
            return []
        layers = self._layers()
        if isinstance(types, list):
            return [i for i, kind in zip(layers, types, strict=False) if kind]
        if types is None and n_ctx >= GLM_5_2_CONTEXT:
            return [i for i in layers if i < 2 or i % 4 == 2]
        return list(layers) if types is None or types else []

    @property
    def n_ctx_trained(self) -> int:
        """The model's trained context; 0: its file does not say."""
        n_trained = self.of_arch().get("context_length")
        return n_trained if isinstance(n_trained, int) and n_trained > 0 else 0

    @property
    def expert_bytes(self) -> int:
        """Bytes of the tensors that hold experts, in all files."""
        return sum(place.n_bytes for place in self.tensors.values() if "_exps" in place.name)

    def leave_out(self, first_layer: int) -> None:
        """Move the tensors of this layer and all after it, which are not read, to `unread`."""
        layers = ((name, name.split(".")) for name in self.tensors)
        unread = {
            name
            for name, (kind, *rest) in layers
            if kind == "blk" and rest and rest[0].isdecimal() and int(rest[0]) >= first_layer
        }
        self.unread = {name: self.tensors[name] for name in unread}
        self.tensors = {name: place for name, place in self.tensors.items() if name not in unread}

    def tensor(self, name: str) -> Any:
        """The ggml_tensor of that name, or NULL."""
        place = self.tensors.get(name)
        return lib.ggml_get_tensor(self.contexts[place.file], name.encode()) if place else ffi.NULL

    def _read_meta(self) -> dict[str, Value]:
        handle = self._handles[0]
        out: dict[str, Value] = {}
        for i in range(int(lib.gguf_get_n_kv(handle))):
            kind = lib.gguf_get_kv_type(handle, i)
            read = _read_array if kind == lib.GGUF_TYPE_ARRAY else _READERS.get(kind)
            value = read(handle, i) if read else None
            if value is not None:
                out[text(lib.gguf_get_key(handle, i))] = value
        return out

    def _read_tensors(self, file: int) -> dict[str, TensorPlace]:
        handle = self._handles[file]
        base = int(lib.gguf_get_data_offset(handle))
        places = {}
        for i in range(int(lib.gguf_get_n_tensors(handle))):
            name = text(lib.gguf_get_tensor_name(handle, i))
            ne = tuple(ffi.unpack(lib.gguf_get_tensor_ne(handle, i), 4))
            offset = base + int(lib.gguf_get_tensor_offset(handle, i))
            places[name] = TensorPlace(
                name,
                int(lib.gguf_get_tensor_type(handle, i)),
                ne,
                offset,
                int(lib.gguf_get_tensor_size(handle, i)),
                file,
            )
        return places

    @property
    def arch(self) -> str:
        return str(self.meta.get("general.architecture", "unknown"))

    def of_arch(self) -> dict[str, Value]:
        """Return the architecture's own metadata, without the prefix in its keys."""
        prefix = self.arch + "."
        return {key.removeprefix(prefix): value for key, value in self.meta.items() if key.startswith(prefix)}

    def strings(self, key: str) -> list[bytes]:
        """Return an array of texts, such as a vocabulary; empty if no array has that name."""
        handle = self._handles[0]
        i = lib.gguf_find_key(handle, key.encode())
        if i < 0 or lib.gguf_get_kv_type(handle, i) != lib.GGUF_TYPE_ARRAY:
            return []
        if lib.gguf_get_arr_type(handle, i) != lib.GGUF_TYPE_STRING:
            return []
        return [ffi.string(lib.gguf_get_arr_str(handle, i, k)) for k in range(int(lib.gguf_get_arr_n(handle, i)))]

    def arrays(self) -> list[str]:
        """Return the metadata keys whose values are arrays."""
        handle = self._handles[0]
        keys = range(int(lib.gguf_get_n_kv(handle)))
        return [
            text(lib.gguf_get_key(handle, i)) for i in keys if lib.gguf_get_kv_type(handle, i) == lib.GGUF_TYPE_ARRAY
        ]

    def drop_arrays(self) -> None:
        """Free what only `strings` and `arrays` read: tens of MB for a large vocabulary."""
        while self._handles:
            lib.gguf_free(self._handles.pop())

    def close(self) -> None:
        self.drop_arrays()
        while self.contexts:
            lib.ggml_free(self.contexts.pop())


def _unescaped(word: bytes) -> bytes:
    """Return the bytes of RWKV's word as llama.cpp reads it (llama_unescape_rwkv_token), wrong digits included."""
    out, at = bytearray(), 0
    while at < len(word):
        byte, at = word[at], at + 1
        if byte != ord("\\"):
            out.append(byte)
            continue
        escaped, at = word[at : at + 1], at + 1
        if escaped == b"x":
            digits, at = word[at : at + 2], at + 2
            if len(digits) == 2:
                high, low = (d - ord("a") + 10 if ord("a") <= d < 0x80 else d - ord("0") for d in digits)
                out.append(((high << 4) + low) % 256)
        else:
            out += {b"t": b"\t", b"n": b"\n", b"r": b"\r"}.get(escaped, escaped)
    return bytes(out)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and value > 0


MOST_READ = 4096  # longest array of numbers that is read: enough for all layers. A vocabulary's arrays are not needed


def _read_array(handle: Any, i: int) -> list[int] | list[float] | list[bool] | None:
    kind = _ARRAYS.get(lib.gguf_get_arr_type(handle, i))
    n = int(lib.gguf_get_arr_n(handle, i))
    if kind is None or n > MOST_READ:
        return None
    if not n:
        return []
    return ffi.unpack(ffi.cast(kind, lib.gguf_get_arr_data(handle, i)), n)  # type: ignore[no-any-return]


_READERS: dict[int, Any] = {
    lib.GGUF_TYPE_UINT8: lib.gguf_get_val_u8,
    lib.GGUF_TYPE_INT8: lib.gguf_get_val_i8,
    lib.GGUF_TYPE_UINT16: lib.gguf_get_val_u16,
    lib.GGUF_TYPE_INT16: lib.gguf_get_val_i16,
    lib.GGUF_TYPE_UINT32: lib.gguf_get_val_u32,
    lib.GGUF_TYPE_INT32: lib.gguf_get_val_i32,
    lib.GGUF_TYPE_UINT64: lib.gguf_get_val_u64,
    lib.GGUF_TYPE_INT64: lib.gguf_get_val_i64,
    lib.GGUF_TYPE_FLOAT32: lib.gguf_get_val_f32,
    lib.GGUF_TYPE_FLOAT64: lib.gguf_get_val_f64,
    lib.GGUF_TYPE_BOOL: lambda handle, i: bool(lib.gguf_get_val_bool(handle, i)),
    lib.GGUF_TYPE_STRING: lambda handle, i: text(lib.gguf_get_val_str(handle, i)),
}

_ARRAYS: dict[int, str] = {
    lib.GGUF_TYPE_UINT8: "uint8_t *",
    lib.GGUF_TYPE_INT8: "int8_t *",
    lib.GGUF_TYPE_UINT16: "uint16_t *",
    lib.GGUF_TYPE_INT16: "int16_t *",
    lib.GGUF_TYPE_UINT32: "uint32_t *",
    lib.GGUF_TYPE_INT32: "int32_t *",
    lib.GGUF_TYPE_UINT64: "uint64_t *",
    lib.GGUF_TYPE_INT64: "int64_t *",
    lib.GGUF_TYPE_FLOAT32: "float *",
    lib.GGUF_TYPE_FLOAT64: "double *",
    lib.GGUF_TYPE_BOOL: "_Bool *",
}
