"""C strings, and llama.cpp's log as the bindings give it."""

from __future__ import annotations

import os
from pathlib import Path

from uma_core.engine.lib import ffi, lib, take_log, text
from uma_core.engine.llama.log import ERROR, PIECE_BYTES


def test_a_string_is_copied_and_none_is_empty() -> None:
    borrowed = ffi.new("char[]", b"m\xc3\xb6del")
    found = text(borrowed)
    borrowed[0] = b"x"
    assert found == "mödel" and text(ffi.NULL) == ""


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert text(ffi.new("char[]", b"a\xffb")) == "a\ufffdb"


def test_what_is_logged_is_taken_once_with_its_level(tmp_path: Path) -> None:
    list(take_log())
    path = tmp_path / ("long" * 40)
    params = ffi.new("struct gguf_init_params *", {"no_alloc": True})
    assert not lib.gguf_init_from_file(os.fsencode(path), params[0])
    pieces = list(take_log())
    assert {level for level, _ in pieces} == {ERROR}
    assert "longlonglong" in "".join(piece for _, piece in pieces)
    assert all(len(piece.encode()) <= PIECE_BYTES for _, piece in pieces)
    assert list(take_log()) == []
