"""Moved KV has the bytes that llama.cpp itself would save."""

from contextlib import closing

import numpy as np

from tests.engine.conftest import DRAFT, OPTIONS
from tests.engine.drive import read
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.engine import LlamaEngine

PROMPT = "The Debian project is an association of individuals"


def test_copied_cells_are_what_llama_cpp_would_save() -> None:
    """llama_state_seq_get_data's blob holds the same K and V bytes as our export, layer by layer."""
    with closing(LlamaEngine(DRAFT, OPTIONS)) as engine:
        tokens = np.array(engine.tokenize(PROMPT, True, False), np.int32)
        read(engine, 2, tokens)
        export = engine.export_state(2, len(tokens))
        while not export.step(2**62):
            pass
        assert engine.decoder is not None
        size = lib.llama_state_seq_get_size(engine.decoder.handle, 2)
        buffer = ffi.new("uint8_t[]", size)
        lib.llama_state_seq_get_data(engine.decoder.handle, buffer, size, 2)
        blob = bytes(ffi.buffer(buffer, size))
        n_layer, row = engine.info.n_layer, len(export.blob) // (2 * engine.info.n_layer)
        for part in range(2 * n_layer):
            assert bytes(export.blob[part * row : (part + 1) * row]) in blob
