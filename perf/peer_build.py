"""Finds or builds llama-server (and llama-batched-bench) of the pinned source, with the flags of our own libraries.

Order: UMA_PEER_DIR (a folder that holds bin/llama-server), then the build cache, then a build (minutes).
"""

from __future__ import annotations

import os
import platform
import shutil
import tarfile
import tempfile
from pathlib import Path

from native import cache, cmake_build
from native.fetch import extract, fetch_sdist
from native.pin import BuildError, Pin, load_pin
from native.progress import Progress
from native.toolchain import chosen_backend, cpu_identity, find_toolchain

SERVER, BENCH = "llama-server", "llama-batched-bench"
TARGETS = ("llama", SERVER, BENCH)
_TOOL_SOURCES = ("common/", "tools/", "scripts/")  # files that the programs need in addition to the libraries' source
_EXTRA_FLAGS = {
    "LLAMA_BUILD_COMMON": "ON",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_UI": "OFF",
}


def peer_dir() -> Path:
    """Return the folder with bin/llama-server. Blocks: minutes if it must be built. Raises: BuildError."""
    given = os.environ.get("UMA_PEER_DIR")
    if given:
        folder = Path(given).expanduser().resolve()
        if not (folder / "bin" / SERVER).is_file():
            raise BuildError(f"UMA_PEER_DIR={folder}: it has no bin/{SERVER}")
        return folder
    progress = Progress()
    pin, backend = load_pin(), chosen_backend()
    tools = find_toolchain(backend)
    flags = peer_flags(pin, backend)
    facts: dict[str, object] = {
        "source": pin.sha256,
        "backend": backend,
        "flags": flags,
        "extra": cmake_build.extra_arguments(),
        "compiler": tools.identity,
        "cpu": cpu_identity(),
        "os": f"{platform.system()} {' '.join(platform.libc_ver())}",
    }
    root = cache.cache_root()

    def produce(entry: Path) -> None:
        sdist = fetch_sdist(pin, root, progress)
        with tempfile.TemporaryDirectory(prefix="uma-peer-", dir=root) as work:
            source, build = Path(work) / "source", Path(work) / "build"
            unpack(sdist, pin, source)
            cmake_build.build(source, build, flags, tools, progress, TARGETS)
            collect(source, build, entry)

    return cache.get_or_build(root, "peer", facts, produce, progress.note)


def peer_flags(pin: Pin, backend: str) -> dict[str, str]:
    """Return our own flags, and those for the programs."""
    return {**cmake_build.cmake_flags(pin, backend), **_EXTRA_FLAGS}


def pack(sdist: Path, pin: Pin, target: Path) -> None:
    """Write the tenth of a source archive from which libraries and programs are built, for a machine without a
    network.
    """
    with tempfile.TemporaryDirectory() as scratch:
        unpack(sdist, pin, Path(scratch))
        with tarfile.open(target, "w:xz") as archive:
            archive.add(scratch, arcname=f"{pin.package}-{pin.version}/{pin.source_root}")


def unpack(sdist: Path, pin: Pin, folder: Path) -> None:
    """Unpack llama.cpp's libraries, verified, and its programs."""
    extract(sdist, pin, folder)
    with tarfile.open(sdist, "r:*") as archive:
        for member in archive:
            below = member.name.partition("/")[2].removeprefix(pin.source_root + "/")
            if not member.isfile() or not below.startswith(_TOOL_SOURCES) or ".." in Path(below).parts:
                continue
            target = folder / below
            target.parent.mkdir(parents=True, exist_ok=True)
            stream = archive.extractfile(member)
            assert stream is not None
            with stream, target.open("wb") as sink:
                shutil.copyfileobj(stream, sink)


def collect(source: Path, build: Path, entry: Path) -> None:
    """Fill bin/ with the programs and the libraries that they find beside them, and include/ with the public
    headers.
    """
    (entry / "bin").mkdir(parents=True)
    for path in sorted((build / "bin").iterdir()):
        if path.is_file() and (path.name in (SERVER, BENCH) or ".so" in path.name or ".dylib" in path.name):
            shutil.copy2(path, entry / "bin" / path.name, follow_symlinks=False)
    for folder in (source / "include", source / "ggml" / "include"):
        shutil.copytree(folder, entry / "include", dirs_exist_ok=True)


def example_server() -> Path:
    """Return the script of llama-cpp-python's example server, from the same source distribution."""
    given = os.environ.get("UMA_PERF_EXAMPLE_SERVER")
    if given:
        return Path(given)
    pin, root = load_pin(), cache.cache_root()
    target = root / "perf" / f"example-server-{pin.version}.py"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fetch_sdist(pin, root, Progress()), "r:gz") as archive:
            member = next((m for m in archive if m.name.endswith("/examples/server/server.py")), None)
            stream = archive.extractfile(member) if member else None
            if stream is None:
                raise BuildError("the source distribution has no examples/server/server.py")
            target.write_bytes(stream.read())
    return target
