"""A model file's identity: the key of KV snapshots, calibrations and caches."""

from __future__ import annotations

import hashlib
import os
import re

SAMPLE_BYTES = 64 * 1024
N_SAMPLES = 64
_PART = re.compile(r"^(.*)-00001-of-(\d{5})\.gguf$", re.DOTALL)


def fingerprint(path: str) -> str:
    """sha256 over the file's size, its first MiB (header and metadata) and evenly spread samples, 32 hex digits.

    For a model that is split into several files, all of them that exist are sampled.

    Reading all of a 40 GB file would take a minute at every start. Two files that agree in size, metadata and 64
    samples of weights are the same model for every purpose here.
    """
    digest = hashlib.sha256()
    for part in (path, *filter(os.path.exists, _others(path))):
        _add(digest, part)
    return digest.hexdigest()[:32]


def _others(path: str) -> list[str]:
    """Return the paths of a split model's further files, derived from the first one's name."""
    match = _PART.match(path)
    return [f"{match[1]}-{i:05}-of-{match[2]}.gguf" for i in range(2, int(match[2]) + 1)] if match else []


def _add(digest: hashlib._Hash, path: str) -> None:
    size = os.path.getsize(path)
    digest.update(str(size).encode())
    with open(path, "rb") as file:
        digest.update(file.read(1 << 20))
        for i in range(N_SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * i // (N_SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
