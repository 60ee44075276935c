"""Presets: short lists of options for a kind of machine. Values only; values that the user sets take precedence.

Rules: a preset lists only options whose defaults do not suit its machine, and none that depend on the model.
docs/CONFIG.md lists them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NONE = "none"


class Preset(NamedTuple):
    help: str
    values: dict[str, Any]  # option key -> value


PRESETS: dict[str, Preset] = {
    "laptop": Preset(
        "One person, on battery, beside other programs: two sequences in half of the KV memory, a small cache, and "
        "idle memory is given back soon.",
        {
            "engine.n_seq": 2,
            "engine.n_ctx": 8192,
            "engine.metal_keep_alive_s": 30,
            "limits.max_sessions": 16,
            "limits.queue_interactive": 16,
            "limits.queue_background": 64,
            "cache.ram_mb": 128,
            "cache.park_idle_ms": 15_000.0,
        },
    ),
    "workstation": Preset(
        "One person with editors, agents and scripts: contexts of 8,192 tokens for six conversations at once, pastes "
        "of a megabyte, and a cache for a day of conversations.",
        {
            "engine.n_seq": 6,
            "engine.n_ctx": 49_152,
            "limits.max_sessions": 64,
            "limits.max_prompt_bytes": 1 << 20,
            "limits.max_tokens": 8192,
            "cache.ram_mb": 2048,
            "cache.disk_mb": 16_384,
            "cache.park_idle_ms": 300_000.0,
        },
    ),
    "server": Preset(
        "Several users and gateways, for weeks: sixteen sequences of 8,192 tokens, long queues that tell refused "
        "clients when to retry, a time limit on every request, and a log in JSON.",
        {
            "engine.n_seq": 16,
            "engine.n_ctx": 131_072,
            "ipc.backlog": 512,
            "ipc.max_connections": 1024,
            "limits.max_sessions": 512,
            "limits.queue_interactive": 256,
            "limits.queue_background": 1024,
            "limits.max_tokens": 8192,
            "limits.request_timeout_ms": 1_800_000.0,
            "cache.ram_mb": 8192,
            "cache.disk_mb": 65_536,
            "log.format": "json",
        },
    ),
}
