from __future__ import annotations

from pathlib import Path

import pytest

from bindings.preprocess import Macro, preprocess

HEADER = """
#pragma once
#include <stdint.h>
#ifdef __GNUC__
#define ATTR __attribute__((unused))
#else
#define ATTR
#endif
#define API extern
#define LIMIT (1 << 4)
#define SAME LIMIT
#define NAME "x y"
#define PAD(x) ((x) + 1)
#ifdef _WIN32
#define WINDOWS_ONLY 1
#endif
struct s {
    int a; // a comment; with a semicolon
    int b[LIMIT];
};
API ATTR int f(int a,
               struct s * s);
typedef void (*callback)(int, void *);
"""


def read(tmp_path: Path, text: str = HEADER, **more: str) -> tuple[list[str], list[Macro]]:
    (tmp_path / "a.h").write_text(text)
    for name, content in more.items():
        (tmp_path / f"{name}.h").write_text(content)
    declarations, macros = preprocess(tmp_path, ("a.h",))
    return [d.text for d in declarations], macros


def test_declarations_are_split_joined_and_cleaned(tmp_path: Path) -> None:
    texts, _ = read(tmp_path)
    assert texts == [
        "struct s { int a; int b[(1 << 4)]; };",
        "extern int f(int a, struct s * s);",
        "typedef void (*callback)(int, void *);",
    ]


def test_macros_are_expanded_in_order_and_those_of_other_platforms_left_out(tmp_path: Path) -> None:
    _, macros = read(tmp_path)
    assert [(m.name, m.value, m.is_function) for m in macros] == [
        ("ATTR", "", False),
        ("API", "extern", False),
        ("LIMIT", "(1 << 4)", False),
        ("SAME", "(1 << 4)", False),
        ("NAME", '"x y"', False),
        ("PAD", "", True),
    ]


def test_an_included_header_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text('#include "b.h"\nint g(void);\n')
    (tmp_path / "b.h").write_text("int f(void);\n")
    declarations, _ = preprocess(tmp_path, ("a.h",))
    assert [(d.header, d.text) for d in declarations] == [("b.h", "int f(void);"), ("a.h", "int g(void);")]


def test_an_unknown_include_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing\.h"):
        read(tmp_path, '#include "missing.h"\n')


def test_an_unfinished_declaration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside a declaration"):
        read(tmp_path, "struct s { int a;\n")
