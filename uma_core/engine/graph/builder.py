"""Nodes that the architecture families put together: norms, products, rotary positions, attention, feed-forward blocks.

Rules: a builder makes one graph of one batch shape; every method appends nodes and returns the last. Tensors are
ggml's, their shapes in ggml's order: (row length, rows, ...). They belong to the graph's context.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from uma_core.engine.graph.adapters import Adapters, Part
from uma_core.engine.graph.attention import Attention, BatchShape
from uma_core.engine.graph.shape import Layer, Scaling, Shape, Unsupported
from uma_core.engine.graph.weights import Weights
from uma_core.engine.lib import ffi, lib
from uma_core.engine.lora import EMBEDDING

MIN_WEIGHT_SUM = 6.103515625e-5  # llama.cpp's clamp of the chosen experts' weights: the smallest normal f16


class Start(NamedTuple):
    """The parameters of a graph that is built."""

    batch: BatchShape
    attention: Attention
    rope_mode: int
    n_ctx_seq: int  # most positions of a sequence


class Experts(NamedTuple):
    """How a family chooses and weighs experts."""

    gating: str = "softmax"  # softmax of all experts; "sigmoid"; "chosen": softmax of the chosen ones
    n_group: int = 0  # experts are in this many groups, ...
    n_group_used: int = 0  # ... of which this many are considered: those with the highest sums of their best two
    is_normed: bool = True  # the chosen experts' weights are scaled to a sum of 1
    gate: Any = lib.ggml_swiglu_split
    has_scales: bool = False  # each expert's result is multiplied by a number of its own


USUAL = Experts()


class Builder:
    """Appends to one graph. Inputs are made by `start`; families call the rest."""

    def __init__(self, context: Any, graph: Any, weights: Weights, shape: Shape, adapters: Adapters) -> None:
        self.context = context
        self.graph = graph
        self.weights = weights
        self.shape = shape
        self._adapters = adapters
        self.scales: dict[
            tuple[int, float], Any
        ] = {}  # inputs (1, n) by adapter and factor: what B (A x) of each row is multiplied with
        self._scales_out: dict[tuple[int, float], Any] = {}  # the same for the rows that want logits
        self._wholes: dict[Any, tuple[Any, Any]] = {}  # by joined matrix: the input, and all its outputs
        self._kv: dict[int, tuple[Any, Any]] = {}  # by the layer that wrote them

    def start(self, start: Start) -> None:
        """Make the inputs."""
        self.n, self.n_out, self.n_span, self._active, self.has_head, self._keeps_all = start.batch
        self.hidden: dict[int, Any] = {}  # (n_embd, rows): a layer's input, or what the head of the vocabulary is given
        self.views: list[Any] = []  # of cells: what a batch's span changes
        self._attention, self.rope_mode = start.attention, start.rope_mode
        self.recurrence = start.attention.recurrence
        self.token = self.input(lib.GGML_TYPE_I32, self.n)
        self.pos = self.input(lib.GGML_TYPE_I32, self.n)
        self.cells = [self.input(lib.GGML_TYPE_I64, self.n * rows.n_head) for rows in start.attention.cells]
        self.out_id = self.input(lib.GGML_TYPE_I32, self.n_out) if 0 < self.n_out < self.n else None
        self.masks = start.attention.masks(self)
        self.rope_factors = self._rope_factors(start.n_ctx_seq > self.shape.scaling.n_ctx_orig)

    def inputs(self) -> list[Any]:
        """Tokens, positions, wanted rows, cells, and masks; None where there is none."""
        return [self.token, self.pos, self.out_id, *self.cells, *self.masks]

    def _rope_factors(self, is_long: bool) -> Any:
        """The numbers by which frequencies are divided, or NULL.

        A LongRoPE model has two lists, one of them for contexts longer than the trained one.
        """
        names = {"rope_freqs.weight": True}
        if self.shape.scaling.is_long:
            names |= {"rope_factors_long.weight": is_long, "rope_factors_short.weight": not is_long}
        rope = next((layer.rope for layer in self.shape.layers if layer.rope), None)
        found = [name for name, is_wanted in names.items() if self.weights.find(name) and is_wanted]
        return (
            self.weights.vector(found[0], rope.n // 2)
            if found and rope and not self.shape.has_own_factors
            else ffi.NULL
        )

    def input(self, kind: int, n: int, n_rows: int = 1) -> Any:
        tensor = lib.ggml_new_tensor_2d(self.context, kind, n, n_rows)
        lib.ggml_set_input(tensor)
        return tensor

    def embed(self) -> Any:
        """(n_embd, n)"""
        x = lib.ggml_get_rows(
            self.context, self.weights.matrix(EMBEDDING, self.shape.n_embd, self.shape.n_vocab), self.token
        )
        for part in self._adapters.of(EMBEDDING, self._active):
            rows = lib.ggml_mul(
                self.context, lib.ggml_get_rows(self.context, part.a, self.token), self._scale(part, self.n)
            )
            x = lib.ggml_add(self.context, x, lib.ggml_mul_mat(self.context, part.b, rows))
        return x

    def norm(self, x: Any, name: str) -> Any:
        block, _, part = name.rpartition(".")
        if part == "attn_norm":
            self.hidden[int(block.removeprefix("blk."))] = x
        weight = self.weights.vector(f"{name}.weight", x.ne[0])
        normed = (lib.ggml_norm if self.shape.has_layer_norm else lib.ggml_rms_norm)(self.context, x, self.shape.eps)
        y = lib.ggml_mul(self.context, normed, weight)
        if not self.shape.has_layer_norm or not self.weights.find(f"{name}.bias"):
            return y
        return lib.ggml_add(self.context, y, self.weights.vector(f"{name}.bias", x.ne[0]))

    def product(self, x: Any, name: str, n_out: int) -> Any:
        """(n_out, rows): a matrix product, plus the bias if the file has one. Other rows may lie between its rows."""
        weight = self.weights.factor(f"{name}.weight", x.ne[0], n_out)
        bias = self.weights.vector(f"{name}.bias", n_out) if self.weights.find(f"{name}.bias") else None
        part = self.weights.part(name)
        if part is None:
            return self._adapted(self._affine(x, weight, bias), x, name)
        known = self._wholes.get(part.whole)
        if known is None or known[0] != x:
            known = self._wholes[part.whole] = x, self._affine(x, part.whole, part.bias)
        y = known[1]
        return self._adapted(lib.ggml_view_2d(self.context, y, n_out, x.ne[1], y.nb[1], part.first * y.nb[0]), x, name)

    def _adapted(self, y: Any, x: Any, name: str) -> Any:
        """y + B (A x), scaled row by row, for each adapter that changes this matrix."""
        for part in self._adapters.of(f"{name}.weight", self._active):
            low = lib.ggml_mul(self.context, lib.ggml_mul_mat(self.context, part.a, x), self._scale(part, x.ne[1]))
            y = lib.ggml_add(self.context, y, lib.ggml_mul_mat(self.context, part.b, low))
        return y

    def _scale(self, part: Part, n_rows: int) -> Any:
        """(1, n_rows): scales of all rows of the batch, or of those that want logits."""
        key = part.which, part.factor
        if key not in self.scales:
            self.scales[key] = self.input(lib.GGML_TYPE_F32, 1, self.n)
        if n_rows == self.n:
            return self.scales[key]
        if key not in self._scales_out:
            self._scales_out[key] = lib.ggml_get_rows(self.context, self.scales[key], self.out_id)
        return self._scales_out[key]

    def _affine(self, x: Any, weight: Any, bias: Any) -> Any:
        y = lib.ggml_mul_mat(self.context, weight, x)
        return lib.ggml_add(self.context, y, bias) if bias is not None else y

    def layer(self, number: int) -> Layer:
        return self.shape.layers[number]

    def heads(self, x: Any, name: str, n_head: int, dim: int) -> Any:
        """(dim, n_head, n)"""
        y = self.product(x, name, n_head * dim)
        return lib.ggml_view_3d(self.context, y, dim, n_head, self.n, dim * y.nb[0], y.nb[1], 0)

    def qkv(self, x: Any, layer: int) -> tuple[Any, Any, Any]:
        """Q, K and V, each (dim, heads, n), from matrices of their own or one for all."""
        p, own = f"blk.{layer}", self.layer(layer)
        sizes = ((own.n_head, own.dim_k), (own.n_head_kv, own.dim_k), (own.n_head_kv, own.dim_v))
        if not self.weights.find(f"{p}.attn_qkv.weight"):
            q, k, v = (self.heads(x, f"{p}.attn_{name}", *size) for name, size in zip("qkv", sizes, strict=True))
            return q, k, v
        y = self.product(x, f"{p}.attn_qkv", sum(n * dim for n, dim in sizes))
        out, first = [], 0
        for n, dim in sizes:
            out.append(lib.ggml_view_3d(self.context, y, dim, n, self.n, dim * y.nb[0], y.nb[1], first * y.nb[0]))
            first += n * dim
        return out[0], out[1], out[2]

    def rope(self, x: Any, layer: int, factors: Any = None) -> Any:
        """Rotate x by its positions. `factors`: used instead of the model's."""
        rope, scaling = self.layer(layer).rope, self.shape.scaling
        if rope is None:
            return x
        scaling = scaling if rope.is_scaled else Scaling(scaling.n_ctx_orig)
        how = (scaling.ext_factor, scaling.attn_factor, scaling.beta_fast, scaling.beta_slow)
        factors = self.rope_factors if factors is None else factors
        return lib.ggml_rope_ext(
            self.context, x, self.pos, factors, rope.n, self.rope_mode, scaling.n_ctx_orig, rope.base, rope.scale, *how
        )

    def attention(self, q: Any, k: Any, v: Any, layer: int, sinks: Any = None) -> Any:
        """Write K and V to their cells, then attend: (dim_v * n_head, n). None if the result is not needed.

        K and V are not used if the layer reads those of an earlier layer; V is not used if it is the beginning of K.
        `sinks`: (n_head), scores that take part without a value.
        """
        own = self.layer(layer)
        if self._attention.is_q_first:
            lib.ggml_build_forward_expand(self.graph, q)
        if own.kv == layer:
            stored = self._stored(k, layer, 0)
            self._kv[layer] = stored, self._stored(v, layer, 1) if own.has_v else stored
        if self.is_last(layer) and not self.n_out:
            return None
        return self._attention.attend(self, q, self._kv[own.kv], layer, sinks)

    def _stored(self, x: Any, layer: int, part: int) -> Any:
        node = self._attention.store(self, x, layer, part)
        lib.ggml_build_forward_expand(self.graph, node)
        return node

    def is_last(self, layer: int) -> bool:
        return layer == self.shape.n_layer - 1

    def wanted(self, x: Any, layer: int) -> Any:
        """Keep, after the last layer's attention, only the rows that want logits, unless all are outputs."""
        return x if self._keeps_all or not self.is_last(layer) else self._chosen(x)

    def _chosen(self, x: Any) -> Any:
        return x if self.out_id is None else lib.ggml_get_rows(self.context, x, self.out_id)

    def add(self, a: Any, b: Any) -> Any:
        return lib.ggml_add(self.context, a, b)

    def scale(self, x: Any, factor: float) -> Any:
        return x if factor == 1.0 else lib.ggml_scale(self.context, x, factor)

    def gated(self, x: Any, prefix: str, gate: Any, suffix: str = "") -> Any:
        """A gated feed-forward block; `gate` is ggml's fused activation, ggml_swiglu_split or ggml_geglu_split."""
        gate_name, up_name = (f"{prefix}.ffn_{name}{suffix}" for name in ("gate", "up"))
        n_ff = self.weights.get(f"{gate_name}.weight").ne[1]
        gate_up = (self.product(x, name, n_ff) for name in (gate_name, up_name))
        return self.product(gate(self.context, *gate_up), f"{prefix}.ffn_down{suffix}", self.shape.n_embd)

    def gated_whole(self, x: Any, prefix: str, gate: Any) -> Any:
        """The same if gate and up are one matrix, ffn_up; `gate` is ggml_swiglu."""
        n_both = self.weights.get(f"{prefix}.ffn_up.weight").ne[1]
        return self.product(
            gate(self.context, self.product(x, f"{prefix}.ffn_up", n_both)), f"{prefix}.ffn_down", self.shape.n_embd
        )

    def experts(self, x: Any, prefix: str, how: Experts = USUAL, scores: Any = None) -> Any:
        """A mixture of gated experts.

        `scores`: (n_expert, n) of the experts, if they are not the router's product with x.
        """
        context, s, n = self.context, self.shape, x.ne[1]
        scores = self.product(x, f"{prefix}.ffn_gate_inp", s.n_expert) if scores is None else scores
        chosen, shares = self._choose(scores, prefix, how)
        x = lib.ggml_reshape_3d(context, x, s.n_embd, 1, n)
        y = self._expert_product(
            self._gated_experts(x, prefix, chosen, how), f"{prefix}.ffn_down_exps", s.n_embd, chosen, how.has_scales
        )
        return self._sum_experts(lib.ggml_mul(context, y, shares), n)

    def _choose(self, scores: Any, prefix: str, how: Experts) -> tuple[Any, Any]:
        """The chosen experts (n_expert_used, n), and their weights (1, n_expert_used, n)."""
        context, s, n = self.context, self.shape, scores.ne[1]
        chances = scores
        if how.gating != "chosen":
            chances = (lib.ggml_soft_max if how.gating == "softmax" else lib.ggml_sigmoid)(context, scores)
        bias = f"{prefix}.exp_probs_b.bias"
        biased = (
            lib.ggml_add(context, chances, self.weights.vector(bias, s.n_expert))
            if self.weights.find(bias)
            else chances
        )
        if how.n_group > 1:
            biased = self._of_best_groups(biased, how)
        chosen = lib.ggml_argsort_top_k(context, biased, s.n_expert_used)
        shares = lib.ggml_get_rows(context, lib.ggml_reshape_3d(context, chances, 1, s.n_expert, n), chosen)
        shares = lib.ggml_reshape_2d(context, shares, s.n_expert_used, n)
        if how.gating == "chosen":
            shares = lib.ggml_soft_max(context, shares)
        if how.is_normed:
            total = lib.ggml_clamp(context, lib.ggml_sum_rows(context, shares), MIN_WEIGHT_SUM, float("inf"))
            shares = lib.ggml_div(context, shares, total)
        shares = lib.ggml_reshape_3d(context, shares, 1, s.n_expert_used, n)
        return chosen, lib.ggml_scale(context, shares, s.expert_scale) if s.expert_scale not in (0.0, 1.0) else shares

    def _of_best_groups(self, chances: Any, how: Experts) -> Any:
        """(n_expert, n): -INFINITY for experts whose group is not among the best."""
        context, n_expert, n = self.context, self.shape.n_expert, chances.ne[1]
        groups = lib.ggml_reshape_3d(context, chances, n_expert // how.n_group, how.n_group, n)
        rows = lib.ggml_reshape_4d(context, groups, 1, groups.ne[0], how.n_group, n)
        two = lib.ggml_get_rows(context, rows, lib.ggml_argsort_top_k(context, groups, 2))
        sums = lib.ggml_sum_rows(context, lib.ggml_reshape_3d(context, two, 2, how.n_group, n))
        best = lib.ggml_argsort_top_k(context, lib.ggml_reshape_2d(context, sums, how.n_group, n), how.n_group_used)
        none = lib.ggml_fill(context, groups, float("-inf"))
        kept = lib.ggml_set_rows(context, none, lib.ggml_get_rows(context, groups, best), best)
        return lib.ggml_reshape_2d(context, kept, n_expert, n)

    def _gated_experts(self, x: Any, prefix: str, chosen: Any, how: Experts) -> Any:
        """(n_ff, n_expert_used, n)"""
        whole = f"{prefix}.ffn_gate_up_exps"
        if not self.weights.find(f"{whole}.weight"):
            n_ff = self.weights.get(f"{prefix}.ffn_gate_exps.weight").ne[1]
            gate, up = (self._expert_product(x, f"{prefix}.ffn_{name}_exps", n_ff, chosen) for name in ("gate", "up"))
            return how.gate(self.context, gate, up)
        n_both = self.weights.get(f"{whole}.weight").ne[1]
        y = self._expert_product(x, whole, n_both, chosen)
        n_ff = n_both // 2
        gate, up = (
            lib.ggml_view_3d(self.context, y, n_ff, y.ne[1], y.ne[2], y.nb[1], y.nb[2], first * y.nb[0])
            for first in (0, n_ff)
        )
        return how.gate(self.context, gate, up)

    def _expert_product(self, x: Any, name: str, n_out: int, chosen: Any, has_scale: bool = False) -> Any:
        context, n_expert = self.context, self.shape.n_expert
        y = lib.ggml_mul_mat_id(context, self.weights.factor(f"{name}.weight", x.ne[0], n_out, n_expert), x, chosen)
        if has_scale and self.weights.find(f"{name}.scale"):
            scales = lib.ggml_reshape_3d(context, self.weights.vector(f"{name}.scale", n_expert), 1, n_expert, 1)
            scales = lib.ggml_repeat_4d(context, scales, 1, n_expert, y.ne[2], 1)
            y = lib.ggml_mul(context, y, lib.ggml_get_rows(context, scales, chosen))
        for part in self._adapters.of(f"{name}.weight", self._active):
            scale = lib.ggml_reshape_3d(context, self._scale(part, x.ne[2]), 1, 1, x.ne[2])
            low = lib.ggml_mul(context, lib.ggml_mul_mat_id(context, part.a, x, chosen), scale)
            y = lib.ggml_add(context, y, lib.ggml_mul_mat_id(context, part.b, low, chosen))
        if not self.weights.find(f"{name}.bias"):
            return y
        bias = self.weights.matrix(f"{name}.bias", n_out, n_expert)
        if bias.type != lib.GGML_TYPE_F32:
            raise Unsupported(f"{name}.bias of this type")
        return lib.ggml_add_id(context, y, bias, chosen)

    def _sum_experts(self, x: Any, n: int) -> Any:
        """(n_embd, n_expert_used, n) -> (n_embd, n)"""
        context, s = self.context, self.shape
        views = [lib.ggml_view_2d(context, x, s.n_embd, n, x.nb[2], i * x.nb[1]) for i in range(s.n_expert_used)]
        out = views[0]
        for view in views[1:]:
            out = lib.ggml_add(context, out, view)
        return out if len(views) > 1 else lib.ggml_cont(context, out)

    def logits(self, x: Any, norm: str = "output_norm") -> Any:
        """(n_vocab, n_out): the product with the head, or with the embedding if the model has no head of its own.

        For a graph without a head (n_embd, n_out).
        """
        x = self.hidden[self.shape.n_layer] = self.norm(x, norm)
        if not self.has_head:
            return x
        if self._keeps_all:
            x = self._chosen(x)
        y = self.product(x, "output" if self.weights.find("output.weight") else "token_embd", self.shape.n_vocab)
        y = self.scale(y, self.shape.logit_scale)
        cap = self.shape.final_softcap
        return (
            lib.ggml_scale(self.context, lib.ggml_tanh(self.context, lib.ggml_scale(self.context, y, 1.0 / cap)), cap)
            if cap
            else y
        )
