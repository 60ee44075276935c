"""Large snapshots have their own mappings, and the advice that was given for these mappings ends with them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from uma_core.engine.blob import MAP_FROM_BYTES, new_blob

FROM_NUMPY_BYTES = 4 << 20  # from this size on, numpy asks for large pages


def flags_at(address: int) -> list[str]:
    """Return the flags of the mapping that holds an address; none if nothing is mapped."""
    is_there = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        span = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if span:
            is_there = int(span[1], 16) <= address < int(span[2], 16)
        elif is_there and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []


@pytest.mark.parametrize("n_bytes", [0, 1, MAP_FROM_BYTES - 1, MAP_FROM_BYTES, MAP_FROM_BYTES + 4097])
def test_it_holds_what_is_written_and_outlives_its_first_view(n_bytes):
    blob = new_blob(n_bytes)
    assert len(blob) == n_bytes
    view = np.frombuffer(blob, np.uint8)
    view[:] = np.arange(n_bytes, dtype=np.uint8)
    copy = bytes(blob)
    del blob
    assert view.tobytes() == copy


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("n_bytes", [FROM_NUMPY_BYTES, FROM_NUMPY_BYTES * 4])
def test_no_address_is_left_behind_that_the_kernel_may_fill_with_large_pages(n_bytes):
    """Otherwise the heap around it would grow by 2 MiB for each small block that is later placed there."""
    blob = new_blob(n_bytes)
    middle = np.frombuffer(blob, np.uint8).ctypes.data + n_bytes // 2
    flags = flags_at(middle)
    assert "rd" in flags and "hg" not in flags


def test_more_mappings_than_the_system_allows_are_taken_from_the_heap(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("uma_core.engine.blob.mmap.mmap", refuse)
    assert len(new_blob(MAP_FROM_BYTES)) == MAP_FROM_BYTES
