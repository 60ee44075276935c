"""How a load may be made, and what the system reports about memory."""

from __future__ import annotations

import mmap

import pytest

from uma_core.engine.api import MemoryUse
from uma_core.errors import ErrorCode, UmaError
from uma_core.server.memory import budget
from uma_core.server.memory.budget import MIB, SPARE_BYTES, Fit, choose, holds


def test_the_system_says_what_is_mapped_and_locked(tmp_path):
    path = tmp_path / "a model"
    path.write_bytes(bytes(3 * 4096))
    assert budget.mapped_bytes(str(path)) == 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        assert len(mapped) == budget.mapped_bytes(str(path))
    assert budget.locked_bytes() is not None


@pytest.mark.parametrize("name", ["a model", "a\nmodel", "caf\udce9"])
def test_a_file_that_was_replaced_is_still_mapped(tmp_path, name):
    path, new = tmp_path / name, tmp_path / "new"
    for each, n_pages in ((path, 3), (new, 5)):
        each.write_bytes(bytes(n_pages * mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as old:
        new.replace(path)
        assert budget.mapped_bytes(str(path)) == len(old)
        with path.open("r+b") as file_now, mmap.mmap(file_now.fileno(), 0) as now:
            assert budget.mapped_bytes(str(path)) == len(now), "a reload maps the new one"


def use(weights: int, kv: int, compute: int = 0) -> MemoryUse:
    return MemoryUse(weights * MIB, kv * MIB, compute * MIB)


@pytest.mark.parametrize(
    "need, live, budget_mb, available_mb, expected",
    [
        (use(100, 50), None, 0, None, Fit.BESIDE),
        (use(100, 50), None, 0, 200, Fit.BESIDE),
        (use(10_000, 50), None, 0, 200, Fit.BESIDE),  # weights are mapped: they may be larger than memory
        (use(100, 50), use(100, 50), 0, 1000, Fit.BESIDE),
        (use(100, 50), use(100, 50), 0, 200, Fit.SWAP),
        (use(100, 50), use(100, 50), 300, 1000, Fit.BESIDE),
        (use(100, 50), use(100, 50), 299, 1000, Fit.SWAP),
        (use(100, 50), use(100, 50), 150, None, Fit.SWAP),
        (use(100, 150), use(100, 150), 0, 70, Fit.SWAP),  # the memory that the old model frees counts as room
    ],
)
def test_beside_or_instead(need, live, budget_mb, available_mb, expected):
    available = None if available_mb is None else available_mb * MIB
    assert choose(need, live, budget_mb * MIB, available) is expected


@pytest.mark.parametrize(
    "need, live, budget_mb, available_mb",
    [
        (use(100, 50), None, 149, None),
        (use(100, 50), use(1, 1), 149, 10_000),
        (use(100, 500), None, 0, 500),
        (use(100, 500), use(100, 100), 0, 400),
    ],
)
def test_what_cannot_fit_is_refused(need, live, budget_mb, available_mb):
    available = None if available_mb is None else available_mb * MIB
    with pytest.raises(UmaError) as caught:
        choose(need, live, budget_mb * MIB, available)
    assert caught.value.error is ErrorCode.INSUFFICIENT_MEMORY
    assert caught.value.detail["need_mb"] > caught.value.detail["limit_mb"]


def test_to_be_compared_an_engine_has_to_fit_with_its_weights():
    need = use(100, 50, 10)
    assert holds(need, 0, None)
    assert holds(need, 0, 160 * MIB + SPARE_BYTES) and not holds(need, 0, 160 * MIB + SPARE_BYTES - 1)
    assert holds(need, 160 * MIB, None) and not holds(need, 160 * MIB - 1, None)


def test_resident_memory_is_a_size():
    assert MIB < budget.resident_bytes() < 64 << 30
    budget.give_back()
