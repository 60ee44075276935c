"""Paged attention, compared with float64: page tables in any order, shared prefixes, prompts and single rows in one
batch.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uma_core.engine.graph.shape import Layer
from uma_core.engine.graph.store import PAGE
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.params import KV_TYPES

N_PAGES, N_SEQ, N_PAGES_SEQ = 96, 9, 40
# (query heads, KV heads, length of a head)
HEADS = [
    (4, 4, 64),
    (14, 2, 64),
    (8, 1, 128),
    (6, 2, 80),
    (40, 1, 32),
    (192, 1, 32),
    (130, 2, 32),
]  # the last one takes several tasks


class Case:
    """Random K and V in pages, and the operation on them as a graph of one node."""

    def __init__(
        self, heads: tuple[int, int, int], kind: str, seed: int, window: int = 0, softcap: float = 0.0
    ) -> None:
        self.window, self.softcap = window, softcap
        self.n_head, self.n_head_kv, self.dim = heads
        self.draw = np.random.default_rng(seed)
        self.kind = getattr(lib, KV_TYPES[kind])
        values = self.draw.standard_normal((N_PAGES, 2, self.n_head_kv, PAGE, self.dim)).astype(np.float32)
        self.cell_bytes = int(lib.ggml_row_size(self.kind, self.dim))
        self.arena = np.zeros(values.size // self.dim * self.cell_bytes + 64, np.uint8)
        n_rows = values.size // self.dim
        lib.ggml_quantize_chunk(
            self.kind,
            ffi.from_buffer("float *", values),
            ffi.from_buffer("void *", self.arena),
            0,
            n_rows,
            self.dim,
            ffi.NULL,
        )
        exact = np.zeros_like(values)
        to_float = lib.ggml_get_type_traits(self.kind).to_float
        to_float(ffi.from_buffer("void *", self.arena), ffi.from_buffer("float *", exact), values.size)
        self.values = exact.astype(np.float64)
        self.table = np.stack([self.draw.permutation(N_PAGES)[:N_PAGES_SEQ] for _ in range(N_SEQ)]).astype(np.int32)

    def run(self, rows: list[tuple[int, int]], n_threads: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (rows, n_head, dim) as computed, and as it should be. `rows`: (sequence, position)."""
        n, scale = len(rows), self.dim**-0.5
        q = self.draw.standard_normal((n, self.n_head, self.dim)).astype(np.float32)
        page_rows = 2 * self.n_head_kv * PAGE
        n_share = Layer(self.n_head, self.n_head_kv, self.dim, self.dim, None, 0).n_share
        sizes = {
            "n_head": self.n_head,
            "n_head_kv": self.n_head_kv * n_share,
            "n_share": n_share,
            "dim_k": self.dim,
            "dim_v": self.dim,
            "n_threads": n_threads,
        }
        sizes |= {"k_bytes": self.cell_bytes, "v_bytes": self.cell_bytes}
        caps = {"softcap": self.softcap, "window": self.window}
        shape = ffi.new(
            "uma_paged_shape *", {**sizes, **caps, "page_bytes": page_rows * self.cell_bytes, "scale": scale}
        )
        paged = lib.uma_paged_new(shape, n)
        out = np.full((n, self.n_head * self.dim), np.nan, np.float32)
        seq, pos = (np.array(x, np.int32) for x in zip(*rows, strict=True))
        native = ffi.new(
            "uma_rows *",
            {"n": n, "pos": ffi.from_buffer("int32_t *", pos), "seq_id": ffi.from_buffer("int32_t *", seq)},
        )
        assert lib.uma_paged_plan(paged, native, ffi.from_buffer("int32_t *", self.table), N_PAGES_SEQ)
        for _ in range(2):  # as in two layers: one plan serves both
            self._compute(paged, (q, out), page_rows, n_threads)
        lib.uma_paged_free(paged)
        return out.reshape(n, self.n_head, self.dim), np.stack(
            [self._expected(q[i], s, p, scale) for i, (s, p) in enumerate(rows)]
        )

    def _compute(self, paged: object, arrays: tuple[np.ndarray, np.ndarray], page_rows: int, n_threads: int) -> None:
        q, out = arrays
        context = lib.ggml_init(ffi.new("struct ggml_init_params *", {"mem_size": 1 << 20, "no_alloc": True})[0])
        tensor = lib.ggml_new_tensor_3d(context, lib.GGML_TYPE_F32, self.dim, self.n_head, len(q))
        tensor.data = ffi.from_buffer("void *", q)
        sources = [tensor]
        for part in range(2):
            kv = lib.ggml_new_tensor_2d(context, self.kind, self.dim, page_rows)
            kv.data = ffi.from_buffer("char *", self.arena) + part * self.n_head_kv * PAGE * self.cell_bytes
            sources.append(kv)
        args = ffi.new("struct ggml_tensor *[]", sources)
        kernel = ffi.addressof(lib, "uma_paged_attention")
        node = lib.ggml_custom_4d(
            context,
            lib.GGML_TYPE_F32,
            self.n_head * self.dim,
            len(q),
            1,
            1,
            args,
            3,
            kernel,
            lib.GGML_N_TASKS_MAX,
            paged,
        )
        node.data = ffi.from_buffer("void *", out)
        graph = lib.ggml_new_graph(context)
        lib.ggml_build_forward_expand(graph, node)
        backend = lib.ggml_backend_cpu_init()
        lib.ggml_backend_cpu_set_n_threads(backend, n_threads)
        assert lib.ggml_backend_graph_compute(backend, graph) == 0
        lib.ggml_backend_free(backend)
        lib.ggml_free(context)

    def _expected(self, q: np.ndarray, seq: int, pos: int, scale: float) -> np.ndarray:
        """Return (n_head, dim) in float64."""
        pages = self.values[self.table[seq, : pos // PAGE + 1]]  # (pages, K and V, heads, positions, dim)
        seen = slice(max(0, pos + 1 - self.window) if self.window else 0, pos + 1)
        k, v = (
            pages[:, part].transpose(1, 0, 2, 3).reshape(self.n_head_kv, -1, self.dim)[:, seen] for part in range(2)
        )
        out = []
        for h in range(self.n_head):
            scores = k[h * self.n_head_kv // self.n_head] @ q[h].astype(np.float64) * scale
            if self.softcap:
                scores = self.softcap * np.tanh(scores / self.softcap)
            weights = np.exp(scores - scores.max())
            out.append(weights @ v[h * self.n_head_kv // self.n_head] / weights.sum())
        return np.stack(out)


def check(case: Case, rows: list[tuple[int, int]], n_threads: int = 2) -> None:
    ours, expected = case.run(rows, n_threads)
    assert np.abs(ours - expected).max() < 1e-4


@pytest.mark.parametrize("kind", KV_TYPES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("n_threads", [1, 3])
def test_single_rows_of_many_lengths(heads: tuple[int, int, int], kind: str, n_threads: int) -> None:
    if "q" in kind and heads[2] % 32:
        heads = (*heads[:2], 96)
    check(Case(heads, kind, 1), [(0, 0), (1, 62), (2, 63), (3, 64), (4, 777), (5, 2555)], n_threads)


@pytest.mark.parametrize("heads", HEADS)
def test_a_prompt_beside_single_rows(heads: tuple[int, int, int]) -> None:
    prompt = [(3, 100 + i) for i in range(90)]
    check(Case(heads, "f16", 2), [(0, 1000), *prompt, (7, 5)])


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("n_shared", [4, 5, 30])
def test_sequences_that_share_pages(heads: tuple[int, int, int], n_shared: int) -> None:
    case = Case(heads, "f16", 3)
    case.table[1:, :n_shared] = case.table[0, :n_shared]
    check(case, [(i, n_shared * PAGE + 40 * i - 1) for i in range(N_SEQ)])
    case.table[4:, n_shared // 2] = 0  # half of the sequences share less
    check(case, [(i, n_shared * PAGE + 7 * i) for i in range(N_SEQ)])


@pytest.mark.parametrize("kind", KV_TYPES)
@pytest.mark.parametrize("window", [1, 63, 64, 65, 300])
def test_windows(window: int, kind: str) -> None:
    """Alone, within prompts, and in sequences that share pages which only some of them see."""
    case = Case((6, 2, 96), kind, 4, window, softcap=2.0)
    check(case, [(0, 0), (1, window - 1), (2, window), (3, 63), (4, 64), (5, 2555)])
    check(case, [(1, 1000), *((3, 40 + i) for i in range(90)), (7, 700), (8, 5)], 3)
    case.table[1:, :6] = case.table[0, :6]
    check(case, [(i, 6 * PAGE + 40 * i - 100) for i in range(N_SEQ)])


@settings(max_examples=20)
@given(st.data())
def test_any_mixture(data: st.DataObject) -> None:
    window = data.draw(st.sampled_from([0, 0, 1, 100, 400]))
    case = Case(data.draw(st.sampled_from(HEADS[:2])), "f16", data.draw(st.integers(0, 1000)), window)
    groups = data.draw(st.lists(st.tuples(st.integers(1, N_SEQ - 1), st.integers(0, N_PAGES_SEQ)), max_size=4))
    for seq, n in groups:
        case.table[seq, :n] = case.table[seq - 1, :n]
    rows: list[tuple[int, int]] = []
    for seq in data.draw(st.lists(st.integers(0, N_SEQ - 1), unique=True, min_size=1)):
        n = data.draw(st.sampled_from([1, 1, 1, 2, 70]))
        pos = data.draw(st.integers(0, N_PAGES_SEQ * PAGE - n))
        rows += [(seq, pos + i) for i in range(n)]
    check(case, rows, data.draw(st.integers(1, 4)))
