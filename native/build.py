"""Builds llama.cpp's libraries and the chat library into the packages, through the cache.

Usage: `python native/build.py [--force]`.
It writes uma_core/lib/ (libraries and build.json), uma_gateway/lib/ and native/headers/, all git-ignored.
Environment: UMA_BACKEND, UMA_BUILD, UMA_CMAKE_ARGS, UMA_OPENMP, UMA_BUILD_CACHE, UMA_SDIST, UMA_LLAMA_DIR, UMA_JOBS,
CC, CXX.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":  # this file's folder would shadow other packages
    sys.path[0] = str(ROOT)

from native import cache, chat_build, cmake_build, fetch  # noqa: E402
from native.external import use_external  # noqa: E402
from native.instructions import BASELINE, LIBRARY, VARIANTS, build_processor_library, needed  # noqa: E402
from native.mirror import mirror  # noqa: E402
from native.pin import BuildError, Pin, load_pin  # noqa: E402
from native.probe import library_paths, probe  # noqa: E402
from native.progress import Progress  # noqa: E402
from native.toolchain import chosen_backend, cpu_identity, find_toolchain  # noqa: E402

LIB_DIR = ROOT / "uma_core" / "lib"
CHAT_LIB_DIR = ROOT / "uma_gateway" / "lib"
HEADERS_DIR = ROOT / "native" / "headers"
BUILD_RECORD = "build.json"
N_KEPT_BUILDS = 8  # a few MB each, some hundred for CUDA


@dataclass(frozen=True)
class Native:
    """What the bindings need to know about the libraries; uma_core/lib/build.json holds it."""

    backend: str
    llama_version: str
    ggml_version: str
    ggml_commit: str
    lib_dir: str
    is_external: bool
    is_native_cpu: bool  # compiled for this CPU's own instructions
    needs: list[str] = field(default_factory=list)  # instructions that the processor must have (native/instructions.py)
    # folders of CPU backends for newer processors, best first, and the instructions that each needs
    variants: list[tuple[str, list[str]]] = field(default_factory=list)
    flags: dict[str, str] = field(default_factory=dict)
    extra_args: list[str] = field(default_factory=list)
    compiler: str = ""


def prepare(progress: Progress | None = None, force: bool = False) -> Native:
    """Make libraries and headers ready; seconds with a warm cache.

    Blocks: minutes with a cold one. Raises: BuildError.
    """
    progress = progress or Progress()
    _check_writable(ROOT, LIB_DIR.parent, CHAT_LIB_DIR.parent, HEADERS_DIR.parent)
    pin = load_pin()
    external = os.environ.get("UMA_LLAMA_DIR")
    native = (
        _from_external(Path(external).expanduser().resolve(), pin, progress)
        if external
        else _from_source(pin, progress, force)
    )
    chat_build.build_chat_library(pin, progress, CHAT_LIB_DIR)
    build_processor_library(find_toolchain("cpu", needs_cmake=False), LIB_DIR)
    record = {key: value for key, value in asdict(native).items() if key != "lib_dir" or native.is_external}
    _write_if_changed(LIB_DIR / BUILD_RECORD, json.dumps(record, indent=1, sort_keys=True) + "\n")
    return native


def _check_writable(*folders: Path) -> None:
    """Called before minutes of compiling. Raises: BuildError."""
    for folder in folders:
        if not os.access(folder, os.W_OK):
            raise BuildError(f"{folder} is not writable, but libraries are built into it: build in a writable copy")


def _from_source(pin: Pin, progress: Progress, force: bool) -> Native:
    backend = chosen_backend()
    found = find_toolchain(backend, needs_cmake=False)
    identity = found.identity
    flags, extra = cmake_build.cmake_flags(pin, backend), cmake_build.extra_arguments()
    is_native_cpu = cmake_build.is_native(flags, extra)
    variants = VARIANTS if cmake_build.has_variants(cmake_build.is_portable()) else ()
    facts: dict[str, object] = {
        "source": pin.sha256,
        "backend": backend,
        "flags": flags,
        "extra": extra,
        "compiler": identity,
        "cpu": cpu_identity() if is_native_cpu else platform.machine(),
        "os": f"{platform.system()} {' '.join(platform.libc_ver())}",
    }
    if variants:
        facts["variants"] = [f"{each.name} {each.flags}" for each in variants]
    root = cache.cache_root()

    def produce(entry: Path) -> None:
        tools = find_toolchain(backend)  # before the long download
        sdist = fetch.fetch_sdist(pin, root, progress)
        with cache.work_beside(entry) as work:
            source = fetch.extract(sdist, pin, work / "source")
            cmake_build.build(source, work / "build", flags, tools, progress)
            cmake_build.collect(work / "build", entry / "lib")
            for each in variants:
                folder = work / each.name
                own = {**flags, **each.cmake_flags(), "CMAKE_INSTALL_RPATH": "$ORIGIN/.."}
                cmake_build.build(source, folder, own, tools, progress, ["ggml-cpu"])
                cmake_build.collect(folder, entry / "lib" / each.name, "libggml-cpu")
        _check_against_pin(entry / "lib", pin)

    if force:
        shutil.rmtree(root / "llama" / cache.make_key(facts), ignore_errors=True)
    entry = cache.get_or_build(root, "llama", facts, produce, progress.note)
    cache.prune(root, "llama", N_KEPT_BUILDS)
    install_headers(pin, root, progress)
    mirror(entry / "lib", LIB_DIR, keep=(BUILD_RECORD, LIBRARY))
    version = (pin.llama_version, pin.ggml_version, pin.short_commit)
    needs = needed(found, cpu_flags(is_native_cpu))
    better = [(each.name, each.needs) for each in variants]
    return Native(backend, *version, str(LIB_DIR), False, is_native_cpu, needs, better, flags, extra, identity)


def _from_external(folder: Path, pin: Pin, progress: Progress) -> Native:
    found = use_external(folder, pin)
    # an install has no inner headers; its public ones equal the pinned ones
    install_headers(pin, cache.cache_root(), progress)
    mirror(None, LIB_DIR, keep=(BUILD_RECORD, LIBRARY))
    version = (found.facts.llama_version, found.facts.ggml_version, found.facts.ggml_commit)
    tools, is_native_cpu = find_toolchain("cpu", needs_cmake=False), not cmake_build.is_portable()
    # only what our own code needs: the installed libraries do not say what they need
    needs = needed(tools, cpu_flags(is_native_cpu))
    return Native("external", *version, str(found.lib_dir), True, is_native_cpu, needs, compiler=tools.identity)


def install_headers(pin: Pin, root: Path, progress: Progress) -> None:
    """Put the pinned headers into native/headers, from the cache or the source."""

    def produce(entry: Path) -> None:
        sdist = fetch.fetch_sdist(pin, root, progress)
        with cache.work_beside(entry) as work:
            fetch.install_headers(fetch.extract(sdist, pin, work), pin, entry)

    facts: dict[str, object] = {"source": pin.sha256, "headers": pin.headers}
    mirror(cache.get_or_build(root, "headers", facts, produce, progress.note), HEADERS_DIR)


def cpu_flags(is_native_cpu: bool) -> list[str]:
    """Return the compiler flags for our own code: everything that this processor has, or the least that a portable
    build requires. Kernels choose their instruction sets in their source.
    """
    if is_native_cpu:
        return ["-mcpu=native"] if platform.machine() in ("arm64", "aarch64") else ["-march=native"]
    return [f"-march={BASELINE}"] if cmake_build.is_portable() and platform.machine() in ("x86_64", "AMD64") else []


def _check_against_pin(lib_dir: Path, pin: Pin) -> None:
    facts = probe(library_paths(lib_dir))
    expected = (pin.llama_version, pin.ggml_version, pin.short_commit)
    actual = (facts.llama_version, facts.ggml_version, facts.ggml_commit)
    if actual != expected:
        raise BuildError(f"the built libraries say {actual}, native/PIN says {expected}")


def _write_if_changed(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Build llama.cpp's libraries into uma_core/lib, through the build cache."
    )
    parser.add_argument("--force", action="store_true", help="build again even if the cache has it")
    parser.add_argument(
        "--pack", metavar="FILE", type=Path, help="only write the source that a build needs to FILE (.tar.gz)"
    )
    arguments = parser.parse_args()
    try:
        if arguments.pack:
            fetch.pack(fetch.fetch_sdist(load_pin(), cache.cache_root(), Progress()), load_pin(), arguments.pack)
            return 0
        native = prepare(force=arguments.force)
    except BuildError as error:
        print(f"uma-serve: {error}", file=sys.stderr)
        return 1
    print(f"llama.cpp {native.llama_version} ({native.ggml_commit}), backend {native.backend}, in {native.lib_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
