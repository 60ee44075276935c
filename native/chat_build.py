"""Builds the gateway's chat library: llama.cpp's chat templates and parsers behind our C interface, one shared object.

It writes uma_gateway/lib/, which is git-ignored. The library links nothing of llama.cpp: native/chat/stubs.cpp stands
in. Every symbol except uma_chat_* is hidden, so that none can clash with the engine's libraries.
"""

from __future__ import annotations

import hashlib
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from native import cache, fetch
from native.cmake_build import n_jobs
from native.mirror import mirror
from native.pin import BuildError, Pin
from native.progress import Progress
from native.toolchain import find_toolchain

OWN_DIR = Path(__file__).resolve().parent / "chat"
LIBRARY = "libuma_chat.dylib" if sys.platform == "darwin" else "libuma_chat.so"
EXPORTS = "uma_chat_*"
# the files of llama.cpp's common/ that chat.cpp needs, and no more
UPSTREAM = ("chat*.cpp", "peg-parser.cpp", "json*.cpp", "trie.cpp", "unicode.cpp", "jinja/*.cpp", "parsers/*.cpp")
# files that are compiled with a header of ours before them
PREFIXES = {"json-schema-to-grammar.cpp": "capture.h", "jinja/runtime.cpp": "steps.h"}
NEEDED = ("common/", "include/", "ggml/include/", "vendor/nlohmann/", "models/templates/", "LICENSE")
INCLUDED = ("common", "include", "ggml/include", "vendor")
FLAGS = ["-std=gnu++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-DNDEBUG", "-pthread"]
SECTIONS = ["-ffunction-sections", "-fdata-sections"]
OWN_FLAGS = ["-Wall", "-Wextra", "-Wno-unused-parameter"]
N_KEPT_SOURCES, N_KEPT_LIBRARIES = 2, 8  # 4 MB and 2 MB each


@dataclass(frozen=True)
class Unit:
    """One source file of the library."""

    path: Path
    command: list[str]  # compiler and flags that change the object
    content: str  # hash of everything that is compiled into it


def build_chat_library(pin: Pin, progress: Progress, target: Path) -> Path:
    """Compile and link the library, through the cache, and put it into the folder `target`. Raises: BuildError."""
    tools = find_toolchain("cpu", needs_cmake=False)
    root = cache.cache_root()
    facts: dict[str, object] = {
        "source": pin.sha256,
        "own": _own_digest(),
        "upstream": UPSTREAM,
        "compile": [*tools.cxx, *FLAGS, *SECTIONS, *OWN_FLAGS],
        "link": _portable(_link_command(tools.cxx, [], Path(LIBRARY))),
        "compiler": tools.identity,
        "os": f"{platform.system()} {platform.machine()} {' '.join(platform.libc_ver())}",
    }

    def produce(entry: Path) -> None:
        source = chat_source(pin, progress)
        objects = _compile(_units(source, pin, tools.cxx), source, tools.identity, progress)
        (entry / "lib").mkdir()
        _run(_link_command(tools.cxx, objects, entry / "lib" / LIBRARY), "the chat library did not link")

    entry = cache.get_or_build(root, "chat", facts, produce, progress.note)
    cache.prune(root, "chat", N_KEPT_LIBRARIES)
    mirror(entry / "lib", target)
    return target / LIBRARY


def chat_source(pin: Pin, progress: Progress) -> Path:
    """Return the cached folder with the source that is compiled into the library, and the bundled templates.

    It is read-only.
    """
    root = cache.cache_root()

    def produce(entry: Path) -> None:
        sdist = fetch.fetch_sdist(pin, root, progress)
        with cache.work_beside(entry) as work:
            source = fetch.extract(sdist, pin, work)
            for path in sorted(p for p in source.rglob("*") if p.is_file()):
                name = path.relative_to(source).as_posix()
                if name.startswith(NEEDED):
                    (entry / name).parent.mkdir(parents=True, exist_ok=True)
                    path.rename(entry / name)

    facts: dict[str, object] = {"source": pin.sha256, "needed": NEEDED}
    entry = cache.get_or_build(root, "chat-source", facts, produce, progress.note)
    cache.prune(root, "chat-source", N_KEPT_SOURCES)
    return entry


def _own_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(OWN_DIR.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _units(source: Path, pin: Pin, cxx: list[str]) -> list[Unit]:
    upstream = sorted({path for pattern in UPSTREAM for path in (source / "common").glob(pattern)})
    units = []
    for path in upstream:
        header = PREFIXES.get(path.relative_to(source / "common").as_posix())
        before = [f"-include{OWN_DIR / header}"] if header else []
        content = _own_digest() if header else ""
        units.append(Unit(path, [*cxx, *FLAGS, *SECTIONS, *before], pin.sha256 + content))
    own = [
        Unit(path, [*cxx, *FLAGS, *SECTIONS, *OWN_FLAGS], pin.sha256 + _own_digest())
        for path in sorted(OWN_DIR.glob("*.cpp"))
    ]
    return own + units


def _compile(units: Sequence[Unit], source: Path, identity: str, progress: Progress) -> list[Path]:
    """Compile in parallel; the objects come in the order of the units."""
    progress.note(f"compiling the chat library with {n_jobs()} jobs")
    with ThreadPoolExecutor(n_jobs()) as pool:
        running = {pool.submit(_compile_unit, unit, source, identity, progress): unit for unit in units}
        for n_done, done in enumerate(as_completed(running), 1):
            done.result()
            progress.feed(f"[{n_done}/{len(units)}] {running[done].path.name}")
    progress.finish()
    return [future.result() for future in running]


def _compile_unit(unit: Unit, source: Path, identity: str, progress: Progress) -> Path:
    name = unit.path.relative_to(source).as_posix() if unit.path.is_relative_to(source) else unit.path.name
    facts: dict[str, object] = {
        "content": unit.content,
        "name": name,
        "command": _portable(unit.command),
        "compiler": identity,
        "os": f"{platform.system()} {platform.machine()}",
    }

    def produce(entry: Path) -> None:
        include = [f"-I{OWN_DIR}", *(f"-isystem{source / folder}" for folder in INCLUDED)]
        maps = [f"-ffile-prefix-map={source}=llama.cpp", f"-ffile-prefix-map={OWN_DIR}=chat"]
        command = [*unit.command, *include, *maps, "-c", str(unit.path), "-o", str(entry / "unit.o")]
        _run(command, f"{name} did not compile")

    return cache.get_or_build(cache.cache_root(), "chat-objects", facts, produce, progress.note) / "unit.o"


def _link_command(cxx: Sequence[str], objects: Sequence[Path], output: Path) -> list[str]:
    if sys.platform == "darwin":
        shared = [
            "-dynamiclib",
            f"-Wl,-exported_symbol,_{EXPORTS}",
            "-Wl,-dead_strip",
            "-Wl,-x",
            f"-Wl,-install_name,@rpath/{LIBRARY}",
        ]
    else:
        hidden = [f"-Wl,--version-script={OWN_DIR / 'exports.map'}", "-Wl,--exclude-libs,ALL"]
        shared = ["-shared", *hidden, "-Wl,--gc-sections", "-Wl,-z,defs", "-Wl,-s"]
    return [*cxx, "-pthread", *shared, *map(str, objects), "-o", str(output)]


def _portable(command: Sequence[str]) -> list[str]:
    """Return the command without this tree's path, because all trees share its result."""
    return [word.replace(str(OWN_DIR), "chat") for word in command]


def _run(command: Sequence[str], failure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{failure}:\n{shlex.join(command)}\n{done.stderr[-6000:]}")
