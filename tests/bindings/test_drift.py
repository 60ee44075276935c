"""Corrupted copies of the real cdef are compiled against the real headers and libraries. Each must be caught before it
can do harm.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bindings import build_ffi, compile, generate
from native.build import Native
from native.pin import BuildError
from native.progress import Progress
from native.toolchain import find_toolchain
from uma_core import _llama
from uma_core.engine.selftest import built_with, check_bindings
from uma_core.errors import ErrorCode, UmaError

KEPT_FUNCTIONS = ("llama_version", "ggml_version", "ggml_commit", "llama_n_batch")
Build = Callable[..., Path]


@pytest.fixture(scope="module")
def types_only(cdef: generate.Cdef) -> str:
    """The real cdef without most of its functions: it compiles in a second instead of ten."""
    lines = [(generate.function_name(line), line) for line in cdef.text.splitlines()]
    return "\n".join(line for name, line in lines if name is None or name in KEPT_FUNCTIONS) + "\n"


@pytest.fixture
def build(tmp_path: Path, native: Native, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Compile a cdef into a separate module, as the product's build does, and return its path."""
    monkeypatch.setenv("UMA_BUILD_CACHE", str(tmp_path / "cache"))

    def run(text: str, **baked: str) -> Path:
        values = {**build_ffi.baked_values(native, text), **baked}
        ffi = build_ffi.make_ffi(text, values, generate.CORE_HEADERS, module="_llama")
        source = tmp_path / "_llama.c"
        ffi.emit_c_code(str(source))
        tools = find_toolchain("cpu")
        compiled = compile.compile_unit(
            compile.binding_unit(source, tools, "-O0"), tools.identity, Progress(io.StringIO())
        )
        if not native.is_external:
            (tmp_path / "lib").symlink_to(native.lib_dir)
        compile.link([compiled], native, tmp_path / "_llama.so")
        return tmp_path / "_llama.so"

    return run


def swapped(text: str, struct: str, first: str, second: str) -> str:
    """Exchange two fields of a struct."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if f"struct {struct} {{" in line)
    assert first in lines[at] and second in lines[at]
    lines[at] = lines[at].replace(first, "@").replace(second, first).replace("@", second)
    return "\n".join(lines) + "\n"


def test_the_true_cdef_passes(types_only: str, build: Build) -> None:
    compile.self_test(build(types_only))


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda t: t.replace("uint32_t n_batch;", "", 1),
        lambda t: swapped(t, "llama_context_params", "uint32_t n_ctx;", "int32_t n_threads;"),
        lambda t: t.replace("uint32_t n_ubatch;", "uint64_t n_ubatch;", 1),
    ],
    ids=["field missing", "fields exchanged", "field type"],
)
def test_a_corrupted_type_is_caught(types_only: str, build: Build, corrupt: Callable[[str], str]) -> None:
    text = corrupt(types_only)
    assert text != types_only
    with pytest.raises(BuildError, match="struct llama_context_params differs"):
        compile.self_test(build(text))


def test_all_that_is_corrupted_is_named(types_only: str, build: Build) -> None:
    """Pointers are exchanged, an enum has another value, and the libraries are of another version."""
    pointers = swapped(types_only, "llama_batch", "llama_token * token;", "llama_pos * pos;")
    text = pointers.replace("GGML_TYPE_Q8_0 = 8", "GGML_TYPE_Q8_0 = 5", 1)
    assert text != pointers
    names = ("llama_version", "ggml_version", "ggml_commit")
    with pytest.raises(BuildError) as caught:
        compile.self_test(build(text, **dict.fromkeys(names, "0.0.0-other")))
    assert "struct llama_batch differs" in str(caught.value)
    assert "enum ggml_type differs in GGML_TYPE_Q8_0" in str(caught.value)
    for name in names:
        assert f"{name}: built against 0.0.0-other, loaded" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("llama_n_batch (const struct llama_context * ctx)", "llama_n_batch (const struct llama_model * ctx)"),
        ("llama_n_batch ", "llama_n_batch_of "),
    ],
    ids=["argument type", "unknown function"],
)
def test_a_corrupted_prototype_does_not_compile(types_only: str, build: Build, old: str, new: str) -> None:
    text = types_only.replace(old, new)
    assert text != types_only
    with pytest.raises(BuildError, match="did not compile"):
        build(text)


class Spy:
    """The real module with some attributes replaced."""

    def __init__(self, real: object, **replaced: object) -> None:
        self._real, self._replaced = real, replaced

    def __getattr__(self, name: str) -> object:
        return self._replaced[name] if name in self._replaced else getattr(self._real, name)


def test_the_error_has_its_code_and_says_what_to_do() -> None:
    other = _llama.ffi.new("char[]", b"other")
    with pytest.raises(UmaError, match="install UMA Serve again") as caught:
        check_bindings(_llama.ffi, Spy(_llama.lib, uma_built_ggml_commit=other))
    assert caught.value.error is ErrorCode.BINDINGS_MISMATCH
    assert "ggml_commit" in caught.value.detail["problems"][0]


def test_the_installed_module_passes_and_covers_every_type(cdef: generate.Cdef) -> None:
    check_bindings(_llama.ffi, _llama.lib)
    structs = built_with(_llama.ffi, _llama.lib, "structs").split(";")
    assert set(build_ffi.type_names(cdef.text, "struct", "union")) <= set(structs)
    assert len(structs) >= cdef.n_structs
    assert len(built_with(_llama.ffi, _llama.lib, "enums").split(";")) >= cdef.n_enums


def test_every_struct_with_a_body_has_a_size(cdef: generate.Cdef) -> None:
    for name in build_ffi.type_names(cdef.text, "struct", "union"):
        assert _llama.ffi.sizeof(name) > 0, name


def test_every_enum_member_is_a_constant_of_the_library(cdef: generate.Cdef) -> None:
    for name in build_ffi.type_names(cdef.text, "enum"):
        for member, value in _llama.ffi.typeof(name).relements.items():
            assert getattr(_llama.lib, member) == value


def test_every_constant_can_be_read(cdef: generate.Cdef) -> None:
    names = [line.split()[1] for line in cdef.text.splitlines() if line.startswith("#define")]
    assert all(isinstance(getattr(_llama.lib, name), int) for name in names)
    assert _llama.ffi.string(_llama.lib.GGUF_MAGIC) == b"GGUF"


def test_headers_are_part_of_what_is_baked_in(native: Native) -> None:
    assert built_with(_llama.ffi, _llama.lib, "headers") == build_ffi.headers_digest()
    assert build_ffi.baked_values(replace(native, backend="cuda"), "")["backend"] == "cuda"
