"""Bytes that a plan moves through memory (ΣBMT): weights, experts, KV read and written.

The estimate follows from the GGUF's sizes alone. Experts: n tokens that pick k of E experts each touch
E (1 - (1 - k/E)^n) of them, if they pick independently.
"""

from __future__ import annotations

from uma_core.policy.state import DeviceView

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
