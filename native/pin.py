"""Reads native/PIN: the llama.cpp source, its hashes and its default flags.

Rules: standard library only (it runs before anything is installed); errors are `BuildError` with one clear sentence.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

PIN_PATH = Path(__file__).with_name("PIN")
_PLAIN_KEYS = (
    "package",
    "version",
    "sha256",
    "source_sha256",
    "source_root",
    "commit",
    "llama_version",
    "ggml_version",
)


class BuildError(Exception):
    """The native build cannot go on; the message tells a newcomer what to do."""


@dataclass(frozen=True)
class Pin:
    package: str  # registry package that carries the source
    version: str
    sha256: str  # of the source distribution
    source_sha256: str  # of the part of it that the build reads, file by file (fetch.tree_digest)
    source_root: str  # llama.cpp inside the unpacked source distribution
    commit: str
    llama_version: str  # the answer of llama_version()
    ggml_version: str  # the answer of ggml_version()
    headers: dict[str, str] = field(default_factory=dict)  # path below source_root -> sha256
    flags: dict[str, dict[str, str]] = field(default_factory=dict)  # backend or "all" -> CMake variable -> value

    @property
    def short_commit(self) -> str:
        return self.commit[:9]

    @property
    def public_headers(self) -> dict[str, str]:
        """File name -> sha256 of the headers that every llama.cpp install has."""
        return {Path(p).name: sha for p, sha in self.headers.items() if "/include/" in f"/{p}"}

    @property
    def inner_headers(self) -> dict[str, str]:
        """File name -> sha256 of the headers that only the source has."""
        return {Path(p).name: sha for p, sha in self.headers.items() if "/include/" not in f"/{p}"}

    def flags_for(self, backend: str) -> dict[str, str]:
        return {**self.flags.get("all", {}), **self.flags.get(backend, {})}


def parse_pin(text: str) -> Pin:
    """Turn the text of a PIN file into a Pin.

    Raises: BuildError on an unknown, repeated or missing key.
    """
    plain: dict[str, str] = {}
    headers: dict[str, str] = {}
    flags: dict[str, dict[str, str]] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        left, equals, value = (part.strip() for part in line.partition("="))
        words = left.split()
        if not equals or not value or not words:
            raise BuildError(f"native/PIN line {number}: expected `key = value`, found {raw!r}")
        if len(words) == 2 and words[0] == "header":
            target, key = headers, words[1]
        elif len(words) == 3 and words[0] == "flag":
            target, key = flags.setdefault(words[1], {}), words[2]
        elif len(words) == 1 and words[0] in _PLAIN_KEYS:
            target, key = plain, words[0]
        else:
            raise BuildError(f"native/PIN line {number}: unknown key {left!r}")
        if key in target:
            raise BuildError(f"native/PIN line {number}: {left!r} is set twice")
        target[key] = value
    missing = [key for key in _PLAIN_KEYS if key not in plain]
    if missing or not headers:
        raise BuildError(f"native/PIN lacks {', '.join(missing) or 'header hashes'}")
    return Pin(headers=headers, flags=flags, **plain)


def load_pin(path: Path = PIN_PATH) -> Pin:
    return parse_pin(path.read_text(encoding="utf-8"))


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
