"""The instructions that a build needs, and the variants of ggml's CPU backend that a portable build contains.

Rules: names are those of /proc/cpuinfo, except `lzcnt`; native/processor/processor.c asks the processor for the same
ones. What a build needs is read from the compiler's macros, never from this machine's processor.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from native import cache
from native.pin import BuildError, sha256_file
from native.toolchain import Toolchain

SOURCE = Path(__file__).resolve().parent / "processor" / "processor.c"
LIBRARY = "libuma_processor.dylib" if sys.platform == "darwin" else "libuma_processor.so"
BASELINE = "x86-64-v2"

# instructions that a compiler may use on its own, by the macro that it defines then
MACROS = {
    "__SSE3__": "pni",
    "__SSSE3__": "ssse3",
    "__SSE4_1__": "sse4_1",
    "__SSE4_2__": "sse4_2",
    "__POPCNT__": "popcnt",
    "__MOVBE__": "movbe",
    "__LZCNT__": "lzcnt",
    "__BMI__": "bmi1",
    "__BMI2__": "bmi2",
    "__AVX__": "avx",
    "__F16C__": "f16c",
    "__FMA__": "fma",
    "__AVX2__": "avx2",
    "__AVXVNNI__": "avx_vnni",
    "__AVXIFMA__": "avx_ifma",
    "__AVXVNNIINT8__": "avx_vnni_int8",
    "__AVXNECONVERT__": "avx_ne_convert",
    "__GFNI__": "gfni",
    "__VAES__": "vaes",
    "__VPCLMULQDQ__": "vpclmulqdq",
    "__AVX512F__": "avx512f",
    "__AVX512CD__": "avx512cd",
    "__AVX512BW__": "avx512bw",
    "__AVX512DQ__": "avx512dq",
    "__AVX512VL__": "avx512vl",
    "__AVX512IFMA__": "avx512ifma",
    "__AVX512VBMI__": "avx512vbmi",
    "__AVX512VBMI2__": "avx512_vbmi2",
    "__AVX512VNNI__": "avx512_vnni",
    "__AVX512BITALG__": "avx512_bitalg",
    "__AVX512VPOPCNTDQ__": "avx512_vpopcntdq",
    "__AVX512VP2INTERSECT__": "avx512_vp2intersect",
    "__AVX512BF16__": "avx512_bf16",
    "__AVX512FP16__": "avx512_fp16",
    "__AMX_TILE__": "amx_tile",
    "__AMX_INT8__": "amx_int8",
    "__AMX_BF16__": "amx_bf16",
    "__ARM_FEATURE_ATOMICS": "atomics",
    "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC": "asimdhp",
    "__ARM_FEATURE_QRDMX": "asimdrdm",
    "__ARM_FEATURE_DOTPROD": "asimddp",
    "__ARM_FEATURE_FP16_FML": "asimdfhm",
    "__ARM_FEATURE_SVE": "sve",
    "__ARM_FEATURE_SVE2": "sve2",
    "__ARM_FEATURE_MATMUL_INT8": "i8mm",
    "__ARM_FEATURE_BF16_VECTOR_ARITHMETIC": "bf16",
    "__ARM_FEATURE_SME": "sme",
}


def needed(tools: Toolchain, flags: list[str]) -> list[str]:
    """Return the instructions that code compiled with these flags needs. Raises: BuildError."""
    done = subprocess.run([*tools.cc, *flags, "-dM", "-E", "-x", "c", "/dev/null"], capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"the compiler does not list its macros:\n{done.stderr[-2000:]}")
    defined = {
        line.split()[1] for line in done.stdout.splitlines() if line.startswith("#define ") and len(line.split()) > 1
    }
    return [name for macro, name in MACROS.items() if macro in defined]


@dataclass(frozen=True)
class Variant:
    """One build of ggml's CPU backend. `flags` are ggml's CMake options without their prefix."""

    name: str
    flags: tuple[str, ...]

    @property
    def needs(self) -> list[str]:
        return [name for flag in self.flags for name in NEEDS[flag]]

    def cmake_flags(self) -> dict[str, str]:
        return {f"GGML_{flag}": "ON" if flag in self.flags else "OFF" for flag in NEEDS}


# ggml's options for x86, with the compiler flags that they stand for (ggml/src/ggml-cpu/CMakeLists.txt)
NEEDS = {
    "SSE42": ("pni", "ssse3", "sse4_1", "sse4_2", "popcnt"),
    "AVX": ("avx",),
    "F16C": ("f16c",),
    "FMA": ("fma",),
    "AVX2": ("avx2",),
    "BMI2": ("bmi2",),
    "AVX_VNNI": ("avx_vnni",),
    "AVX512": ("avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"),
    "AVX512_VBMI": ("avx512vbmi",),
    "AVX512_VNNI": ("avx512_vnni",),
    "AVX512_BF16": ("avx512_bf16",),
    "AMX_TILE": ("amx_tile",),
    "AMX_INT8": ("amx_int8",),
}
_AVX2 = ("SSE42", "AVX", "F16C", "FMA", "AVX2", "BMI2")
_AVX512 = (*_AVX2, "AVX512")
_VNNI = (*_AVX512, "AVX512_VBMI", "AVX512_VNNI")

BASE = Variant("base", ("SSE42",))  # beside the other libraries. Those below: best first, with ggml's names
VARIANTS = (
    Variant("sapphirerapids", (*_VNNI, "AVX512_BF16", "AMX_TILE", "AMX_INT8")),
    Variant("zen4", (*_VNNI, "AVX512_BF16")),
    Variant("icelake", _VNNI),
    Variant("cascadelake", (*_AVX512, "AVX512_VNNI")),
    Variant("skylakex", _AVX512),
    Variant("alderlake", (*_AVX2, "AVX_VNNI")),
    Variant("haswell", _AVX2),
    Variant("sandybridge", ("SSE42", "AVX")),
)


def build_processor_library(tools: Toolchain, target: Path) -> None:
    """Compile processor.c, for any processor of the architecture, and put it into `target`. Raises: BuildError."""
    command = [
        *tools.cc,
        "-O2",
        "-std=gnu11",
        "-fPIC",
        "-fvisibility=hidden",
        "-dynamiclib" if sys.platform == "darwin" else "-shared",
    ]
    facts: dict[str, object] = {
        "source": sha256_file(SOURCE),
        "command": command,
        "compiler": tools.identity,
        "machine": sys.platform,
    }

    def produce(entry: Path) -> None:
        done = subprocess.run([*command, str(SOURCE), "-o", str(entry / LIBRARY)], capture_output=True, text=True)
        if done.returncode:
            raise BuildError(f"{SOURCE.name} did not compile:\n{done.stderr[-2000:]}")

    built = cache.get_or_build(cache.cache_root(), "processor", facts, produce, lambda text: None) / LIBRARY
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        copy = Path(scratch) / LIBRARY
        copy.write_bytes(built.read_bytes())
        copy.chmod(0o755)
        copy.replace(target / LIBRARY)
