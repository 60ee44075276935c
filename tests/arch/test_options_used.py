"""An option that nothing reads is a broken promise."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from uma_core.config.options import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
DECLARATIONS = ROOT / "uma_core" / "config"


@functools.cache
def product_text() -> str:
    files = [
        path
        for path in (ROOT / "uma_core").rglob("*.py")
        if DECLARATIONS not in path.parents and path != ROOT / "uma_core/policy/config.py"
    ]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def is_read(section: str, name: str, readings: set[tuple[str, str]]) -> bool:
    """Look for `config.limits.max_tokens`, `limits.max_tokens`, `options.n_ctx`; the policy reads
    `config.tick_budget_ns`.
    """
    if section == "scheduler":
        plain = name.removesuffix("_ms")
        if any(("config", plain + unit) in readings for unit in ("", "_ns", "_ms")):
            return True
        owners: tuple[str, ...] = ("scheduler",)
    else:
        owners = ("options", section)
    return any(attribute == name and owner.endswith(owners) for owner, attribute in readings)


def test_every_option_is_read_somewhere():
    text = product_text() + _read_inside_config()
    readings = set(re.findall(r"\b(\w+)\.(?=(\w+))", text))  # of `a.b.c`, (a, b) and (b, c)
    unused = [opt.key for opt in OPTIONS if not is_read(opt.section, opt.name, readings)]
    assert not unused, "options that nothing outside config*.py reads:\n  " + "\n  ".join(unused)


def _read_inside_config() -> str:
    """Return the sections' own methods that other files call: the options that these methods read are used."""
    tree = ast.parse((DECLARATIONS / "options.py").read_text(encoding="utf-8"))
    product = product_text()
    methods = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and f".{node.name}(" in product]
    return "\n".join(ast.unparse(method).replace("self.", "options.") for method in methods)
