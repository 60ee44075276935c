"""Finds compilers, CMake and ninja, and says exactly what to install if one is missing.

Rules: finding never changes anything; the identity strings feed the cache key, so they name versions, not paths.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from native.pin import BuildError

BACKENDS = ("cpu", "cuda", "vulkan", "metal")
# The headers that ggml's Vulkan backend includes. Debian 12's (of 2022) fail the first test, which the compiler would
# report only after ten minutes of compiling shaders.
VULKAN_HEADERS = {
    "#include <vulkan/vulkan.hpp>\nvk::LayerSettingEXT setting;": "Vulkan's headers, 1.3.275 or later (Debian 13 or "
    "Ubuntu 24.04: `apt install libvulkan-dev`; elsewhere: UMA_CMAKE_ARGS=-DVulkan_INCLUDE_DIR=FOLDER)",
    "#include <spirv/unified1/spirv.hpp>": "SPIR-V's headers (`apt install spirv-headers`)",
}


@dataclass(frozen=True)
class Toolchain:
    cc: list[str]
    cxx: list[str]
    cmake: str  # "" if none is needed and none was found
    generator: str  # CMake generator name
    make_program: str
    extra: dict[str, str]  # CMake variables that the tools need
    identity: str  # compiler names and versions


def default_backend() -> str:
    return "metal" if sys.platform == "darwin" else "cpu"


def chosen_backend() -> str:
    """The backend from UMA_BACKEND, else the platform's default. Raises: BuildError on an unknown name."""
    backend = os.environ.get("UMA_BACKEND", "").strip().lower() or default_backend()
    if backend not in BACKENDS:
        raise BuildError(f"UMA_BACKEND={backend}: choose one of {', '.join(BACKENDS)}")
    if backend == "metal" and sys.platform != "darwin":
        raise BuildError("UMA_BACKEND=metal needs macOS; use cpu, cuda or vulkan here")
    return backend


def find_toolchain(backend: str, needs_cmake: bool = True) -> Toolchain:
    """Find everything the backend's build needs. With a warm cache only a compiler is needed, not CMake.

    Raises: BuildError with one message that lists all missing tools and how to get them.
    """
    cc = _compiler("CC", ("cc", "gcc", "clang"))
    cxx = _compiler("CXX", ("c++", "g++", "clang++"))
    cmake = _tool("cmake", "CMAKE_BIN_DIR")
    ninja = _tool("ninja", "BIN_DIR")
    make = shutil.which("make") or shutil.which("gmake")
    missing, helpers = [], []
    if not cc or not cxx:
        missing.append(f"a C and C++ compiler ({_compiler_hint()})")
    if not cmake:
        helpers.append(f"CMake ({_cmake_hint()})")
    if not ninja and not make:
        helpers.append("ninja or make (`pip install ninja`)")
    extra, backend_identity = {}, ""
    if backend == "cuda":
        nvcc = _nvcc()
        if nvcc:
            extra["CMAKE_CUDA_COMPILER"] = nvcc
            backend_identity = _version_line([nvcc, "--version"], last=True)
        else:
            missing.append("the CUDA toolkit (`nvcc` on PATH, in CUDACXX or below CUDA_HOME)")
    if backend == "vulkan":
        if not shutil.which("glslc"):
            helpers.append("Vulkan's shader compiler (`apt install glslc`)")
        helpers += _vulkan_headers_missing(cxx) if cxx and needs_cmake else []
    if missing or needs_cmake:
        missing += helpers  # named together, so that one message is enough
    if missing:
        raise BuildError("building llama.cpp needs " + "; ".join(missing) + ". Then run the same command again.")
    assert cc and cxx
    identity = " | ".join(
        filter(None, (_version_line([*cc, "--version"]), _version_line([*cxx, "--version"]), backend_identity))
    )
    generator = "Ninja" if ninja else "Unix Makefiles"
    return Toolchain(cc, cxx, cmake or "", generator, ninja or make or "", extra, identity)


def cpu_identity() -> str:
    """Model and instruction-set flags of this CPU: a native build runs only on a CPU like this."""
    if sys.platform == "darwin":
        names = ("machdep.cpu.brand_string", "machdep.cpu.features", "machdep.cpu.leaf7_features")
        found = [_version_line(["sysctl", "-n", name]) for name in names]
        return " ".join([platform.machine(), *filter(None, found)])
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part", "isa")
    lines: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in wanted:
                lines.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return " ".join([platform.machine(), *(lines[key] for key in wanted if key in lines)])


def words_of(variable: str) -> list[str]:
    """The words of an environment variable, as a shell reads them. Raises: BuildError if a quote is not closed."""
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise BuildError(f"{variable}={os.environ[variable]}: {error}") from None


def _compiler(variable: str, names: tuple[str, ...]) -> list[str] | None:
    words = words_of(variable)
    if words:
        return words if shutil.which(words[0]) else None
    return next(([name] for name in names if shutil.which(name)), None)


def _tool(name: str, folder_attribute: str) -> str | None:
    """The program on PATH, or the one inside the PyPI package of the same name."""
    path = shutil.which(name)
    if path and _version_line([path, "--version"]):  # a wrapper script of an uninstalled package cannot run
        return path
    try:
        folder = getattr(importlib.import_module(name), folder_attribute)
    except (ImportError, AttributeError):
        return None
    packaged = Path(folder) / name
    return str(packaged) if packaged.is_file() else None


def _nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    for candidate in (os.environ.get("CUDACXX"), "nvcc", f"{home}/bin/nvcc"):
        path = shutil.which(candidate) if candidate else None
        if path:
            return path
    return None


def _vulkan_headers_missing(cxx: list[str]) -> list[str]:
    folders = [f"{sdk}/include"] if (sdk := os.environ.get("VULKAN_SDK")) else []
    for word in words_of("UMA_CMAKE_ARGS"):
        if match := re.match(r"-DVulkan_INCLUDE_DIR(?::\w+)?=(.+)", word):
            folders.insert(0, match[1])
    command = [*cxx, "-std=c++17", "-fsyntax-only", *(f"-I{folder}" for folder in folders), "-x", "c++", "-"]
    return [
        what
        for program, what in VULKAN_HEADERS.items()
        if subprocess.run(command, input=program, capture_output=True, text=True).returncode
    ]


def _version_line(command: list[str], last: bool = False) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.strip().splitlines()
    return lines[-1 if last else 0] if done.returncode == 0 and lines else ""


def _compiler_hint() -> str:
    if sys.platform == "darwin":
        return "`xcode-select --install`"
    return "Debian or Ubuntu: `apt install build-essential`; Fedora: `dnf install gcc-c++`; or set CC and CXX"


def _cmake_hint() -> str:
    return "`pip install cmake ninja`, or " + (
        "`brew install cmake`" if sys.platform == "darwin" else "your system's `cmake` package"
    )
