"""Files that llama.cpp loads, and those that it refuses."""

import os
from pathlib import Path

import pytest

from tests.engine.conftest import DRAFT, OPTIONS
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.errors import ErrorCode, UmaError


def test_bad_files_are_coded_errors(tmp_path: pytest.TempPathFactory) -> None:
    good = Path(DRAFT).read_bytes()
    cases = {
        "absent.gguf": None,
        "text.gguf": b"hello",
        "cut.gguf": good[: len(good) // 2],
        "empty.gguf": b"",
        "magic.gguf": b"GGUF" + b"\xff" * 64,
    }
    for name, data in cases.items():
        path = os.path.join(str(tmp_path), name)
        if data is not None:
            with open(path, "wb") as file:
                file.write(data)
        with pytest.raises(UmaError) as caught:
            LlamaEngine(path, OPTIONS)
        assert caught.value.error is ErrorCode.MODEL_LOAD_FAILED, name
