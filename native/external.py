"""Uses a llama.cpp that is already installed (UMA_LLAMA_DIR), after proving that its headers and library belong
together.

Rules: nothing of the install is copied or changed; any doubt leads to a refusal. Only the pinned llama.cpp is accepted:
our own C code uses inner parts of it, whose layout no version number promises.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from native.cmake_build import ship_files
from native.pin import BuildError, Pin, sha256_file
from native.probe import LibraryFacts, library_paths, probe

READ_HEADERS = ("llama.h", "ggml.h", "ggml-backend.h", "ggml-alloc.h", "ggml-cpu.h", "ggml-opt.h", "gguf.h")


@dataclass(frozen=True)
class External:
    lib_dir: Path
    facts: LibraryFacts


def use_external(root: Path, pin: Pin) -> External:
    """Check an install that has include/ and lib/ (or lib64/).

    Raises: BuildError if it is incomplete or inconsistent.
    """
    include_dir = root / "include"
    lib_dir = next((d for d in (root / "lib", root / "lib64") if d.is_dir() and _has_llama(d)), None)
    if not (include_dir / "llama.h").is_file() or lib_dir is None:
        raise BuildError(
            f"UMA_LLAMA_DIR={root}: expected include/llama.h and lib/libllama in it (what `cmake --install` leaves)"
        )
    wrong = _header_problem(include_dir, pin)
    if wrong:
        raise BuildError(
            f"UMA_LLAMA_DIR={root}: {wrong}; UMA Serve needs llama.cpp {pin.short_commit} there. "
            "Install that commit, or unset UMA_LLAMA_DIR to have it built."
        )
    facts = probe(library_paths(lib_dir))
    wrong = library_problem(pin, facts)
    if wrong:
        raise BuildError(f"UMA_LLAMA_DIR={root}: headers and library disagree: {wrong}")
    return External(lib_dir, facts)


def _has_llama(folder: Path) -> bool:
    return any(name.startswith("libllama.") for name in ship_files(folder))


def _header_problem(include_dir: Path, pin: Pin) -> str:
    absent = [name for name in READ_HEADERS if not (include_dir / name).is_file()]
    if absent:
        return f"include/ lacks {', '.join(absent)}"
    other = [name for name in READ_HEADERS if sha256_file(include_dir / name) != pin.public_headers[name]]
    return f"{', '.join(other)} in include/ belong to another llama.cpp" if other else ""


def library_problem(pin: Pin, facts: LibraryFacts) -> str:
    """Say why this library cannot belong to the pinned headers, or "" if nothing speaks against it."""
    if not facts.llama_version or not facts.ggml_version:
        return "the library has no llama_version() or ggml_version()"
    if facts.llama_version != pin.llama_version:
        return f"the headers are llama.cpp {pin.llama_version}, the library says {facts.llama_version}"
    if facts.ggml_version != pin.ggml_version:
        return f"the headers are ggml {pin.ggml_version}, the library says {facts.ggml_version}"
    commit = facts.ggml_commit.removesuffix("-dirty")
    if commit not in ("", "unknown") and not pin.commit.startswith(commit):
        return f"the headers are of commit {pin.short_commit}, the library says {facts.ggml_commit}"
    return ""
