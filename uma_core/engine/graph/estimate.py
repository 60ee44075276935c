"""What a model would take in the graph engine: everything is laid out as for loading, and no weight is read."""

from __future__ import annotations

from dataclasses import replace

from uma_core.config import EngineOptions
from uma_core.engine.api import MemoryUse
from uma_core.engine.graph.arranged import arrangeable, bytes_with
from uma_core.engine.graph.forward import N_SMALL
from uma_core.engine.graph.load import Loaded, is_arranging, load
from uma_core.engine.graph.paged import NO_PLANS
from uma_core.engine.graph.weights import LOAD_MODES
from uma_core.engine.lib import ffi, lib


def estimate(path: str, options: EngineOptions) -> MemoryUse:
    """Weights, KV, and the graphs of prompt chunks and decode ticks. Blocks: reads the header and vocabulary.

    Raises: MODEL_LOAD_FAILED, CONFIG_INVALID (names what the engine lacks).
    """
    loaded = load(path, replace(options, load_mode="mmap") if options.load_mode in LOAD_MODES else options)
    try:
        n_compute = loaded.n_lanes * graph_bytes(loaded, loaded.n_ubatch, 1)
        n_compute += sum(graph_bytes(loaded, n, n) for n in range(1, min(options.n_seq, N_SMALL) + 1))
        sizes = arrangeable(loaded.header) if is_arranging(loaded.header, options, loaded.kernels) else {}
        return MemoryUse(bytes_with(loaded.header, sizes), loaded.pages.n_bytes, n_compute)
    finally:
        loaded.close()


def graph_bytes(loaded: Loaded, n: int, n_out: int) -> int:
    """Data of one graph's nodes."""
    network = loaded.network
    context = network.new_context()
    allocator = lib.ggml_gallocr_new(lib.ggml_backend_cpu_buffer_type())
    try:
        builder, _ = network.build(context, (n, n_out), loaded.pages.plan, NO_PLANS)
        sizes = ffi.new("size_t[1]")
        lib.ggml_gallocr_reserve_n_size(allocator, builder.graph, ffi.NULL, ffi.NULL, sizes)
        return int(sizes[0])
    finally:
        lib.ggml_gallocr_free(allocator)
        lib.ggml_free(context)
