"""A tiny stand-in for the pinned source distribution, so that no test compiles or downloads llama.cpp."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from native.pin import Pin
from native.progress import Progress

FILES = {
    "CMakeLists.txt": b"project(x)\n",
    "include/llama.h": b"const char * llama_version(void);\n",
    "ggml/include/ggml.h": b"const char * ggml_version(void);\n",
    "ggml/src/ggml-impl.h": b"/* inner */\n",
    "models/big.gguf": b"not needed\n",
}
ROOT = "x-1.0/vendor/llama.cpp"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.fixture
def pin() -> Pin:
    headers = {name: sha(FILES[name]) for name in FILES if name.endswith(".h")}
    flags = {"all": {"A": "1"}, "cuda": {"B": "2"}}
    return Pin("x", "1.0", "0" * 64, "0" * 64, "vendor/llama.cpp", "abcdef0123456789", "1.2.3", "4.5.6", headers, flags)


@pytest.fixture
def sdist(tmp_path: Path, pin: Pin) -> tuple[Path, Pin]:
    """A small archive and the pin that names its hash."""
    path = tmp_path / "given" / "x-1.0.tar.gz"
    path.parent.mkdir()
    write_tar(path, {f"{ROOT}/{name}": data for name, data in FILES.items()})
    needed = sorted(name for name in FILES if not name.startswith("models/"))
    tree = sha("".join(f"{name} {sha(FILES[name])}\n" for name in needed).encode())
    return path, replace(pin, sha256=sha(path.read_bytes()), source_sha256=tree)


@pytest.fixture
def progress() -> Progress:
    """Shows its steps to nobody."""
    return Progress(io.StringIO())


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def note(notes: list[str]) -> Callable[[str], None]:
    return notes.append
