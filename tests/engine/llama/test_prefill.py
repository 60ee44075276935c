"""Prompts that are read in slots of their own."""

import logging
from contextlib import closing

import pytest

from tests.engine.conftest import DRAFT, OPTIONS
from tests.engine.drive import read, tokens_of
from uma_core.engine.llama.engine import LlamaEngine


def test_a_chunk_that_never_began_is_cancelled_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """Its slot does not have the prompt's beginning yet, so llama.cpp would complain about the positions."""
    with closing(LlamaEngine(DRAFT, OPTIONS)) as engine:
        tokens = tokens_of(engine, 150)
        read(engine, 0, tokens[:120])
        for slot in engine.prefill_slots:
            slot.drop()
        assert engine.prefill_open(0, tokens[120:], True)
        assert engine.prefill_run(0, 0, 1, 1).n_pieces == 0
        engine.prefill_close(0)
        engine.pump_log()
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
        expected = read(engine, 1, tokens)
        assert read(engine, 0, tokens[120:]) == expected
