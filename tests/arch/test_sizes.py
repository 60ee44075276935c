"""Small files with one role, functions of one screen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("uma_core", "uma_ctl", "bindings", "perf", "docs")
RECIPE = "uma_core/models/recipe/"
MAX_FILE, MAX_FUNCTION, MAX_PARAMETERS = 400, 50, 6

FILES = {
    name: path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not (name := path.relative_to(ROOT).as_posix()).startswith(RECIPE)
}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def n_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count what a caller passes: not self or cls, and not the flags that click passes by name."""
    names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    is_command = any("command" in ast.unparse(decorator) or "option" in ast.unparse(decorator) for decorator in function.decorator_list)
    return 0 if is_command else len(names) - (names[:1] in (["self"], ["cls"])) + len(function.args.kwonlyargs)


@pytest.mark.parametrize("name", FILES)
def test_files_are_short(name):
    assert len(FILES[name].read_text(encoding="utf-8").splitlines()) <= MAX_FILE


@pytest.mark.parametrize("name", FILES)
def test_functions_are_short_and_take_few_parameters(name):
    long = [f"{f.name}: {n} lines" for f in functions(FILES[name]) if (n := (f.end_lineno or 0) - f.lineno + 1) > MAX_FUNCTION]
    wide = [f"{f.name}: {n} parameters" for f in functions(FILES[name]) if (n := n_parameters(f)) > MAX_PARAMETERS]
    assert long + wide == []
