"""Configures and compiles llama.cpp's libraries with CMake, and picks the files that a package ships.

Rules: only libllama and the libggml* it needs; no server, tools, tests or examples.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from native.instructions import BASE
from native.pin import BuildError, Pin
from native.progress import Progress
from native.toolchain import Toolchain, cpu_identity, words_of

HIDE_ARCHIVES = "-Wl,--exclude-libs,ALL"  # symbols of static archives stay inside a library (GNU ld, lld)

# GCC 12 declares that loading a tile configuration reads 8 of its 64 bytes, and drops the code that wrote the others.
# On a processor with AMX the first product of ggml's AMX kernels then ended the process (a general protection fault in
# ggml_backend_amx_mul_mat). The AVX-512 kernels serve such a processor.
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"

# the names that the loader looks for: libllama.so.0, libllama.0.dylib; never the namelink or the full version
_SONAME = re.compile(r"^lib[\w+-]+(\.so\.\d+|\.\d+\.dylib)$")
_PLAIN = re.compile(r"^lib[\w+-]+\.(so|dylib)$")


def cmake_flags(pin: Pin, backend: str) -> dict[str, str]:
    """Return the CMake variables that change a build's result, except those of the toolchain."""
    flags = pin.flags_for(backend)
    if os.environ.get("UMA_OPENMP"):
        flags["GGML_OPENMP"] = "OFF" if os.environ["UMA_OPENMP"] in ("0", "off", "OFF", "no") else "ON"
    flags["CMAKE_BUILD_WITH_INSTALL_RPATH"] = "ON"
    flags["CMAKE_INSTALL_RPATH"] = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    if sys.platform != "darwin":
        # Some compilers have only a static C++ runtime, and each library then holds a copy. If the copies see each
        # other's symbols, one copy may work on the locale of another: llama.cpp's loader crashed that way. If the
        # symbols are hidden, each copy is self-contained.
        flags["CMAKE_SHARED_LINKER_FLAGS"] = flags["CMAKE_MODULE_LINKER_FLAGS"] = HIDE_ARCHIVES
    if is_portable():
        flags["GGML_NATIVE"] = "OFF"
        if has_variants(True):
            flags |= BASE.cmake_flags()
    elif "amx_tile" in cpu_identity():
        for variable in ("CFLAGS", "CXXFLAGS"):  # CMake reads the user's flags only if these are not set
            flags[f"CMAKE_{variable.removesuffix('FLAGS')}_FLAGS"] = f"{os.environ.get(variable, '')} {NO_AMX}".strip()
    if backend != "cpu":
        flags["CMAKE_INSTALL_RPATH_USE_LINK_PATH"] = "ON"  # vendor libraries are found where they were linked
    # without these the libraries would name the commit of whatever git tree surrounds the build folder
    flags["LLAMA_BUILD_COMMIT"] = pin.short_commit
    flags["LLAMA_BUILD_NUMBER"] = "0"
    flags["GIT_EXE"] = ""
    return flags


def extra_arguments() -> list[str]:
    return words_of("UMA_CMAKE_ARGS")


def is_native(flags: dict[str, str], arguments: list[str]) -> bool:
    """False if the build was told not to use this CPU's own instructions."""
    value = flags.get("GGML_NATIVE", "ON")
    for argument in arguments:
        match = re.match(r"-D\s*GGML_NATIVE(?::\w+)?=(\w+)", argument)
        value = match[1] if match else value
    return value.upper() in ("ON", "1", "TRUE", "YES")


def is_portable() -> bool:
    """Whether the build has to run on any processor of the architecture (UMA_BUILD).

    Raises: BuildError on an unknown word.
    """
    word = os.environ.get("UMA_BUILD", "").strip().lower() or "native"
    if word not in ("native", "portable"):
        raise BuildError(f"UMA_BUILD={word}: choose native or portable")
    return word == "portable"


def has_variants(is_portable: bool) -> bool:
    """Whether a build has several variants of ggml's CPU backend. This needs ld.so, which takes a library that is
    already loaded under the wanted name; other loaders do not.
    """
    return is_portable and sys.platform.startswith("linux") and platform.machine() in ("x86_64", "AMD64")


def build(
    source: Path,
    build_dir: Path,
    flags: dict[str, str],
    tools: Toolchain,
    progress: Progress,
    targets: Sequence[str] = ("llama",),
) -> None:
    """Configure and compile the targets. Blocks for one to several minutes.

    Raises: BuildError with the tail of the log.
    """
    variables = {**flags, **tools.extra, "CMAKE_MAKE_PROGRAM": tools.make_program}
    configure = [tools.cmake, "-S", str(source), "-B", str(build_dir), "-G", tools.generator]
    configure += [f"-D{name}={value}" for name, value in variables.items()] + extra_arguments()
    env = {**os.environ, "CC": shlex.join(tools.cc), "CXX": shlex.join(tools.cxx), "NINJA_STATUS": "[%f/%t] "}
    names = ", ".join(targets)
    progress.note(f"configuring {names}")
    _run(configure, env, progress, "CMake could not configure llama.cpp")
    progress.note(f"compiling {names} with {n_jobs()} jobs")
    compile_command = [tools.cmake, "--build", str(build_dir), "--parallel", str(n_jobs()), "--target", *targets]
    _run(compile_command, env, progress, "llama.cpp did not compile")
    progress.finish()


def n_jobs() -> int:
    given = os.environ.get("UMA_JOBS") or os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or ""
    if given.isdigit() and int(given) > 0:
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(command: list[str], env: dict[str, str], progress: Progress, failure: str) -> None:
    log: list[str] = []
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            log.append(line)
            progress.feed(line.rstrip())
    if process.returncode:
        progress.finish()
        raise BuildError(f"{failure} (exit {process.returncode}). The end of its log:\n{''.join(log[-40:])}")


def ship_files(folder: Path) -> dict[str, Path]:
    """Map the name that the loader asks for to the real file, for every llama.cpp library in `folder`."""
    names = sorted(p.name for p in folder.iterdir())
    shipped = {name: folder / name for name in names if _SONAME.match(name)}
    stems = {_stem(name) for name in shipped}
    shipped.update({name: folder / name for name in names if _PLAIN.match(name) and _stem(name) not in stems})
    return {
        name: path for name, path in shipped.items() if _stem(name) == "libllama" or _stem(name).startswith("libggml")
    }


def _stem(name: str) -> str:
    return name.split(".", 1)[0]


def collect(build_dir: Path, lib_dir: Path, only: str = "") -> None:
    """Copy the built libraries, or one of them, one file each (a wheel would copy links as whole files).

    Raises: BuildError if there is none.
    """
    shipped = {name: path for name, path in ship_files(build_dir / "bin").items() if only in ("", _stem(name))}
    if not any(_stem(name) == (only or "libllama") for name in shipped):
        raise BuildError(f"the build left no {only or 'libllama'} in {build_dir / 'bin'}")
    lib_dir.mkdir(parents=True, exist_ok=True)
    for name, path in shipped.items():
        shutil.copyfile(path.resolve(), lib_dir / name)
        (lib_dir / name).chmod(0o755)
