"""A model's text side alone reads text as the engine does."""

from __future__ import annotations

from contextlib import closing

import pytest

from uma_core.config.options import EngineOptions
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.engine.vocabulary import Vocabulary
from uma_core.errors import ErrorCode, UmaError
from uma_core.models import default_model_path

TEXT = "Der Apfel \u2014 an apple\n\U0001f34e <|im_end|>"


def test_it_is_what_the_engine_has() -> None:
    path = str(default_model_path())
    found = Vocabulary(path)
    with closing(LlamaEngine(path, EngineOptions(model=path, n_ctx=256, n_seq=1, threads=1))) as engine:
        for add_special in (False, True):
            for parse_special in (False, True):
                tokens = found.tokenize(TEXT, add_special, parse_special)
                assert tokens == engine.tokenize(TEXT, add_special, parse_special)
        for token in range(0, engine.n_vocab, 97):
            assert found.piece(token, True) == engine.piece(token, True) and found.piece(token) == engine.piece(token)
        assert found.n_vocab == engine.n_vocab and found.chat_template() == engine.chat_template()
        assert found.fingerprint == engine.info.fingerprint
        assert [found.special(name) for name in ("bos", "eos")] == [engine.special(name) for name in ("bos", "eos")]
        assert found.facts() == engine.facts()


def test_a_file_that_is_no_model_is_refused_as_at_load(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "text.gguf"
    path.write_bytes(b"hello")
    with pytest.raises(UmaError) as caught:
        Vocabulary(str(path))
    assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED
