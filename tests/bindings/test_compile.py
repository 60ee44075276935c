from __future__ import annotations

import io
import platform
import sys
from pathlib import Path

import pytest

from bindings import build_ffi, compile
from native.pin import BuildError
from native.progress import Progress
from native.toolchain import find_toolchain


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMA_BUILD_CACHE", str(tmp_path / "cache"))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_marked_parts_of_our_header_become_the_cdef(tmp_path: Path) -> None:
    path, other = tmp_path / "uma_a.h", tmp_path / "uma_b.h"
    first, second = "/* cdef begin */\nint a(void);\n/* cdef end */", "/* cdef begin */ int b(void); /* cdef end */"
    path.write_text(f"#include <x.h>\n{first}\nhidden\n{second}\n")
    other.write_text("/* cdef begin */\nint c(void);\n/* cdef end */\n")
    assert build_ffi.own_cdef([path, other]) == "int a(void);\nint b(void);\nint c(void);\n"


def test_a_header_without_marks_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "uma.h").write_text("int a(void);\n")
    with pytest.raises(BuildError, match="cdef begin"):
        build_ffi.own_cdef([tmp_path / "uma.h"])


@pytest.mark.parametrize("text", ["", 'a"b\\c', "x" * 250])
def test_c_strings_survive_quoting(text: str) -> None:
    pieces = [line.strip()[1:-1] for line in build_ffi.c_string(text).splitlines()]
    assert "".join(pieces).replace('\\"', '"').replace("\\\\", "\\") == text


def test_type_names_skip_comments_bodies_inside_and_opaque_types() -> None:
    text = "struct a { union { int x; } u; }; struct b; // struct c { }\n"
    text += "typedef struct { int y; } d; enum e { F }; struct a * f(struct b * b);"
    assert build_ffi.type_names(text, "struct", "union") == ["struct a", "d"]
    assert build_ffi.type_names(text, "enum") == ["enum e"]


def test_a_folder_takes_part_once_its_header_is_included(tmp_path: Path) -> None:
    files = {
        "native/graph/a.c": '#include "uma_graph.h"\n',
        "native/graph/uma_graph.h": "",
        "native/fast/k.c": '#include "k.h"\n#include "../deep/d.h"\n',
        "native/fast/k.h": "",
        "native/deep/d.cpp": "",
        "native/deep/d.h": "",
        "native/headers/x.c": "",
    }
    root = write(tmp_path, files)
    assert [p.name for p in compile.own_sources(root)] == ["a.c"]
    write(tmp_path, {"native/graph/uma_graph.h": '#include "fast/k.h"\n'})
    assert sorted(p.name for p in compile.own_sources(root)) == ["a.c", "d.cpp", "k.c"]


def test_the_closure_of_a_source_follows_includes_through_folders(tmp_path: Path) -> None:
    headers = {"inc/b.h": '#include "c.h"\n', "inc/c.h": '#include "b.h"\n', "d.h": ""}
    root = write(tmp_path, {"a.c": '#include "b.h"\n#include <stdio.h>\n', **headers})
    found = compile.include_closure(root / "a.c", (root / "inc",))
    assert [p.name for p in found] == ["a.c", "b.h", "c.h"]


def unit(source: Path) -> compile.Unit:
    return compile.Unit(source, ["cc", "-fPIC", *compile.STRICT], [])


def build(source: Path) -> tuple[Path, str]:
    sink = io.StringIO()
    return compile.compile_unit(unit(source), "cc 1", Progress(sink)), sink.getvalue()


def test_an_unchanged_source_is_compiled_once_and_a_changed_header_compiles_it_again(tmp_path: Path) -> None:
    root = write(tmp_path / "tree", {"a.c": '#include "a.h"\nint a(void) { return A; }\n', "a.h": "#define A 1\n"})
    first, said = build(root / "a.c")
    assert "compiling a.c" in said
    assert build(root / "a.c") == (first, "")
    write(root, {"a.h": "#define A 2\n"})
    second, said = build(root / "a.c")
    assert second != first and "compiling a.c" in said


def test_a_damaged_object_is_compiled_again(tmp_path: Path) -> None:
    root = write(tmp_path / "tree", {"a.c": "int a(void) { return 1; }\n"})
    compiled, _ = build(root / "a.c")
    compiled.write_bytes(b"")
    again, said = build(root / "a.c")
    assert again.stat().st_size > 0 and "unusable" in said


@pytest.mark.parametrize(
    ("cache_tag", "flags", "is_shared"), [("cpython-399", "", True), ("cpython-399", "t", False), ("pypy", "", False)]
)
def test_all_ordinary_pythons_share_the_bindings_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_tag: str, flags: str, is_shared: bool
) -> None:
    tools = find_toolchain("cpu", needs_cmake=False)
    own = compile.binding_unit(tmp_path / "_llama.c", tools)
    monkeypatch.setattr(sys.implementation, "name", cache_tag.partition("-")[0])
    monkeypatch.setattr(sys.implementation, "cache_tag", cache_tag)
    monkeypatch.setattr(sys, "abiflags", flags)
    other = compile.binding_unit(tmp_path / "_llama.c", tools)
    assert ((other.command, other.python) == (own.command, own.python)) == is_shared
    assert ("Py_LIMITED_API" in " ".join(other.command)) == is_shared


def test_a_compiler_error_is_shown_with_the_command(tmp_path: Path) -> None:
    root = write(tmp_path / "tree", {"a.c": "int a(void) { return undeclared(); }\n"})
    with pytest.raises(BuildError, match=r"a\.c did not compile:\ncc (.|\n)*undeclared"):
        build(root / "a.c")


def test_our_sources_are_tuned_only_when_the_libraries_are() -> None:
    assert len(compile.cpu_flags(True)) == 1
    assert compile.cpu_flags(False) == []


def test_a_portable_build_names_the_least_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMA_BUILD", "portable")
    assert compile.cpu_flags(False) == (["-march=x86-64-v2"] if platform.machine() == "x86_64" else [])
