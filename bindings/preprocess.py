"""Turns headers into declarations: preprocesses with empty system headers and no compiler macros, then splits at top
level.

It can be this short because llama.cpp's own macros drop every attribute without __GNUC__, and cffi already knows the
types of the system headers. The result is plain C that cffi reads, except for the few rewrites in `generate`.
"""

from __future__ import annotations

import io
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pcpp

SYSTEM_HEADERS = ("stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h")
_LINE_MARK = re.compile(r'^\s*#\s*(?:line\s+)?\d+\s+"([^"]+)"')


@dataclass(frozen=True)
class Declaration:
    header: str  # file name
    text: str  # one line, single blanks, ends in `;`


@dataclass(frozen=True)
class Macro:
    header: str
    name: str
    is_function: bool
    value: str  # fully expanded, single blanks


class _Preprocessor(pcpp.Preprocessor):
    """Raises an error for an include that cannot be resolved."""

    def on_error(self, file: str, line: int, msg: str) -> None:
        raise ValueError(f"{file}:{line}: {msg}")

    def on_include_not_found(self, is_malformed: bool, is_system_include: bool, curdir: str, includepath: str) -> None:
        raise ValueError(f"header {includepath} is included but was not found")


def preprocess(include_dir: Path, headers: tuple[str, ...]) -> tuple[list[Declaration], list[Macro]]:
    """Read `headers` in order, with the files that they include. The result depends only on the files' text.

    Raises: ValueError for an include that is neither in `include_dir` nor a known system header.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in SYSTEM_HEADERS:
            (Path(folder) / name).touch()
        reader = _Preprocessor()
        reader.line_directive = "#line"
        reader.add_path(str(include_dir))
        reader.add_path(folder)
        builtin = set(reader.macros)
        reader.parse("".join(f'#include "{name}"\n' for name in headers), "all.h")
        sink = io.StringIO()
        reader.write(sink)
    return split(sink.getvalue()), _macros(reader, builtin, include_dir, headers)


def split(text: str) -> list[Declaration]:
    """Cut preprocessed text into top-level declarations."""
    found: list[Declaration] = []
    header, depth, current = "", 0, ""
    for line in text.splitlines():
        mark = _LINE_MARK.match(line)
        if mark:
            header = Path(mark[1]).name
            continue
        for char in line + " ":
            current += char
            depth += (char in "{(") - (char in "})")
            if char == ";" and depth == 0:
                found.append(Declaration(header, " ".join(current.split())))
                current = ""
    if current.strip() or depth:
        raise ValueError(f"the headers end inside a declaration: {current.strip()[:80]!r}")
    return found


def _macros(reader: _Preprocessor, builtin: set[str], include_dir: Path, headers: tuple[str, ...]) -> list[Macro]:
    """Return the macros that the headers define, in the order of their definition, including guards and empty ones."""
    found: list[Macro] = []
    seen: set[str] = set()
    for header in headers:
        text = (include_dir / header).read_text(encoding="utf-8")
        for name in re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", text, re.MULTILINE):
            macro = reader.macros.get(name)
            if macro is None or name in builtin or name in seen:
                continue  # defined only for another platform, or by an earlier header
            seen.add(name)
            tokens = [] if macro.arglist is not None else reader.expand_macros(reader.tokenize(name))
            value = " ".join("".join(token.value for token in tokens).split())
            found.append(Macro(header, name, macro.arglist is not None, value))
    return found
