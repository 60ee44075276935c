"""Builds the check programs. The objects go through the build cache, so that a second run compiles nothing."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bindings.compile import STANDARD, Unit, compile_unit, include_flags, own_unit
from native.build import BUILD_RECORD, LIB_DIR, ROOT
from native.probe import library_paths
from native.progress import Progress
from native.toolchain import find_toolchain
from tests.tools import need

HERE = Path(__file__).parent
KERNELS = sorted((ROOT / "native" / "kernels").glob("*.c"))
DEVICE = sorted((ROOT / "native" / "ggml-uma").glob("*.c*"))
CHECKS = [HERE / name for name in ("check_main.c", "check_mm.c", "check_attn.c")]
UNCHECKED = HERE / "unchecked.c"


def table_of(source: Path) -> str:
    """The table of `mm_neon_i8mm.c` is neon-i8mm."""
    return source.stem.partition("_")[2].replace("_", "-")


TABLES = {table_of(source) for source in KERNELS if source.stem.startswith("mm_")}
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-fno-math-errno"]
# Address checks are calls, and checks that the address sanitizer makes anyway are left out: the largest file
# compiles in 22 s instead of 103.
SANITIZERS = [
    "-O1",
    "-g1",
    "-fsanitize=address,undefined",
    "-fno-sanitize=null,object-size,pointer-overflow",
    "-fno-sanitize-recover=all",
    "-fno-var-tracking-assignments",
    "--param=asan-instrumentation-with-call-threshold=0",
]


@dataclass(frozen=True)
class Compilers:
    """The target to compile for. `run` goes before the program's own command line."""

    cc: list[str]
    cxx: list[str]
    run: list[str]

    @property
    def identity(self) -> str:
        return subprocess.run([*self.cc, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[
            0
        ]


def host() -> Compilers:
    tools = find_toolchain("cpu", needs_cmake=False)
    return Compilers(tools.cc, tools.cxx, [])


def arm() -> Compilers:
    """Return the compilers of this machine if it is an AArch64 one, otherwise a cross compiler with qemu.

    Skips the test if these are absent.
    """
    if platform.machine() in ("aarch64", "arm64"):
        return host()
    cc, qemu = need("aarch64-linux-gnu-gcc", "qemu-aarch64")
    return Compilers([cc], ["aarch64-linux-gnu-g++"], [qemu, "-cpu", "max"])


def objects(sources: Sequence[Path], compilers: Compilers, flags: Sequence[str]) -> list[Path]:
    identity = compilers.identity

    def compiled(source: Path) -> Path:
        compiler = compilers.cc if source.suffix == ".c" else compilers.cxx
        command = [*compiler, *STANDARD[source.suffix], *WARNINGS, "-fPIC", "-pthread", *flags]
        return compile_unit(Unit(source, command, include_flags()), identity, Progress())

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compiled, sources))


def shipped(sources: Sequence[Path]) -> list[Path]:
    """Return the objects that the product consists of. The product's build has already made them."""
    tools = find_toolchain("cpu", needs_cmake=False)
    is_native_cpu = json.loads((LIB_DIR / BUILD_RECORD).read_text())["is_native_cpu"]
    return [compile_unit(own_unit(each, tools, is_native_cpu), tools.identity, Progress()) for each in sources]


def link(command: Sequence[str], output: Path) -> Path:
    done = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return output


def link_with_llama(made: Sequence[Path], output: Path) -> Path:
    """Link with the libraries that the product ships."""
    libraries = [str(path) for path in library_paths(LIB_DIR)]
    return link([*host().cxx, *map(str, made), *libraries, f"-Wl,-rpath,{LIB_DIR}", "-lm", "-pthread"], output)


def shipped_check_program(output: Path) -> list[str]:
    """Return the command line of check_kernels for the product's own kernels."""
    made = [*shipped(KERNELS), *objects(CHECKS, host(), ["-O2"])]
    link([*host().cc, *map(str, made), "-lm", "-pthread"], output)
    return [str(output)]


def check_program(compilers: Compilers, flags: Sequence[str], tables: Collection[str], output: Path) -> list[str]:
    """Return the command line of check_kernels, with these tables built with these flags.

    The other tables are only there to be linked: compiling them too would take half of the time. So emulated programs
    get empty ones. The code that judges the tables has no sanitizers: they would take most of its time.
    """
    static = ["-static"] if compilers.run else []
    others = [source for source in KERNELS if table_of(source) in TABLES.difference(tables)]
    made = objects([source for source in KERNELS if source not in others], compilers, flags)
    made += objects([UNCHECKED], compilers, []) if compilers.run else shipped(others)
    made += objects(CHECKS, compilers, ["-O2"])
    sanitize = [flag for flag in flags if flag.startswith("-fsanitize")]
    link([*compilers.cc, *static, *sanitize, *map(str, made), "-lm", "-pthread"], output)
    return [*compilers.run, str(output)]


def kernel_library(output: Path) -> Path:
    """Return the product's kernels as a shared library, for calls from Python."""
    made = [*shipped(KERNELS), *objects([HERE / "exported.c"], host(), ["-O2"])]
    return link([*host().cc, "-shared", *map(str, made), "-lm"], output)


def llama_program(output: Path) -> Path:
    """Return check_llama, linked with the libraries that the product ships."""
    made = [*shipped([*KERNELS, *DEVICE]), *objects([HERE / "check_llama.c"], host(), ["-O2"])]
    return link_with_llama(made, output)
