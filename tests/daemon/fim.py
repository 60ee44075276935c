"""A model that fills in."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf

from tests.daemon.support import DRAFT

FIM_TOKENS = {"fim_pre": 5, "fim_suf": 6, "fim_mid": 7}


def write_fim(path: Path) -> Path:
    """Write the small model with tokens for filling in: its header gets three more entries, and one that keeps its data
    aligned.
    """
    data, aligned = DRAFT.read_bytes(), 32
    entries = [(f"tokenizer.ggml.{name}_token_id", token) for name, token in FIM_TOKENS.items()]
    size = sum(16 + len(key) for key, _ in entries)
    entries.append(("x" * (-(size + 16) % aligned or aligned), 0))
    added = b"".join(
        struct.pack(f"<Q{len(key)}sII", len(key), key.encode(), gguf.GGUFValueType.UINT32, value)
        for key, value in entries
    )
    n_entries = struct.unpack_from("<Q", data, 16)[0] + len(entries)
    path.write_bytes(data[:16] + struct.pack("<Q", n_entries) + added + data[24:])
    return path
