"""A model's shape from its metadata, or why this engine does not compute it.

Rules: unknown keys are refused, never ignored. A key that changes the result but that no code here reads would
otherwise lead to fluent nonsense.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from uma_core.engine.header import Header


class Unsupported(Exception):
    """Why the graph engine does not compute a model; the message names what is missing."""


class Rope(NamedTuple):
    """Rotary positions of a layer: ggml_rope_ext's arguments."""

    n: int  # elements of a head that are rotated
    base: float
    scale: float  # factor of positions: 1 / scaling factor
    is_scaled: bool = True  # False: these layers do not have the model's scaling


class Scaling(NamedTuple):
    """How positions beyond the trained context are scaled, in every layer: ggml_rope_ext's arguments."""

    n_ctx_orig: int
    ext_factor: float = 0.0  # 1: YaRN
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    # LongRoPE: frequency factors by the length of the context (tensors rope_factors_long and _short)
    is_long: bool = False


class State(NamedTuple):
    """The state that a recurrent layer keeps of a sequence; see uma_recurrence."""

    n_taps: int  # last rows that the convolution reads beside the present one
    n_channels: int
    n_head: int = 0  # of the recurrence; 0: there is none
    n_head_k: int = 1
    dim_k: int = 0
    dim_v: int = 0
    is_tiled: bool = False
    is_delta: bool = False
    scale: float = 1.0

    @property
    def n_floats(self) -> int:
        return self.n_taps * self.n_channels + self.n_head * self.dim_v * self.dim_k


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention of one layer, or its state if it is recurrent."""

    n_head: int
    n_head_kv: int
    dim_k: int  # of a head of Q and K
    dim_v: int
    rope: Rope | None  # None: positions are not rotated
    kv: int  # the layer that writes the K and V it reads: its own number, or an earlier one
    window: int = 0  # positions that a row sees, its own is the last of them; 0: all
    has_v: bool = True  # False: V is the beginning of K, and only K is stored
    state: State | None = None  # set for a recurrent layer, which has no K and V: its other fields have no meaning

    @property
    def n_share(self) -> int:
        """How many tasks share a KV head that has more query heads than the attention kernel takes at once."""
        group = self.n_head // self.n_head_kv
        return next(n for n in range(1, group + 1) if group % n == 0 and group // n <= MAX_GROUP)

    @property
    def n_embd_out(self) -> int:
        return self.n_head * self.dim_v


@dataclass(frozen=True, slots=True)
class Shape:
    """Counts from the metadata. Fields for some families only have neutral values in the others."""

    arch: str
    layers: tuple[Layer, ...]
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    eps: float
    scaling: Scaling
    n_expert: int
    n_expert_used: int
    expert_scale: float
    scale: float  # factor of attention scores
    softcap: float = 0.0  # soft cap of attention scores; 0: none
    final_softcap: float = 0.0  # soft cap of logits; 0: none
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # factor of the sums that a layer's halves add
    logit_scale: float = 1.0
    # Q grows with log(position / n): the factor, and n; 0: it does not grow
    temperature: tuple[float, int] = (0.0, 0)
    n_embd_layer: int = 0  # length of a token's embedding for each layer; 0: there are none
    has_own_factors: bool = False  # some layers have their own factors of rotary positions: the family asks for them
    has_sinks: bool = False  # every head has a score that takes part without a value
    has_layer_norm: bool = False  # norms subtract the mean and may have a bias; else they are RMS norms
    own: Any = None  # facts of this family alone: its module defines them

    @property
    def n_layer(self) -> int:
        return len(self.layers)

    @property
    def has_states(self) -> bool:
        return any(layer.state for layer in self.layers)

    @property
    def window(self) -> int:
        """The window of all layers that have one; 0: none has."""
        return max(layer.window for layer in self.layers)


N_LAYER_MOST = 512  # llama.cpp's limit: lists for the number in a damaged file could take all memory


class Meta:
    """The architecture's own metadata, by key without its prefix; each read is checked."""

    def __init__(self, header: Header) -> None:
        self.arch = header.arch
        self._values = header.of_arch()
        # the last layers may draft tokens (multi-token prediction): they are not part of the model itself
        self.n_layer = self.number("block_count") - self.number("nextn_predict_layers", 0)
        if self.n_layer > N_LAYER_MOST:
            raise Unsupported(f"block_count of {self.n_layer}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def keys(self) -> set[str]:
        return set(self._values)

    def number(self, key: str, default: int | None = None) -> int:
        """Raises: Unsupported, if the file has no such key and there is no default."""
        return self._int(key, self._values.get(key, default))

    def _int(self, key: str, value: Any) -> int:
        if value is None:
            raise Unsupported(f"a file without {key}")
        if not isinstance(value, int):
            raise Unsupported(f"{key} that is not a whole number")
        if not 0 <= value < 1 << 31:
            raise Unsupported(f"{key} of {value}")
        return value

    def numbers(self, key: str, default: int | None = None) -> list[int]:
        """One number per layer; the file may have one for all."""
        value = self._values.get(key, default)
        if not isinstance(value, list):
            return [self._int(key, value)] * self.n_layer
        if len(value) < self.n_layer:
            raise Unsupported(f"{key} of {len(value)} layers")
        return [self._int(key, each) for each in value[: self.n_layer]]

    def listed(self, key: str) -> list[Any]:
        """Raises: Unsupported, if the file has no such list."""
        value = self._values.get(key)
        if not isinstance(value, list):
            raise Unsupported(f"a file without a list {key}")
        return value

    def flags(self, key: str) -> list[bool] | None:
        """One flag per layer; None if the file has no such list."""
        return [bool(each) for each in self.numbers(key)] if isinstance(self._values.get(key), list) else None

    def real(self, key: str, default: float = 0.0) -> float:
        value = self._values.get(key, default)
        if isinstance(value, (str, list)):
            raise Unsupported(f"{key} that is not a number")
        if not math.isfinite(value):
            raise Unsupported(f"{key} of {value}")
        return float(value)

    def text(self, key: str, default: str) -> str:
        return str(self._values.get(key, default))


KNOWN = frozenset({
    "pooling_type",  # pooling of embeddings: the graph does not depend on it
    "context_length", "embedding_length", "block_count", "nextn_predict_layers", "feed_forward_length", "vocab_size",
    "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.finetuned", "expert_count",
    "expert_used_count",
    "expert_feed_forward_length", "tensor_data_layout",
})  # fmt: skip
MAX_GROUP = 64  # query heads per KV head that the attention kernel takes at once
MAX_DIM = 512
MAX_LATENT = 1024  # longest row of K if V is its beginning
MAX_TAPS = 16  # most taps of a convolution (native/graph/recurrent.c)
DIM_STEP = 16  # dimensions of a recurrence's states are multiples of this
WINDOW_PATTERN = "attention.sliding_window_pattern"
PER_LAYER = {"feed_forward_length", "attention.head_count", "attention.head_count_kv"}  # may be lists in every family


class Rules(NamedTuple):
    """Metadata keys of a family beside KNOWN."""

    keys: frozenset[str] = frozenset()  # further keys that it understands
    lists: frozenset[str] = frozenset()  # keys that may have a value for each layer
    adapt: Callable[[Shape, Meta], Shape] = lambda shape, meta: shape
    has_layer_norm: bool = False


NO_RULES = Rules()


def shape_of(header: Header, rules: Rules = NO_RULES, moe_top_k: int = 0) -> Shape:
    """Raises: Unsupported."""
    meta = Meta(header)
    _check_known(header, meta, rules)
    n_embd = meta.number("embedding_length")
    n_heads = meta.numbers("attention.head_count")
    n_heads_kv = meta.numbers("attention.head_count_kv") if "attention.head_count_kv" in meta else n_heads
    n_expert, n_expert_used = meta.number("expert_count", 0), moe_top_k or meta.number("expert_used_count", 0)
    if n_expert and not 0 < n_expert_used <= n_expert:
        raise Unsupported(f"{n_expert_used} of {n_expert} experts")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise Unsupported("a file without token_embd.weight")
    if meta.n_layer <= 0:
        raise Unsupported("a model without layers")
    dims = [meta.number(f"attention.{part}_length", n_embd // max(1, n_heads[0])) for part in ("key", "value")]
    scaling, rope_scale = _scaling(meta)
    rope = Rope(meta.number("rope.dimension_count", dims[0]), meta.real("rope.freq_base", 10_000.0), rope_scale)
    shape = Shape(
        arch=header.arch,
        layers=tuple(
            Layer(n, n_kv, dims[0], dims[1], rope, i)
            for i, (n, n_kv) in enumerate(zip(n_heads, n_heads_kv, strict=True))
        ),
        n_embd=n_embd,
        n_vocab=embedding.ne[1],
        n_ctx_train=meta.number("context_length"),
        eps=meta.real(_eps_key(rules)),
        scaling=scaling,
        n_expert=n_expert,
        n_expert_used=n_expert_used if n_expert else 0,
        expert_scale=meta.real("expert_weights_scale"),
        scale=1.0 / math.sqrt(max(1, dims[0])),
        has_layer_norm=rules.has_layer_norm,
    )
    shape = rules.adapt(shape, meta)
    for layer in shape.layers:
        if layer.state:
            _check_state(layer.state)
        else:
            _check_layer(layer)
    return shape


def _check_known(header: Header, meta: Meta, rules: Rules) -> None:
    prefix = header.arch + "."
    unknown = sorted(meta.keys() - KNOWN - rules.keys - rules.lists)
    if unknown:
        raise Unsupported(f"metadata {prefix}{unknown[0]}")
    lists = sorted(
        {key.removeprefix(prefix) for key in header.arrays() if key.startswith(prefix)} - rules.lists - PER_LAYER
    )
    if lists:
        raise Unsupported(f"metadata {prefix}{lists[0]} that differs by layer")
    if _eps_key(rules) not in meta:
        raise Unsupported(f"a file without {_eps_key(rules)}" if rules.has_layer_norm else "a norm other than RMS")


def _eps_key(rules: Rules) -> str:
    return "attention.layer_norm_epsilon" if rules.has_layer_norm else "attention.layer_norm_rms_epsilon"


def _check_layer(layer: Layer) -> None:
    n, n_kv = layer.n_head, layer.n_head_kv
    if (
        n_kv < 1
        or n < 1
        or n % n_kv
        or not 0 < layer.dim_v <= MAX_DIM
        or not 0 < layer.dim_k <= (MAX_DIM if layer.has_v else MAX_LATENT)
    ):
        raise Unsupported(f"{n} query heads over {n_kv} KV heads of length {layer.dim_k} and {layer.dim_v}")
    if layer.has_v and layer.dim_k != layer.dim_v:  # no family here has that in llama.cpp, which ends the process
        raise Unsupported("heads whose K and V differ in length")
    if layer.rope is not None and (not 0 < layer.rope.n <= layer.dim_k or layer.rope.n % 2):
        raise Unsupported(f"rotary positions over {layer.rope.n} of {layer.dim_k} elements")


def recurrent(state: State) -> Layer:
    return Layer(0, 0, 0, 0, None, -1, state=state)


def _check_state(state: State) -> None:
    n_taps, n_channels, n, n_k, dim_k, dim_v = state[:6]
    if not 0 < n_taps <= MAX_TAPS or n_channels < 1:
        raise Unsupported(f"a convolution of {n_taps + 1} rows of {n_channels}")
    if n and (n_k < 1 or n % n_k or dim_v < 1 or dim_k % DIM_STEP or not 0 < dim_k <= MAX_DIM):
        raise Unsupported(f"a recurrence of {n} heads over {n_k}, {dim_k} x {dim_v} each")


def _scaling(meta: Meta) -> tuple[Scaling, float]:
    """Return how positions are scaled, and by how much, as in llama.cpp (llama_context's constructor)."""
    kind = meta.text("rope.scaling.type", "linear")
    factor = 1.0 if kind == "none" else trained_factor(meta)
    n_ctx_orig = meta.number("rope.scaling.original_context_length", 0) or meta.number("context_length")
    attn_factor = meta.real("rope.scaling.attn_factor", 1.0)
    if kind in ("none", "linear"):
        return Scaling(n_ctx_orig, attn_factor=attn_factor), 1.0 / factor
    if kind == "longrope":
        if not meta.number("rope.scaling.original_context_length", n_ctx_orig):  # every context is longer than that
            raise Unsupported("rope.scaling.original_context_length of 0")
        return Scaling(n_ctx_orig, attn_factor=attn_factor, is_long=True), 1.0 / factor
    if kind != "yarn":
        raise Unsupported(f"rope scaling {kind}")
    if factor <= 0.0:
        raise Unsupported(f"rope.scaling.factor of {factor}")
    return Scaling(n_ctx_orig, 1.0, attn_factor * yarn_growth(factor, 0.0)), 1.0 / factor


def trained_factor(meta: Meta) -> float:
    """The factor by which positions are divided, in windowed layers of some families even if the scaling is `none`."""
    return meta.real("rope.scaling.factor", meta.real("rope.scale_linear")) or 1.0


def yarn_growth(factor: float, weight: float, own: float = 1.0) -> float:
    """YaRN's growth of Q and K with the scaling factor. `weight`, and `own` if that is not 1, multiply its logarithm.

    ggml's operation multiplies by 1 + 0.1 log(factor) if ext_factor is set; llama.cpp divides by it again. This is done
    in f32, as in llama.cpp: otherwise the last bit would differ.
    """
    one, tenth = np.float32(1.0), np.float32(0.1)
    log = np.log(one / (one / np.float32(factor)))

    def magnitude(multiplier: float) -> Any:
        return one if factor <= 1.0 else tenth * np.float32(multiplier) * log + one

    growth = magnitude(own) / magnitude(weight) if weight else magnitude(1.0)
    return float(growth * (one / (one + tenth * log)))


YARN_KEYS = frozenset(f"rope.scaling.yarn_{key}" for key in ("beta_fast", "beta_slow", "log_multiplier"))
YARN_UNUSED = frozenset(
    f"rope.scaling.yarn_{key}" for key in ("ext_factor", "attn_factor", "beta_fast", "beta_slow", "log_multiplier")
)


def with_yarn(shape: Shape, meta: Meta) -> Shape:
    """Apply YARN_KEYS, for families in which llama.cpp reads them; it ignores them in the others."""
    scaling = shape.scaling
    if not scaling.ext_factor:
        return shape
    scaling = scaling._replace(
        beta_fast=meta.real("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=meta.real("rope.scaling.yarn_beta_slow", 1.0),
    )
    weight = meta.real("rope.scaling.yarn_log_multiplier")
    if weight:
        growth = yarn_growth(trained_factor(meta), weight)
        scaling = scaling._replace(attn_factor=meta.real("rope.scaling.attn_factor", 1.0) * growth)
    return replace(shape, scaling=scaling)


def with_windows(shape: Shape, window: int, windowed: list[bool], rope: Rope | None = None) -> Shape:
    """Make some layers see the last `window` positions only, perhaps with rotary positions of their own."""
    layers = zip(shape.layers, windowed, strict=True)
    return replace(
        shape,
        layers=tuple(
            replace(layer, window=window, rope=rope or layer.rope) if is_windowed else layer
            for layer, is_windowed in layers
        ),
    )


def window_of(meta: Meta, usual: int | None = None) -> int:
    """Positions that rows of windowed layers see. Raises: Unsupported, if they would not even see their own."""
    window = meta.number("attention.sliding_window", usual)
    if not window:
        raise Unsupported("attention.sliding_window of 0")
    return window


def windowed_by(meta: Meta, pattern: int) -> list[bool]:
    """Which layers have a window: those that the file lists, or all but the last of each `pattern`; 0: all."""
    listed = meta.flags(WINDOW_PATTERN)
    if listed is not None:
        return listed
    pattern = meta.number(WINDOW_PATTERN, pattern)
    return [pattern == 0 or layer % pattern < pattern - 1 for layer in range(meta.n_layer)]
