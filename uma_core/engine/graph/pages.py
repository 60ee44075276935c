"""KV in pages of 64 positions with reference counts: who has which, and the memory that they are in.

Rules: a page that several sequences hold is never written; whoever is about to write into one gets a copy of it first.
A page's bytes lie together: (layer, K and V, KV head, position, row), so that copies and returns to the system are of whole pages.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

from uma_core.engine.graph.builder import KvPlan
from uma_core.engine.graph.shape import Shape, Unsupported
from uma_core.engine.lib import ffi, lib

PAGE = 64  # positions
KV_TYPES = {"f16": "GGML_TYPE_F16", "q8_0": "GGML_TYPE_Q8_0"}  # what the attention kernel reads


class Pages:
    """Owns the arena. `table[seq, i]` is the page of positions 64 i .. 64 i + 63; only the first `n_pages(seq)` entries count."""

    def __init__(self, shape: Shape, kv_type: str, counts: tuple[int, int, int]) -> None:
        """`counts`: pages in all, sequences, positions per sequence. Raises: Unsupported."""
        n_pages, n_seq, self.n_ctx_seq = counts
        kind = getattr(lib, KV_TYPES[kv_type])
        if shape.dim % lib.ggml_blck_size(kind):
            raise Unsupported(f"KV type {kv_type} with heads of length {shape.dim}")
        self.cell_bytes = int(lib.ggml_row_size(kind, shape.dim))
        layer_rows = shape.n_head_kv * PAGE
        page_rows = 2 * shape.n_layer * layer_rows
        self.page_bytes = page_rows * self.cell_bytes
        self.n_bytes = n_pages * self.page_bytes
        self._memory = _memory(self.n_bytes + mmap.PAGESIZE)  # the kernel's vectors may look past the last row
        self._base = ffi.from_buffer(self._memory)
        self._buffer = lib.ggml_backend_cpu_buffer_from_ptr(self._base, len(self._memory))
        params = ffi.new("struct ggml_init_params *", {"mem_size": 2 * lib.ggml_tensor_overhead(), "no_alloc": True})
        self._context = lib.ggml_init(params[0])
        arena = lib.ggml_new_tensor_2d(self._context, kind, shape.dim, n_pages * page_rows)
        lib.ggml_backend_tensor_alloc(self._buffer, arena, self._base)
        self.plan = KvPlan(arena, page_rows, layer_rows)
        # (page, layer, K and V, KV head, position, bytes of a row)
        self.data = np.frombuffer(self._memory, np.uint8, self.n_bytes).reshape(n_pages, shape.n_layer, 2, shape.n_head_kv, PAGE, -1)
        self.table = np.zeros((n_seq, -(-self.n_ctx_seq // PAGE)), np.int32)
        self.table_pointer = ffi.from_buffer("int32_t *", self.table)
        self.n_refs = np.zeros(n_pages, np.int32)
        self.n_held = [0] * n_seq  # positions that a sequence has pages for
        self._ready = [0] * n_seq  # positions below are in pages that may be written; 0: to be looked at
        self._free = list(range(n_pages - 1, -1, -1))
        self._is_dirty = np.zeros(n_pages, bool)

    @property
    def n_free(self) -> int:
        return len(self._free)

    def n_pages(self, seq: int) -> int:
        return -(-self.n_held[seq] // PAGE)

    def _take(self) -> int:
        page = self._free.pop()
        self.n_refs[page] = 1
        self._is_dirty[page] = True
        return page

    def _give(self, page: int) -> None:
        self.n_refs[page] -= 1
        if self.n_refs[page] == 0:
            self._free.append(page)

    def _n_needed(self, seq: int, n: int, n_more: int) -> int:
        """Free pages that writing positions n .. n + n_more - 1 takes; a shared page that would be written counts."""
        n_new = max(0, -(-(n + n_more) // PAGE) - self.n_pages(seq))
        return n_new + (1 if n % PAGE and self._is_shared(seq, n) else 0)

    def _is_shared(self, seq: int, pos: int) -> bool:
        return self.n_refs[self.table[seq, pos // PAGE]] > 1  # type: ignore[no-any-return]

    def has_room(self, wanted: list[tuple[int, int, int]]) -> bool:
        """Whether all of (sequence, first position, how many) can be written together."""
        if any(n + n_more > self.n_ctx_seq for _, n, n_more in wanted):
            return False
        return sum(self._n_needed(*each) for each in wanted if each[1] + each[2] > self._ready[each[0]]) <= len(self._free)

    def reserve(self, seq: int, n: int, n_more: int) -> None:
        """Make positions n .. n + n_more - 1 writable, where `has_room` said so. Blocks for the copy of one shared page at most."""
        n_pages = self.n_pages(seq)
        self.n_held[seq] = max(self.n_held[seq], n + n_more)
        if n + n_more <= self._ready[seq]:
            return
        row = self.table[seq]
        if n % PAGE and self._is_shared(seq, n):
            shared = int(row[n // PAGE])
            own = self._take()
            self.data[own] = self.data[shared]
            self._give(shared)
            row[n // PAGE] = own
        for i in range(n_pages, -(-(n + n_more) // PAGE)):
            row[i] = self._take()
        self._ready[seq] = self.n_pages(seq) * PAGE

    def truncate(self, seq: int, n: int) -> None:
        """Give back the pages beyond the first n positions."""
        for i in range(-(-n // PAGE), self.n_pages(seq)):
            self._give(int(self.table[seq, i]))
        self.n_held[seq] = min(self.n_held[seq], n)
        self._ready[seq] = 0

    def share(self, src: int, dst: int, first: int, n: int) -> None:
        """`dst` holds pages first .. of `src` too, up to position n. Both end within what `src` holds."""
        for i in range(first, -(-n // PAGE)):
            page = int(self.table[src, i])
            self.n_refs[page] += 1
            self.table[dst, i] = page
        self.n_held[dst] = n
        self._ready[src] = self._ready[dst] = 0

    def touch(self, seq: int) -> None:
        """Make the system give real memory to a sequence's pages, so that reading them costs what it costs with content."""
        for page in self.table[seq, : self.n_pages(seq)]:
            self.data[page].reshape(-1)[:: mmap.PAGESIZE] = 0

    def trim(self) -> int:
        """Give the memory of free pages back to the system; returns bytes."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return 0
        n_bytes = 0
        for page in self._free:
            begin = -(-page * self.page_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (page + 1) * self.page_bytes // mmap.PAGESIZE * mmap.PAGESIZE
            if self._is_dirty[page] and begin < end:
                self._memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
                n_bytes += end - begin
                self._is_dirty[page] = False
        return n_bytes

    def close(self) -> None:
        if self._buffer:
            lib.ggml_backend_buffer_free(self._buffer)
            lib.ggml_free(self._context)
            self._buffer = None
            ffi.release(self._base)
            del self.data, self._memory  # views of exports that are still being written keep it until they go


def _memory(n_bytes: int) -> mmap.mmap:
    """Private memory, zero until it is touched; in large pages of the system where it has them: a KV page is read in many places."""
    flags = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    memory = mmap.mmap(-1, n_bytes, flags=flags) if flags else mmap.mmap(-1, n_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
