"""Declarations -> the cdef that cffi compiles, plus the list of what is left out and why.

`python -m bindings.generate` writes build/bindings/llama.cdef.h and bindings/OMITTED.md; `--check` only compares.
Rules: deterministic (the same headers and libraries give the same bytes); nothing is kept by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import cffi

from bindings.preprocess import Declaration, Macro, preprocess
from native.build import HEADERS_DIR, ROOT, Native, prepare
from native.pin import BuildError
from native.probe import library_paths, probe

CORE_HEADERS = ("ggml.h", "ggml-alloc.h", "ggml-backend.h", "ggml-cpu.h", "ggml-opt.h", "gguf.h", "llama.h")
BACKEND_HEADERS = {"cuda": "ggml-cuda.h", "metal": "ggml-metal.h", "vulkan": "ggml-vulkan.h"}
CDEF_PATH = ROOT / "build" / "bindings" / "llama.cdef.h"
OMITTED_PATH = ROOT / "bindings" / "OMITTED.md"

_FUNCTION = re.compile(
    r"^(?!typedef|struct \w+ \{|struct \w+;|enum \w* ?\{|enum \w+;|union|static)[^{]*?(\w+) ?\([^{]*\);$"
)
_INTEGER = re.compile(
    r"^[\s()+\-~|&<>]*(0[xX][0-9a-fA-F]+|\d+)[uUlL]*([\s()+\-~|&<>*]|0[xX][0-9a-fA-F]+[uUlL]*|\d+[uUlL]*)*$"
)
_STRING = re.compile(r'^"[^"]*"$')


@dataclass(frozen=True)
class Omission:
    header: str
    name: str
    reason: str


@dataclass(frozen=True)
class Cdef:
    text: str
    functions: tuple[str, ...]
    n_enums: int
    n_structs: int
    n_constants: int
    omissions: tuple[Omission, ...]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def function_name(text: str) -> str | None:
    """Return the name of the function that a declaration declares, else None."""
    match = _FUNCTION.match(text)
    return match[1] if match else None


def rewrite(text: str) -> str:
    """Drop or replace the few constructs that cffi's parser does not accept.

    In API mode, cffi asks the C compiler about each `...`.
    """
    text = re.sub(r"\b(extern|_Noreturn|restrict)\b ?", "", text)
    text = re.sub(r"\[[^\]]*sizeof[^\]]*\]", "[...]", text)
    return re.sub(r"^(static const \w+ \w+) ?=.*;$", r"\1;", text)


def macro_line(macro: Macro) -> tuple[str, str]:
    """(cdef line, reason for omission): exactly one is not empty."""
    if macro.is_function:
        return "", "a macro with parameters: there is no symbol to call"
    if _INTEGER.match(macro.value):
        return f"#define {macro.name} ...", ""
    if _STRING.match(macro.value):
        return f"static const char *const {macro.name};", ""
    if not macro.value:
        return "", "an empty macro (include guard or attribute)"
    return "", f"a macro that is not a constant: `{macro.value[:60]}`"


def generate(
    declarations: Iterable[Declaration], macros: Iterable[Macro], exported: Callable[[list[str]], set[str]]
) -> Cdef:
    """Build the cdef. `exported` gets all function names and returns those that a library exports."""
    declarations = _unique(declarations)
    names = [name for d in declarations if (name := function_name(d.text))]
    present = exported(names)
    lines: list[str] = []
    omissions: list[Omission] = []
    constants = 0
    for macro in macros:
        line, reason = macro_line(macro)
        lines += [line] if line else []
        constants += bool(line)
        omissions += [Omission(macro.header, macro.name, reason)] if reason else []
    for d in declarations:
        name = function_name(d.text)
        if name and name not in present:
            omissions.append(Omission(d.header, name, "declared, but no library exports it"))
        else:
            lines.append(rewrite(d.text))
    refused = _refused(lines)
    omissions += [Omission("", line[:60], f"cffi cannot express it: {why}") for line, why in refused.items()]
    text = "\n".join(line for line in lines if line not in refused) + "\n"
    n_enums, n_structs = (
        len(re.findall(rf"^(?:typedef )?(?:{kind}) \w* ?\{{", text, re.MULTILINE)) for kind in ("enum", "struct|union")
    )
    return Cdef(text, tuple(n for n in names if n in present), n_enums, n_structs, constants, tuple(omissions))


def _unique(declarations: Iterable[Declaration]) -> list[Declaration]:
    """Drop repeated declarations. C11 allows a typedef to be repeated; cffi does not."""
    seen: set[str] = set()
    return [d for d in declarations if not (d.text in seen or seen.add(d.text))]  # type: ignore[func-returns-value]


def _refused(lines: list[str]) -> dict[str, str]:
    """Return the lines that cffi does not parse, with its messages. Usually this costs one parse of everything."""
    try:
        cffi.FFI().cdef("\n".join(lines))
        return {}
    except (cffi.CDefError, cffi.FFIError, NotImplementedError):
        pass
    refused: dict[str, str] = {}
    reader = cffi.FFI()
    for line in lines:
        try:
            reader.cdef(line)
        except (cffi.CDefError, cffi.FFIError, NotImplementedError) as error:
            refused[line] = str(error).splitlines()[0]
    return refused


def exported_by(lib_dir: Path) -> Callable[[list[str]], set[str]]:
    paths = library_paths(lib_dir)
    return lambda names: set(names) - set(probe(paths, names).missing)


def headers_for(backend: str) -> tuple[str, ...]:
    return CORE_HEADERS + ((BACKEND_HEADERS[backend],) if backend in BACKEND_HEADERS else ())


def generate_for(native: Native, with_backend: bool = True) -> Cdef:
    """Return the cdef for these headers and libraries. Without the backend's own header it is the same on every
    platform.
    """
    headers = headers_for(native.backend if with_backend else "cpu")
    declarations, macros = preprocess(HEADERS_DIR, headers)
    return generate(declarations, macros, exported_by(Path(native.lib_dir)))


def omitted_page(cdef: Cdef) -> str:
    """Return the Markdown text of bindings/OMITTED.md."""
    rows = "".join(
        f"| {o.header} | `{o.name}` | {o.reason} |\n" for o in sorted(cdef.omissions, key=lambda o: (o.header, o.name))
    )
    return (
        "# What the bindings leave out\n\n"
        "Generated by `python -m bindings.generate`; do not edit.\n\n"
        f"Read: {', '.join(f'`{h}`' for h in CORE_HEADERS)}.\n"
        f"Bound: {len(cdef.functions)} functions, {cdef.n_structs} structs and unions, {cdef.n_enums} enums, "
        f"{cdef.n_constants} constants.\ncdef sha256: `{cdef.digest}`.\n\n"
        f"| header | name | reason |\n|---|---|---|\n{rows}"
    )


def outputs(native: Native) -> dict[Path, str]:
    """Return every generated file with the text that it must have."""
    whole = generate_for(native)
    common = whole if native.backend == "cpu" else generate_for(native, with_backend=False)
    return {CDEF_PATH: whole.text, OMITTED_PATH: omitted_page(common)}


def stale(files: dict[Path, str]) -> list[Path]:
    return [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bindings.generate", description="Generate the bindings' cdef and bindings/OMITTED.md."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    options = parser.parse_args(arguments)
    try:
        files = outputs(prepare())
    except BuildError as error:
        print(f"uma-serve: {error}", file=sys.stderr)
        return 1
    old = stale(files)
    for path in old:
        if options.check:
            print(f"out of date: {path.relative_to(ROOT)} (run `python -m bindings.generate`)", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], encoding="utf-8")
    return 1 if options.check and old else 0


if __name__ == "__main__":
    sys.exit(main())
