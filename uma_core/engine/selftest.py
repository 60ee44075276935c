"""Proves at import that the compiled bindings, the headers they came from and the loaded llama.cpp library are one
build.

Reason: cffi checks a struct only when it is first used, and nothing checks the library. Without this check, differences
would show up as a crash or as silently swapped fields.
"""

from __future__ import annotations

from typing import Any

from uma_core.errors import ErrorCode, UmaError

# functions of the library; `uma_built_<name>` holds the string that each returned at build time
_STRINGS = ("llama_version", "ggml_version", "ggml_commit")


def check_bindings(ffi: Any, lib: Any) -> None:
    """Lay out every struct, read every enum, and compare the library's versions with those of the build. Takes a few
    milliseconds.

    Raises: BINDINGS_MISMATCH.
    """
    problems = [*_check_structs(ffi, lib), *_check_enums(ffi, lib), *_check_versions(ffi, lib)]
    if problems:
        raise UmaError(
            ErrorCode.BINDINGS_MISMATCH,
            "the bindings do not fit the llama.cpp library; install UMA Serve again: " + "; ".join(problems[:5]),
            problems=problems[:20],
        )


def built_with(ffi: Any, lib: Any, name: str) -> str:
    """Return one of the strings that the build recorded: llama_version, ggml_version, ggml_commit, backend, headers,
    structs, enums.
    """
    return str(ffi.string(getattr(lib, f"uma_built_{name}")), "utf-8")


def _check_structs(ffi: Any, lib: Any) -> list[str]:
    """cffi compares each field's offset and size with the compiler's when a struct's size is first asked for."""
    problems = []
    for name in built_with(ffi, lib, "structs").split(";"):
        try:
            ffi.sizeof(name)
        except ffi.error as error:
            problems.append(f"{name} differs: {error}")
    return problems


def _check_enums(ffi: Any, lib: Any) -> list[str]:
    problems = []
    for row in built_with(ffi, lib, "enums").split(";"):
        name, _, members = row.partition(":")
        expected = {m: int(v) for m, _, v in (pair.partition("=") for pair in members.split(","))}
        actual = dict(ffi.typeof(name).relements)
        if actual != expected:
            wrong = sorted(m for m in {*actual, *expected} if actual.get(m) != expected.get(m))
            problems.append(f"{name} differs in {', '.join(wrong[:5])}")
    return problems


def _check_versions(ffi: Any, lib: Any) -> list[str]:
    problems = []
    for name in _STRINGS:
        built, loaded = built_with(ffi, lib, name), ffi.string(getattr(lib, name)()).decode()
        if built != loaded:
            problems.append(f"{name}: built against {built}, loaded {loaded}")
    return problems
