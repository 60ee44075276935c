"""Memory for a graph's nodes, and what is left behind if there is not enough."""

from __future__ import annotations

from typing import Any

import pytest

from uma_core.config.options import EngineOptions
from uma_core.engine.graph.device import device_of
from uma_core.engine.graph.workspace import Workspace
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError


def graph_of(context: Any, n: int) -> Any:
    """Return one product of a vector of n floats."""
    graph = lib.ggml_new_graph(context)
    lib.ggml_build_forward_expand(graph, lib.ggml_scale(context, lib.ggml_new_tensor_1d(context, 0, n), 2.0))
    return graph


def test_after_a_graph_that_is_too_large_the_same_one_is_refused_again_and_others_have_room() -> None:
    params = ffi.new("struct ggml_init_params *", {"mem_size": 1 << 20, "no_alloc": True})
    context = lib.ggml_init(params[0])
    space = Workspace(device_of(EngineOptions(n_gpu_layers=0)))
    try:
        large = graph_of(context, 1 << 56)
        for _ in range(2):
            with pytest.raises(UmaError) as caught:
                space.place(large)
            assert caught.value.error is ErrorCode.INSUFFICIENT_MEMORY
            assert space.n_bytes == 0
        space.place(graph_of(context, 64))
        assert space.n_bytes >= 256
    finally:
        space.close()
        lib.ggml_free(context)
