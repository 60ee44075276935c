"""Which module may import which: the dependency directions of docs/SYSTEM_DESIGN.md, enforced."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"uma_core", "uma_ctl", "uma_gateway", "perf", "tests", "native", "bindings", "docs"}
RECIPE = "docs/recipe/"  # scripts that made the demonstration model; not part of the running product

# the parts of the daemon's package that a client may use
CLIENTS = {"uma_core._version", "uma_core.types", "uma_core.errors", "uma_core.protocol", "uma_core.endpoint"}

# package or module -> the modules of ours that it may import, itself included; the longest matching name decides
ALLOWED = {
    "uma_core": {"uma_core._version"},
    "uma_core.__main__": {"uma_core.cli"},
    "uma_core._version": set(),
    "uma_core.types": set(),
    "uma_core.errors": set(),
    "uma_core.clock": set(),
    "uma_core.descriptors": set(),
    "uma_core.waking": set(),
    "uma_core.machine": set(),
    "uma_core.openmp": {"uma_core.machine"},
    "uma_core.own_python": set(),
    "uma_core.regular": set(),
    "uma_core.kept_files": set(),
    "uma_core.measured": {"uma_core.kept_files"},
    "uma_core.suggest": set(),
    "uma_core.peer": {"uma_core.types"},
    "uma_core.endpoint": {"uma_core.peer"},
    "uma_core.config.presets": set(),
    "uma_core.config": set(),
    "uma_core.metrics": set(),
    "uma_core.config.schema": {"uma_core.suggest"},
    "uma_core.config.options": {
        "uma_core.config.presets",
        "uma_core.config.schema",
        "uma_core.policy.config",
        "uma_core.protocol.framing",
        "uma_core.suggest",
        "uma_core.types",
    },
    "uma_core.config.merge": {"uma_core.config.schema", "uma_core.errors", "uma_core.regular", "uma_core.suggest"},
    "uma_core.config.flags": {"uma_core.config.merge", "uma_core.config.schema"},
    "uma_core.config.load": {
        "uma_core.config.presets",
        "uma_core.config.options",
        "uma_core.config.merge",
        "uma_core.policy.pipeline",
    },
    "uma_core.cli": {
        "uma_core",
        "uma_core.config.options",
        "uma_core.config.flags",
        "uma_core.config.load",
        "uma_core.errors",
        "uma_core.log",
        "uma_core.machine",
        "uma_core.openmp",
    },
    "uma_core.allocator": set(),
    "uma_core.threads": {"uma_core.errors"},
    "uma_core.log": {"uma_core.threads"},
    "uma_core.metrics.core": set(),
    "uma_core.metrics.catalog": {"uma_core.metrics.core", "uma_core.errors", "uma_core.types"},
    "uma_core.metrics.export": {"uma_core", "uma_core.metrics.catalog", "uma_core.metrics.core"},
    "uma_core.trace": {
        "uma_core.trace",
        "uma_core.types",
        "uma_core.errors",
        "uma_core.policy",
        "uma_core.threads",
    },
    "uma_core.models": {"uma_core.errors"},
    "uma_core.policy": {"uma_core.policy", "uma_core.types"},
    "uma_core.protocol": {"uma_core.protocol", "uma_core.types", "uma_core.errors", "uma_core.suggest"},
    "uma_core.session": {
        "uma_core.session",
        "uma_core.types",
        "uma_core.errors",
        "uma_core.clock",
        "uma_core.engine.api",
        "uma_core.policy.state",
    },
    "uma_core.engine.api": {"uma_core.types", "uma_core.errors"},
    "uma_core.engine": {
        "uma_core.engine",
        "uma_core._llama",
        "uma_core.types",
        "uma_core.errors",
        "uma_core.clock",
        "uma_core.config.options",
        "uma_core.machine",
        "uma_core.measured",
        "uma_core.models",
        "uma_core.kept_files",
        "uma_core.waking",
    },
    "uma_core.constraint": {"uma_core.constraint", "uma_core.errors", "uma_core.metrics.catalog", "uma_core.types"},
    "uma_core.speculation": {
        "uma_core.speculation",
        "uma_core.types",
        "uma_core.errors",
        "uma_core.clock",
        "uma_core.engine.api",
        "uma_core.engine.lib",
        "uma_core.session",
    },
    "uma_core.cache": {
        "uma_core.cache",
        "uma_core.threads",
        "uma_core.types",
        "uma_core.errors",
        "uma_core.clock",
        "uma_core.metrics.catalog",
        "uma_core.session",
        "uma_core.policy.cost",
        "uma_core.engine.api",
        "uma_core.kept_files",
    },
    "uma_core.executor": {
        "uma_core.suggest",
        "uma_core",
        "uma_core.executor",
        "uma_core.cache",
        "uma_core.measured",
        "uma_core.threads",
        "uma_core.types",
        "uma_core.errors",
        "uma_core.clock",
        "uma_core.metrics.catalog",
        "uma_core.trace",
        "uma_core.session",
        "uma_core.speculation",
        "uma_core.policy",
        "uma_core.engine.api",
    },
    "uma_core.server": {"uma_core"},  # the composition root is there; see below
    "uma_ctl": {"uma_ctl", *CLIENTS},
    "uma_gateway.cluster": {
        "uma_gateway",
        *CLIENTS,
        "uma_core.config.merge",
        "uma_core.machine",
        "uma_core.own_python",
    },
    "uma_gateway": {
        "uma_gateway",
        *CLIENTS,
        *(
            "uma_core.config.schema",
            "uma_core.config.merge",
            "uma_core.config.flags",
            "uma_core.log",
            "uma_core.allocator",
            "uma_core.descriptors",
            "uma_core.regular",
            "uma_core.threads",
        ),  # how options and lines are written
    },
    # pure: how names and bounds may be written, and which grammars the daemon accepts
    "uma_gateway.chat": {
        "uma_gateway.chat",
        "uma_core.constraint.escapes",
        "uma_core.constraint.far",
        "uma_core.constraint.lark",
        "uma_core.constraint.schema",
        "uma_core.own_python",
    },
    "uma_gateway.cluster.router": set(),
    "uma_gateway.cluster.resume": {"uma_core.types"},
}

PURE = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "types",
    "typing",
}
SANS_IO = {*PURE, "json", "re", "struct", "codecs", "unicodedata"}
STDLIB = {
    "uma_core.policy": PURE,
    "uma_core.protocol": SANS_IO,
    "uma_core.types": PURE,
    "uma_core.errors": PURE,
    "uma_core.suggest": {*PURE, "difflib"},
    "uma_core.config.schema": {*PURE, "json", "reprlib"},
    "uma_gateway.cluster.router": PURE,
}

# token ids of large requests, and of inputs to embed, are arrays from the start
ARRAYS = tuple(
    f"uma_core.server.operations.{name}" for name in ("prompt", "large", "helper", "helper_child", "embedding")
)

# third-party package -> where it may be imported
THIRD_PARTY = {
    "numpy": (
        "uma_core.engine",
        "uma_core.executor",
        "uma_core.session",
        "uma_core.speculation",
        "uma_core.cache",
        *ARRAYS,
        "uma_core.constraint",
    ),
    "cffi": ("uma_core.engine.lib", "uma_core.constraint.lib"),
    "llguidance": ("uma_core.constraint.lib",),
    "click": ("uma_core.cli", "uma_core.config.flags", "uma_ctl", "uma_gateway.cli"),
    "yaml": ("uma_core.config.merge", "uma_gateway.cluster.settings"),
    "ray": tuple(f"uma_gateway.cluster.{name}" for name in ("app", "pinned", "ray_transport", "command")),
    "orjson": ("uma_gateway",),
    "starlette": ("uma_gateway",),
    "uvicorn": ("uma_gateway.server",),
    "uvloop": ("uma_gateway.server",),
    "httptools": ("uma_gateway.server",),
    "jinja2": ("uma_core.session", "uma_core.server"),
    "rich": ("uma_ctl",),
    "typing_extensions": ("uma_core.config.schema",),  # for type checkers only
}


def sources() -> Iterator[tuple[str, Path]]:
    for package in ("uma_core", "uma_ctl", "uma_gateway"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(RECIPE):
                yield name.removesuffix(".py").removesuffix("/__init__").replace("/", "."), path


MODULES = dict(sources())


@functools.cache  # three tests read every file
def imports(path: Path) -> frozenset[str]:
    """Return the dotted names that a file imports. `from a import b` counts as a.b if that is a module of ours."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            found |= {
                full if (full := f"{base}.{alias.name}") in MODULES or full == "uma_core._llama" else base
                for alias in node.names
            }
    return frozenset(found)


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def rule(table, module: str):  # type: ignore[no-untyped-def]
    """Return the entry of the longest matching package, or None."""
    names = [
        package for package in table if (module == package if package == "uma_core" else is_within(module, package))
    ]
    return table[max(names, key=len)] if names else None


def may_import(module: str, target: str) -> bool:
    allowed = rule(ALLOWED, module)
    if is_within(module, "uma_core.server"):
        return (
            not is_within(target, "uma_ctl")
            and not is_within(target, "uma_gateway")
            and target not in ("uma_core._llama", "uma_core.engine.lib")
        )
    return any(target == name or (name != "uma_core" and is_within(target, name)) for name in allowed)


@pytest.mark.parametrize("module", MODULES)
def test_only_allowed_parts_of_the_product_are_imported(module):
    assert rule(ALLOWED, module) is not None, f"{module} has no rule: add it to ALLOWED"
    ours = {
        name
        for name in imports(MODULES[module])
        if name.split(".")[0] in ("uma_core", "uma_ctl", "uma_gateway", "perf", "tests", "native", "bindings")
    }
    assert sorted(name for name in ours if not may_import(module, name)) == []


@pytest.mark.parametrize("module", [name for name in MODULES if rule(STDLIB, name) is not None])
def test_pure_layers_import_nothing_impure(module):
    foreign = {name.split(".")[0] for name in imports(MODULES[module])} - {"uma_core", "typing_extensions"}
    assert sorted(foreign - rule(STDLIB, module)) == []


@pytest.mark.parametrize("module", MODULES)
def test_third_party_packages_stay_in_their_places(module):
    for name in (
        {name.split(".")[0] for name in imports(MODULES[module])}
        - {"uma_core", "uma_ctl", "uma_gateway"}
        - sys.stdlib_module_names
    ):
        assert name in THIRD_PARTY, f"{module} imports {name}: no rule allows it"
        assert any(is_within(module, place) for place in THIRD_PARTY[name]), f"{name} may not be imported by {module}"


def test_one_file_imports_the_compiled_bindings():
    assert [module for module, path in MODULES.items() if "uma_core._llama" in imports(path)] == ["uma_core.engine.lib"]


@pytest.mark.parametrize("command", ["uma_ctl.main", "uma_ctl.cli", "uma_core.cli", "uma_gateway.cli"])
def test_clients_and_configuration_load_no_engine(command):
    heavy = ("uma_core._llama", "uma_core.server", "uma_core.engine", "numpy")
    code = f"import {command}, sys; print(*[name for name in sys.modules if name.startswith({heavy})])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []
