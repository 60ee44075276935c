"""A graph that was laid out for the longest batch, compared with graphs that were built for shorter ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.engine.conftest import DRAFT
from tests.engine.drive import finish, read, tokens_of
from tests.engine.graph.conftest import SMALL
from tests.engine.graph.models import MODELS, Model
from uma_core.engine.api import PrefillStatus
from uma_core.engine.graph.attention import BatchShape, Span
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.graph.fitted import Fitted
from uma_core.engine.graph.forward import Compute
from uma_core.engine.graph.workspace import Workspace
from uma_core.engine.lib import ffi, lib

N_MOST = 96


def tensors(context: Any) -> Iterator[Any]:
    tensor = lib.ggml_get_first_tensor(context)
    while tensor:
        yield tensor
        tensor = lib.ggml_get_next_tensor(context, tensor)


def sizes(context: Any) -> list[tuple[int, ...]]:
    return [(t.op, *ffi.unpack(t.ne, 4), *ffi.unpack(t.nb, 4), t.view_offs) for t in tensors(context)]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_its_sizes_are_those_of_a_graph_built_for_the_batch(
    model: Model, written: Callable[[Model], str], is_stock: bool
) -> None:
    with closing(GraphEngine(written(model), SMALL, is_stock=is_stock)) as engine:
        loaded = engine._loaded
        assert loaded is not None
        compute, room = Compute(engine._backends[0], loaded.attention(N_MOST), []), 768 if is_stock else 0
        space = Workspace(loaded.device)
        fitted = Fitted(loaded.network, loaded.pages, compute, BatchShape(N_MOST, 1, room), space)
        for n, n_span in ((N_MOST, 768), (2, 256), (17, 512), (N_MOST - 1, 768), (64, 512)):
            span = Span(0, n_span if is_stock else 0)
            forward = fitted.fit(n, span)
            own = loaded.network.new_context()
            loaded.network.build(own, BatchShape(n, 1, span.n), compute.attention)
            assert sizes(forward.context) == sizes(own)
            assert all(t.data == t.view_src.data + t.view_offs for t in tensors(forward.context) if t.view_src)
            lib.ggml_free(own)
        fitted.close()
        space.close()
        compute.attention.close()


def test_a_lane_builds_one_graph_for_chunks_of_all_lengths(is_stock: bool) -> None:
    with closing(GraphEngine(DRAFT, SMALL, is_stock=is_stock)) as engine:
        graphs = {slot._graph for slot in engine.prefill_slots}
        for n in (engine.info.n_ubatch, 1, 33, 2):
            read(engine, 0, tokens_of(engine, n))
            engine.kv_truncate(0, 0)
        assert {slot._graph for slot in engine.prefill_slots} == graphs and None not in graphs


def test_a_chunk_without_logits_stops_at_its_last_keys_and_values(is_stock: bool) -> None:
    with closing(GraphEngine(DRAFT, SMALL, is_stock=is_stock)) as engine:
        tokens, n_pieces, answers = tokens_of(engine, 40), {}, {}
        for want in (True, False):
            assert engine.prefill_open(0, tokens[:-1], want)
            outcome = engine.prefill_run(0, 2**62, 1, 0)  # one node a piece
            assert outcome.status is PrefillStatus.DONE
            n_pieces[want] = outcome.n_pieces
            finish(engine.publish_kv(0))
            answers[want] = read(engine, 0, tokens[-1:])
            engine.kv_truncate(0, 0)
        assert n_pieces[False] < n_pieces[True] and answers[False] == answers[True]
