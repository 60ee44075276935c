"""Asks built libraries what they are and which functions they export.

Rules: libraries are loaded in a child process, so that one that crashes or prints cannot harm the build.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from native.cmake_build import ship_files
from native.pin import BuildError

# loads every library, then answers; dlsym sees a library's dependencies too, so the order does not matter
_CHILD = """
import ctypes, json, os, sys
asked = json.load(sys.stdin)
loaded, failed = [], {}
for path in asked["libraries"]:
    try:
        loaded.append(ctypes.CDLL(path, mode=os.RTLD_LAZY | os.RTLD_GLOBAL))
    except OSError as error:
        failed[path] = str(error)
def find(name):
    return next((getattr(lib, name) for lib in loaded if hasattr(lib, name)), None)
def text(name):
    function = find(name)
    if function is None:
        return ""
    function.restype = ctypes.c_char_p
    return (function() or b"").decode()
answer = {name: text(name) for name in ("llama_version", "ggml_version", "ggml_commit")}
answer["missing"] = [name for name in asked["names"] if find(name) is None]
answer["failed"] = failed
print("\\n" + json.dumps(answer))
"""


@dataclass(frozen=True)
class LibraryFacts:
    llama_version: str
    ggml_version: str
    ggml_commit: str
    missing: tuple[str, ...]  # requested names that no library exports


def library_paths(lib_dir: Path) -> list[Path]:
    """The shipped library files, libllama last: it needs the others."""
    return sorted(ship_files(lib_dir).values(), key=lambda path: (path.name.startswith("libllama"), path.name))


def probe(paths: Iterable[Path], names: Iterable[str] = ()) -> LibraryFacts:
    """Load the libraries in a child process and query them. Raises: BuildError when one does not load."""
    asked = json.dumps({"libraries": [str(p) for p in paths], "names": list(names)})
    done = subprocess.run([sys.executable, "-c", _CHILD], input=asked, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(
            f"the llama.cpp libraries crash when they are loaded (exit {done.returncode}): {done.stderr.strip()[-500:]}"
        )
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    if answer["failed"]:
        raise BuildError("a llama.cpp library does not load: " + "; ".join(answer["failed"].values()))
    return LibraryFacts(
        answer["llama_version"], answer["ggml_version"], answer["ggml_commit"], tuple(answer["missing"])
    )
