"""Compiles the generated C and our own sources into `uma_core/_llama`, one object at a time, through the build cache.

Rules: llama.cpp's prototypes must match exactly (three -Werror flags); our sources are tuned for this CPU when the
libraries are.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bindings import build_ffi
from bindings.emit import emitted
from native import cache
from native.build import HEADERS_DIR, ROOT, Native, cpu_flags
from native.cmake_build import HIDE_ARCHIVES, n_jobs
from native.pin import BuildError
from native.probe import library_paths
from native.progress import Progress
from native.toolchain import Toolchain, cpu_identity, find_toolchain

BUILD_DIR = ROOT / "build" / "bindings"
STRICT = ["-Werror=incompatible-pointer-types", "-Werror=int-conversion", "-Werror=implicit-function-declaration"]
COMMON = ["-fPIC", "-fvisibility=hidden", "-pthread", "-DNDEBUG"]
STABLE_ABI = "-DPy_LIMITED_API=0x030a0000"  # of the oldest supported Python
# cffi's functions convert arguments and call: optimising them more would double the time to compile them
BINDING_FLAGS = ["-O1", "-Wno-deprecated-declarations", "-Wno-unused-function"]
OWN_FLAGS = ["-O3", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fno-math-errno"]
STANDARD = {".c": ["-std=gnu11", *STRICT], ".cpp": ["-std=gnu++17"]}
INCLUDE_DIRS = (HEADERS_DIR, HEADERS_DIR / "inner", ROOT / "native")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
N_KEPT_OBJECTS = 400  # a few versions of every unit; about 1 MB for the bindings' own, little for the rest


@dataclass(frozen=True)
class Unit:
    """One source file, and how to compile it."""

    source: Path
    command: list[str]  # compiler and flags that change the object
    include: list[str]
    # the Python that alone can load the object, if not every Python can
    python: str = ""


def own_sources(root: Path = ROOT) -> list[Path]:
    """Return our C and C++ files in a stable order: those of all topics, and of the folders whose headers they include,
    directly or not.
    """
    native = root / "native"
    folders = {native / topic for topic in build_ffi.TOPICS if (native / topic).is_dir()}
    while True:
        sources = sorted(p for folder in folders for p in folder.iterdir() if p.suffix in STANDARD)
        included = {path.parent for source in sources for path in include_closure(source, (native,))}
        wider = folders | {folder for folder in included if "headers" not in folder.relative_to(native).parts}
        if wider == folders:
            return sources
        folders = wider


def include_closure(source: Path, folders: Sequence[Path] = INCLUDE_DIRS) -> list[Path]:
    """Return the source and every file of the tree that it includes, directly or not: an object depends on all
    of them.
    """
    found: dict[Path, None] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        for name in _INCLUDE.findall(path.read_text(encoding="utf-8")):
            target = next((c.resolve() for d in (path.parent, *folders) if (c := d / name).is_file()), None)
            waiting += [target] if target else []
    return sorted(found)


def build_module(native: Native, output: Path, progress: Progress) -> None:
    """Generate, compile, link and self-test the module, then put it at `output`. Unchanged objects come from the cache.

    Raises: BuildError with the compiler's message, or the self-test's findings.
    """
    staged = BUILD_DIR / "stage" / output.name
    staged.parent.mkdir(parents=True, exist_ok=True)
    beside = staged.with_name("lib")  # where the module's run path points
    if not native.is_external and beside.resolve() != Path(native.lib_dir):
        beside.unlink(missing_ok=True)
        beside.symlink_to(native.lib_dir)
    link(compile_objects(native, progress), native, staged)
    self_test(staged)
    output.parent.mkdir(parents=True, exist_ok=True)
    scratch = output.with_name(f".{output.name}.new")
    shutil.copyfile(staged, scratch)
    os.replace(scratch, output)  # a process that has mapped the old module keeps its file


def compile_objects(native: Native, progress: Progress) -> list[Path]:
    """Return the objects of the generated bindings and of all our C sources."""
    tools = find_toolchain("cpu", needs_cmake=False)
    units = [binding_unit(emitted(native, progress), tools)]
    units += [own_unit(source, tools, native.is_native_cpu) for source in own_sources()]
    with ThreadPoolExecutor(n_jobs()) as pool:
        objects = list(pool.map(lambda unit: compile_unit(unit, tools.identity, progress), units))
    cache.prune(cache.cache_root(), "objects", N_KEPT_OBJECTS)
    return objects


def binding_unit(source: Path, tools: Toolchain, *flags: str) -> Unit:
    """Return the unit of the C file that cffi wrote. It keeps to CPython's stable ABI, so all versions share an object;
    only debug and free-threaded builds, and other Pythons, need one each.
    """
    is_ordinary = sys.implementation.name == "cpython" and not sys.abiflags
    abi = [STABLE_ABI] if is_ordinary else []
    command = [*tools.cc, *COMMON, *STRICT, *BINDING_FLAGS, *abi, *flags]
    include = [*include_flags(), f"-isystem{sysconfig.get_paths()['include']}"]
    return Unit(source, command, include, "" if is_ordinary else f"{sys.implementation.cache_tag}{sys.abiflags}")


def own_unit(source: Path, tools: Toolchain, is_native_cpu: bool) -> Unit:
    """Return the unit of one of our own sources."""
    compiler = tools.cc if source.suffix == ".c" else tools.cxx
    flags = [*STANDARD[source.suffix], *COMMON, *OWN_FLAGS, *cpu_flags(is_native_cpu)]
    return Unit(source, [*compiler, *flags], include_flags())


def include_flags() -> list[str]:
    system = (HEADERS_DIR, HEADERS_DIR / "inner")  # no warnings from these headers: they are not ours
    return [f"-I{ROOT / 'native'}", *(f"-isystem{folder}" for folder in system)]


def compile_unit(unit: Unit, identity: str, progress: Progress) -> Path:
    """Return the unit's object; from the cache if sources, flags, compiler and CPU are the same."""
    digest = hashlib.sha256()
    for path in include_closure(unit.source):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    facts: dict[str, object] = {
        "content": digest.hexdigest(),
        "name": unit.source.name,
        "command": unit.command,
        "compiler": identity,
        "cpu": cpu_identity(),
        "python": f"{unit.python} {sysconfig.get_platform()}",
    }

    def produce(entry: Path) -> None:
        progress.note(f"compiling {unit.source.name}")
        # no path of this tree in the object: all trees share it
        command = [
            *unit.command,
            *unit.include,
            f"-ffile-prefix-map={ROOT}=.",
            "-c",
            str(unit.source),
            "-o",
            str(entry / "unit.o"),
        ]
        run(command, f"{unit.source.name} did not compile")

    return cache.get_or_build(cache.cache_root(), "objects", facts, produce, progress.note) / "unit.o"


def link(objects: Sequence[Path], native: Native, output: Path) -> None:
    """Link against the libraries by file; at run time they are found beside the module, or in the external install."""
    origin = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    rpath = native.lib_dir if native.is_external else f"{origin}/lib"
    shared = (
        ["-bundle", "-undefined", "dynamic_lookup"]
        if sys.platform == "darwin"
        else ["-shared", "-Wl,--no-undefined-version", HIDE_ARCHIVES]
    )
    strip = ["-Wl,-x"] if sys.platform == "darwin" else ["-Wl,-s"]
    libraries = [str(path) for path in library_paths(Path(native.lib_dir))]
    command = [
        *find_toolchain("cpu", needs_cmake=False).cxx,
        *shared,
        "-pthread",
        *strip,
        *map(str, objects),
        *libraries,
    ]
    run([*command, f"-Wl,-rpath,{rpath}", "-lm", "-o", str(output)], "the module did not link")


def run(command: Sequence[str], failure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{failure}:\n{shlex.join(command)}\n{done.stderr[-6000:]}")
    warnings = [line for line in done.stderr.splitlines() if "warning:" in line]
    if warnings:
        print("\n".join(warnings[:20]), file=sys.stderr)


def self_test(module_path: Path) -> None:
    """Import the fresh module in a child process and run the drift check. Raises: BuildError if the check fails."""
    code = (
        "import importlib.util, sys\n"
        "from uma_core.engine.selftest import check_bindings\n"
        f"spec = importlib.util.spec_from_file_location('_llama', {str(module_path)!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "check_bindings(module.ffi, module.lib)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"the compiled bindings fail their self-test:\n{done.stderr.strip()[-3000:]}")
