"""Nodes that the architecture families put together: norms, products, rotary positions, attention, feed-forward blocks.

Rules: a builder makes one graph of one batch shape; every method appends nodes and returns the last. Tensors are ggml's,
their shapes in ggml's order: (row length, rows, ...). They belong to the graph's context.
"""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.adapters import Adapters, Part
from uma_core.engine.graph.attention import Attention, BatchShape
from uma_core.engine.graph.shape import Shape
from uma_core.engine.graph.weights import Weights
from uma_core.engine.lib import ffi, lib
from uma_core.engine.lora import EMBEDDING

MIN_WEIGHT_SUM = 6.103515625e-5  # llama.cpp's clamp of the chosen experts' weights: the smallest normal f16


class Builder:
    """Appends to one graph. Inputs are made by `start`; families call the rest."""

    def __init__(self, context: Any, graph: Any, weights: Weights, shape: Shape, adapters: Adapters) -> None:
        self.context = context
        self.graph = graph
        self.weights = weights
        self.shape = shape
        self._adapters = adapters
        self.scales: dict[tuple[int, float], Any] = {}  # inputs (1, n) by adapter and factor: what B (A x) of each row is multiplied with
        self._scales_out: dict[tuple[int, float], Any] = {}  # the same for the rows that want logits
        self._wholes: dict[Any, tuple[Any, Any]] = {}  # by joined matrix: the input, and all its outputs

    def start(self, batch: BatchShape, attention: Attention, rope_mode: int) -> None:
        """Make the inputs."""
        self.n, self.n_out, self.n_span, self._active = batch
        self.views: list[Any] = []  # of cells: what a batch's span changes
        self._attention, self.rope_mode = attention, rope_mode
        self.token = self.input(lib.GGML_TYPE_I32, self.n)
        self.pos = self.input(lib.GGML_TYPE_I32, self.n)
        self.cell = self.input(lib.GGML_TYPE_I64, self.n * attention.n_ids)
        self.out_id = self.input(lib.GGML_TYPE_I32, self.n_out) if 0 < self.n_out < self.n else None
        self.masks = attention.masks(self)
        factors = "rope_freqs.weight"
        self.rope_factors = self.weights.vector(factors, self.shape.n_rot // 2) if self.weights.find(factors) else ffi.NULL

    def inputs(self) -> list[Any]:
        """In the order of forward.INPUTS, the masks last; None where there is none."""
        return [self.token, self.pos, self.cell, self.out_id, *self.masks]

    def input(self, kind: int, n: int, n_rows: int = 1) -> Any:
        tensor = lib.ggml_new_tensor_2d(self.context, kind, n, n_rows)
        lib.ggml_set_input(tensor)
        return tensor

    def embed(self) -> Any:
        """(n_embd, n)"""
        x = lib.ggml_get_rows(self.context, self.weights.matrix(EMBEDDING, self.shape.n_embd, self.shape.n_vocab), self.token)
        for part in self._adapters.of(EMBEDDING, self._active):
            rows = lib.ggml_mul(self.context, lib.ggml_get_rows(self.context, part.a, self.token), self._scale(part, self.n))
            x = lib.ggml_add(self.context, x, lib.ggml_mul_mat(self.context, part.b, rows))
        return x

    def norm(self, x: Any, name: str) -> Any:
        weight = self.weights.vector(f"{name}.weight", x.ne[0])
        return lib.ggml_mul(self.context, lib.ggml_rms_norm(self.context, x, self.shape.eps), weight)

    def product(self, x: Any, name: str, n_out: int) -> Any:
        """(n_out, rows), rows perhaps with others between them: a matrix product, with the bias that the file may have."""
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
        """(1, n_rows): all rows of the batch, or those that want logits."""
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

    def heads(self, x: Any, name: str, n_head: int) -> Any:
        """(dim, n_head, n)"""
        y, dim = self.product(x, name, n_head * self.shape.dim), self.shape.dim
        return lib.ggml_view_3d(self.context, y, dim, n_head, self.n, dim * y.nb[0], y.nb[1], 0)

    def normed_heads(self, x: Any, name: str, n_head: int) -> Any:
        """`heads`, each with an RMS norm of its own."""
        return self.norm(self.heads(x, name, n_head), f"{name}_norm")

    def rope(self, x: Any, layer: int) -> Any:
        s = self.shape
        scaling = (s.n_rot, self.rope_mode, s.n_ctx_train, *s.rope(layer), 0.0, 1.0, 32.0, 1.0)
        return lib.ggml_rope_ext(self.context, x, self.pos, self.rope_factors, *scaling)

    def attention(self, q: Any, k: Any, v: Any, layer: int) -> Any:
        """Write K and V to their cells, then attend: (dim * n_head, n). None where nobody needs the result."""
        stored = self._stored(k, layer, 0), self._stored(v, layer, 1)
        if self.is_last(layer) and not self.n_out:
            return None
        return self._attention.attend(self, q, stored, layer)

    def _stored(self, x: Any, layer: int, part: int) -> Any:
        node = self._attention.store(self, x, layer, part)
        lib.ggml_build_forward_expand(self.graph, node)
        return node

    def is_last(self, layer: int) -> bool:
        return layer == self.shape.n_layer - 1

    def wanted(self, x: Any, layer: int) -> Any:
        """After the last layer's attention only the rows that want logits go on."""
        return lib.ggml_get_rows(self.context, x, self.out_id) if self.is_last(layer) and self.out_id is not None else x

    def add(self, a: Any, b: Any) -> Any:
        return lib.ggml_add(self.context, a, b)

    def gated(self, x: Any, prefix: str, gate: Any) -> Any:
        """A gated feed-forward block; `gate` is ggml's fused activation, ggml_swiglu_split or ggml_geglu_split."""
        n_ff = self.weights.get(f"{prefix}.ffn_gate.weight").ne[1]
        gate_up = (self.product(x, f"{prefix}.ffn_{name}", n_ff) for name in ("gate", "up"))
        return self.product(gate(self.context, *gate_up), f"{prefix}.ffn_down", self.shape.n_embd)

    def experts(self, x: Any, prefix: str) -> Any:
        """A mixture of gated experts, chosen by softmax; the chosen ones' weights are scaled to a sum of 1."""
        context, s, n = self.context, self.shape, x.ne[1]
        chances = lib.ggml_soft_max(context, self.product(x, f"{prefix}.ffn_gate_inp", s.n_expert))
        chosen = lib.ggml_argsort_top_k(context, chances, s.n_expert_used)
        shares = lib.ggml_get_rows(context, lib.ggml_reshape_3d(context, chances, 1, s.n_expert, n), chosen)
        shares = lib.ggml_reshape_2d(context, shares, s.n_expert_used, n)
        total = lib.ggml_clamp(context, lib.ggml_sum_rows(context, shares), MIN_WEIGHT_SUM, float("inf"))
        shares = lib.ggml_reshape_3d(context, lib.ggml_div(context, shares, total), 1, s.n_expert_used, n)
        if s.expert_scale not in (0.0, 1.0):
            shares = lib.ggml_scale(context, shares, s.expert_scale)
        x = lib.ggml_reshape_3d(context, x, s.n_embd, 1, n)
        n_ff = self.weights.get(f"{prefix}.ffn_gate_exps.weight").ne[1]
        gate, up = (self._expert_product(x, f"{prefix}.ffn_{name}_exps", n_ff, chosen) for name in ("gate", "up"))
        y = self._expert_product(lib.ggml_swiglu_split(context, gate, up), f"{prefix}.ffn_down_exps", s.n_embd, chosen)
        return self._sum_experts(lib.ggml_mul(context, y, shares), n)

    def _expert_product(self, x: Any, name: str, n_out: int, chosen: Any) -> Any:
        context = self.context
        y = lib.ggml_mul_mat_id(context, self.weights.factor(f"{name}.weight", x.ne[0], n_out, self.shape.n_expert), x, chosen)
        for part in self._adapters.of(f"{name}.weight", self._active):
            scale = lib.ggml_reshape_3d(context, self._scale(part, x.ne[2]), 1, 1, x.ne[2])
            low = lib.ggml_mul(context, lib.ggml_mul_mat_id(context, part.a, x, chosen), scale)
            y = lib.ggml_add(context, y, lib.ggml_mul_mat_id(context, part.b, low, chosen))
        return y

    def _sum_experts(self, x: Any, n: int) -> Any:
        """(n_embd, n_expert_used, n) -> (n_embd, n)"""
        context, s = self.context, self.shape
        views = [lib.ggml_view_2d(context, x, s.n_embd, n, x.nb[2], i * x.nb[1]) for i in range(s.n_expert_used)]
        out = views[0]
        for view in views[1:]:
            out = lib.ggml_add(context, out, view)
        return out if len(views) > 1 else lib.ggml_cont(context, out)

    def logits(self, x: Any) -> Any:
        """(n_vocab, n_out): the head, or the embedding where the model has none of its own."""
        x = self.norm(x, "output_norm")
        y = self.product(x, "output" if self.weights.find("output.weight") else "token_embd", self.shape.n_vocab)
        cap = self.shape.final_softcap
        return lib.ggml_scale(self.context, lib.ggml_tanh(self.context, lib.ggml_scale(self.context, y, 1.0 / cap)), cap) if cap else y
