"""Estimates a model's memory in the graph engine: everything is laid out as for loading, but no weight is read."""

from __future__ import annotations

from dataclasses import replace

from uma_core.config.options import EngineOptions
from uma_core.engine.api import MemoryUse
from uma_core.engine.graph.attention import BatchShape
from uma_core.engine.graph.load import Loaded, Wish, is_repacking, load
from uma_core.engine.graph.mapped import LOAD_MODES
from uma_core.engine.graph.repacked import bytes_with, repackable
from uma_core.engine.graph.ticks import tick_shapes
from uma_core.engine.graph.workspace import new_allocator, staged_bytes
from uma_core.engine.lib import ffi, lib


def estimate(path: str, options: EngineOptions, is_stock: bool = False) -> MemoryUse:
    """Estimate weights, KV, and graphs of prompt chunks and decode ticks. Blocks: reads the header and vocabulary.

    Raises: MODEL_LOAD_FAILED, CONFIG_INVALID (names what the engine does not support).
    """
    mapped = replace(options, load_mode="mmap") if options.load_mode in LOAD_MODES else options
    loaded = load(path, mapped, Wish(is_stock=is_stock, is_dry=True))
    try:
        n_compute = loaded.n_prefill_slots * graph_bytes(loaded, loaded.n_ubatch, 1)
        is_mapped = not loaded.device.is_stock
        shapes = tick_shapes(options.n_seq, loaded.ride_rows, loaded.n_verify)
        ticks = [graph_bytes(loaded, n, n_out) for n, n_out in shapes]
        n_compute += max(ticks) if is_mapped else sum(ticks)  # see forward.Forwards
        sizes = repackable(loaded.header) if is_mapped and is_repacking(loaded.header, options, loaded.kernels) else {}
        return MemoryUse(bytes_with(loaded.header, sizes), loaded.pages.n_bytes, n_compute)
    finally:
        loaded.close()


def graph_bytes(loaded: Loaded, n: int, n_out: int) -> int:
    """Bytes of one graph's nodes, and of the host's side of its inputs and logits if the host has its own."""
    network, attention = loaded.network, loaded.attention(0)
    context = network.new_context()
    allocator = None
    try:
        allocator = new_allocator(loaded.device)
        builder, logits, best = network.build(context, BatchShape(n, n_out, attention.largest()), attention)
        sizes = ffi.new("size_t[1]")
        lib.ggml_gallocr_reserve_n_size(allocator, builder.graph, ffi.NULL, ffi.NULL, sizes)
        return int(sizes[0]) + (staged_bytes([*builder.inputs(), logits, best]) if loaded.device.is_stock else 0)
    finally:
        if allocator is not None:
            lib.ggml_gallocr_free(allocator)
        lib.ggml_free(context)
