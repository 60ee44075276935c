from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bindings import generate
from bindings.preprocess import Declaration, Macro
from native.build import HEADERS_DIR, ROOT, Native
from uma_core import _llama


def cdef_of(*texts: str, present: set[str] | None = None, macros: list[Macro] | None = None) -> generate.Cdef:
    declarations = [Declaration("a.h", text) for text in texts]
    return generate.generate(declarations, macros or [], lambda names: set(names) if present is None else present)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("int f(int a);", "f"),
        ("extern const char * f(void);", "f"),
        ("struct s f(struct s a, void (*cb)(int));", "f"),
        ("enum e f(void);", "f"),
        ("_Noreturn extern void f(const char * fmt, ...);", "f"),
        ("typedef void (*f)(int);", None),
        ("struct s { void (*f)(int); };", None),
        ("enum e { A = (1), B };", None),
        ("struct s;", None),
        ("static const size_t X = sizeof(struct s);", None),
        ("typedef struct { int a; } s;", None),
    ],
)
def test_functions_are_told_from_the_rest(text: str, name: str | None) -> None:
    assert generate.function_name(text) == name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("extern int f(int * restrict a);", "int f(int * a);"),
        ("_Noreturn extern void f(void);", "void f(void);"),
        ("struct s { int32_t p[64 / sizeof(int32_t)]; };", "struct s { int32_t p[...]; };"),
        ("static const size_t X = sizeof(struct s);", "static const size_t X;"),
        ("int external(int externals);", "int external(int externals);"),
    ],
)
def test_only_what_cffi_cannot_read_is_rewritten(text: str, expected: str) -> None:
    assert generate.rewrite(text) == expected


@pytest.mark.parametrize(
    ("value", "is_function", "line"),
    [
        ("32", False, "#define M ..."),
        ("(-1)", False, "#define M ..."),
        ("0x67676c61u", False, "#define M ..."),
        ("1 << 4", False, "#define M ..."),
        ('"GGUF"', False, "static const char *const M;"),
        ("", False, ""),
        ("extern", False, ""),
        ("1.5f", False, ""),
        ("1", True, ""),
    ],
)
def test_constants_are_bound_and_other_macros_get_a_reason(value: str, is_function: bool, line: str) -> None:
    found, reason = generate.macro_line(Macro("a.h", "M", is_function, value))
    assert found == line
    assert bool(reason) != bool(line)


def test_a_function_that_no_library_exports_is_left_out_and_listed() -> None:
    cdef = cdef_of("int f(void);", "int g(void);", present={"f"})
    assert cdef.text == "int f(void);\n"
    assert [(o.name, o.reason) for o in cdef.omissions] == [("g", "declared, but no library exports it")]


def test_a_declaration_that_cffi_refuses_is_left_out_and_listed() -> None:
    cdef = cdef_of("typedef int number;", "int f(__int128 a);", "number g(number a);")
    assert cdef.text == "typedef int number;\nnumber g(number a);\n"
    assert len(cdef.omissions) == 1
    assert "cffi cannot express it" in cdef.omissions[0].reason


def test_a_repeated_typedef_is_kept_once() -> None:
    assert cdef_of("typedef struct s * t;", "typedef struct s * t;").text == "typedef struct s * t;\n"


def test_the_same_headers_give_the_same_bytes_in_another_process(native: Native, cdef: generate.Cdef) -> None:
    code = (
        "from bindings import generate; from native.build import prepare; print(generate.generate_for(prepare(), "
        "False).digest)"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1] == cdef.digest, done.stderr


def test_the_committed_list_is_up_to_date(cdef: generate.Cdef) -> None:
    assert generate.OMITTED_PATH.read_text(encoding="utf-8") == generate.omitted_page(cdef)


def test_check_mode_writes_nothing_and_fails_on_a_stale_file(
    tmp_path: Path, cdef: generate.Cdef, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "OMITTED_PATH", tmp_path / "OMITTED.md")
    monkeypatch.setattr(generate, "CDEF_PATH", tmp_path / "cdef.h")
    monkeypatch.setattr(generate, "generate_for", lambda *_, **__: cdef)  # it takes three seconds
    assert generate.main(["--check"]) == 1
    assert list(tmp_path.iterdir()) == []
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / "OMITTED.md").write_text("stale")
    assert generate.main(["--check"]) == 1
    assert (tmp_path / "OMITTED.md").read_text() == "stale"
    assert "out of date: OMITTED.md" in capsys.readouterr().err


def test_every_declared_function_is_bound_or_listed(cdef: generate.Cdef) -> None:
    """Counts the declarations in another way than the generator: by the headers' own export macros."""
    declared: set[str] = set()
    for name in generate.CORE_HEADERS:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", (HEADERS_DIR / name).read_text(encoding="utf-8"), flags=re.DOTALL)
        text = re.sub(r"\b(?:GGML_)?DEPRECATED\(", "", text)
        code = "\n".join(line for line in text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#"))
        declared |= set(re.findall(r"\b(?:LLAMA_API|GGML_API|GGML_BACKEND_API)\b[^;{}]*?\b(\w+)\s*\((?!\s*\*)", code))
    assert len(declared) > 900
    listed = {o.name for o in cdef.omissions}
    assert declared - set(cdef.functions) - listed == set()
    assert set(cdef.functions) - declared == set()


def test_every_macro_is_bound_or_listed(cdef: generate.Cdef) -> None:
    listed = {o.name for o in cdef.omissions}
    for name in generate.CORE_HEADERS:
        for macro in re.findall(
            r"^#define\s+(\w+)\s+\(?-?\d", (HEADERS_DIR / name).read_text(encoding="utf-8"), re.MULTILINE
        ):
            assert hasattr(_llama.lib, macro) or macro in listed, macro


def test_every_bound_name_is_in_the_compiled_module(cdef: generate.Cdef) -> None:
    names = set(dir(_llama.lib))
    assert set(cdef.functions) <= names
    assert len(cdef.functions) > 900 and cdef.n_structs > 30 and cdef.n_enums > 40 and cdef.n_constants > 35
