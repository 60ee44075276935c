"""Bytes that a plan moves through memory (ΣBMT): weights, experts, KV read and written.

The estimate follows from the GGUF's sizes alone. Experts: n tokens that pick k of E experts each touch
E (1 - (1 - k/E)^n) of them, if they pick independently.
"""

from __future__ import annotations

from uma_core.policy.state import CallReport, DeviceView
from uma_core.types import Phase

TILE_ROWS = 64  # rows of a chunk that share one read of the context


def weights(device: DeviceView, n_tokens: int) -> int:
    """Weight bytes that one call with `n_tokens` tokens reads."""
    if not device.n_expert or not device.expert_bytes:
        return device.weight_bytes
    miss = (1.0 - device.n_expert_used / device.n_expert) ** n_tokens
    return int(device.weight_bytes - device.expert_bytes * miss)


def decode_call(device: DeviceView, n_rows: int, n_kv: int) -> int:
    """Bytes of one decode call whose rows read `n_kv` cells in total, and write one cell each."""
    return weights(device, n_rows) + (n_kv + n_rows) * device.kv_bytes_per_cell


def chunk(device: DeviceView, n_tokens: int, n_past: int) -> int:
    """Bytes of one whole prompt chunk."""
    n_tiles = -(-n_tokens // TILE_ROWS)
    return weights(device, n_tokens) + (n_past * n_tiles + n_tokens) * device.kv_bytes_per_cell


def moved(device: DeviceView, report: CallReport) -> int:
    """Bytes that a call or a run moved. A run's share of its chunk's bytes is its share of the chunk's time."""
    if report.is_full:
        return 0
    if report.phase is Phase.DECODE:
        return decode_call(device, report.n_rows, report.n_kv)
    if not report.n_chunk:
        return chunk(device, report.n_rows, report.n_kv)
    whole = chunk(device, report.n_chunk, report.n_kv)
    return int(whole * report.predicted_ns / report.whole_ns) if report.whole_ns else 0
