from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from bindings import build_ffi, emit, generate
from native.build import Native
from native.progress import Progress


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and a cdef that is quick to write."""
    monkeypatch.setenv("UMA_BUILD_CACHE", str(tmp_path / "cache"))
    cdef = generate.Cdef("void llama_backend_free(void);\n", (), 0, 0, 0, ())
    monkeypatch.setattr(generate, "generate_for", lambda native: cdef)
    monkeypatch.setattr(build_ffi, "own_cdef", lambda: "int uma_own(void);\n")


def emitted(native: Native) -> tuple[Path, str]:
    sink = io.StringIO()
    return emit.emitted(native, Progress(sink)), sink.getvalue()


def test_the_source_is_written_once_until_something_changes(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    first, said = emitted(native)
    assert "writing" in said and "llama_backend_free()" in first.read_text()
    assert emitted(native) == (first, "")
    monkeypatch.setattr(build_ffi, "own_cdef", lambda: "int uma_other(void);\n")
    second, said = emitted(native)
    assert "writing" in said and "uma_other()" in second.read_text()


@pytest.mark.parametrize("changed", ["headers", "libraries", "version", "cffi"])
def test_whatever_it_follows_from_writes_it_anew(
    native: Native, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    first, _ = emitted(native)
    if changed == "headers":
        (tmp_path / "llama.h").write_text("")
        monkeypatch.setattr(emit, "HEADERS_DIR", tmp_path)
        monkeypatch.setattr(build_ffi, "headers_digest", lambda: "")
    elif changed == "libraries":
        monkeypatch.setattr(emit, "library_paths", lambda folder: [])
    elif changed == "version":
        native = replace(native, llama_version="0.0.0-other")
    else:
        monkeypatch.setattr(emit, "version", lambda name: "0")
    assert emitted(native)[0] != first
