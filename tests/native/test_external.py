from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from native import external
from native.build import HEADERS_DIR
from native.pin import BuildError, load_pin
from native.probe import LibraryFacts

PIN = load_pin()
LIBRARY = "libllama.0.dylib" if sys.platform == "darwin" else "libllama.so.0"


def make_install(
    root: Path, llama: str = PIN.llama_version, ggml: str = PIN.ggml_version, commit: str = PIN.short_commit
) -> Path:
    """Make an install with the pinned headers and a library that only reports its version."""
    (root / "lib").mkdir(parents=True)
    (root / "include").mkdir()
    for name in external.READ_HEADERS:
        (root / "include" / name).write_bytes((HEADERS_DIR / name).read_bytes())
    answers = {"llama_version": llama, "ggml_version": ggml, "ggml_commit": commit}
    source = root / "x.c"
    source.write_text(
        "".join(f'const char * {name}(void) {{ return "{value}"; }}\n' for name, value in answers.items() if value)
    )
    subprocess.run(
        [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", str(root / "lib" / LIBRARY), str(source)], check=True
    )
    return root


def test_an_install_of_the_pinned_commit_is_accepted(tmp_path: Path) -> None:
    found = external.use_external(make_install(tmp_path), PIN)
    assert found.lib_dir == tmp_path / "lib"
    assert found.facts.llama_version == PIN.llama_version


def test_a_library_built_outside_git_is_accepted(tmp_path: Path) -> None:
    assert external.use_external(make_install(tmp_path, commit="unknown"), PIN).facts.ggml_commit == "unknown"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"llama": "0.4.0"}, "the headers are llama.cpp 0.5.0-dev, the library says 0.4.0"),
        ({"ggml": "0.1.0"}, "the library says 0.1.0"),
        ({"commit": "deadbeef"}, "the library says deadbeef"),
        ({"llama": ""}, "has no llama_version"),
    ],
)
def test_headers_and_library_that_disagree_are_refused(tmp_path: Path, what: dict[str, str], words: str) -> None:
    with pytest.raises(BuildError, match="headers and library disagree") as caught:
        external.use_external(make_install(tmp_path, **what), PIN)
    assert words in str(caught.value)


def test_headers_of_another_llama_cpp_are_refused(tmp_path: Path) -> None:
    root = make_install(tmp_path)
    (root / "include" / "llama.h").write_text("// other\n")
    with pytest.raises(BuildError, match=r"llama\.h in include/ belong to another llama\.cpp.*unset UMA_LLAMA_DIR"):
        external.use_external(root, PIN)


@pytest.mark.parametrize("missing", ["include/llama.h", f"lib/{LIBRARY}", "include/gguf.h"])
def test_an_incomplete_install_is_refused(tmp_path: Path, missing: str) -> None:
    root = make_install(tmp_path)
    (root / missing).unlink()
    with pytest.raises(BuildError, match=r"expected include/llama\.h|lacks gguf\.h"):
        external.use_external(root, PIN)


def test_a_library_that_does_not_load_is_refused(tmp_path: Path) -> None:
    root = make_install(tmp_path)
    (root / "lib" / LIBRARY).write_bytes(b"not a library")
    with pytest.raises(BuildError, match="does not load"):
        external.use_external(root, PIN)


def test_a_dirty_tree_of_the_pinned_commit_is_told_apart_by_its_headers() -> None:
    facts = LibraryFacts(PIN.llama_version, PIN.ggml_version, f"{PIN.commit[:7]}-dirty", ())
    assert external.library_problem(PIN, facts) == ""
