"""Pages of KV and of mapped files, which the system takes back and gives again."""

import dataclasses
import mmap
import sys
from pathlib import Path

import pytest

from tests.engine.conftest import DRAFT, OPTIONS
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.engine.llama.pages import read_only_mappings, release_mappings, whole_pages
from uma_core.server.memory.budget import resident_bytes

PAGE = mmap.PAGESIZE


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell what is resident")
def test_a_pretended_context_lies_in_real_memory() -> None:
    """Cells that were never written are read from one page that stays in the processor's cache, so a timing over them
    would be too fast.
    """
    engine = LlamaEngine(DRAFT, dataclasses.replace(OPTIONS, n_ctx=32768, n_seq=2))
    before = resident_bytes()
    engine.fake_context(1, 16000)
    assert resident_bytes() - before > 0.9 * 16000 * engine.info.kv_bytes_per_cell
    engine.close()


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [(0, 3 * PAGE, (0, 3 * PAGE)), (1, 3 * PAGE - 1, (PAGE, 2 * PAGE)), (PAGE, PAGE + 1, (PAGE, PAGE))],
)
def test_only_whole_pages_are_given_back(begin: int, end: int, expected: tuple[int, int]) -> None:
    assert whole_pages(begin, end) == expected


def test_a_part_of_a_page_is_none() -> None:
    begin, end = whole_pages(PAGE + 1, 2 * PAGE - 1)
    assert begin >= end


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_mapped_files_that_nobody_may_write_are_found_and_stay_readable(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"w" * 3 * PAGE)
    before = read_only_mappings()
    with path.open("r+b") as file:
        read_only = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        writable = mmap.mmap(file.fileno(), 0)
        (found,) = read_only_mappings() - before
        assert found[1] - found[0] == 3 * PAGE
        release_mappings(frozenset([found]))
        assert read_only[:] == writable[:] == b"w" * 3 * PAGE
