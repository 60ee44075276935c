"""A model file's identity: what KV snapshots, calibrations and caches are keyed by."""

from __future__ import annotations

import hashlib
import os

SAMPLE_BYTES = 64 * 1024
N_SAMPLES = 64


def fingerprint(path: str) -> str:
    """sha256 over the file's size, its first MiB (header and metadata) and evenly spread samples, 32 hex digits.

    Reading all of a 40 GB file would cost a minute at every start; two files that agree in size,
    metadata and 64 samples of weights are the same model for every purpose here.
    """
    size = os.path.getsize(path)
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb") as file:
        digest.update(file.read(1 << 20))
        for i in range(N_SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * i // (N_SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:32]
