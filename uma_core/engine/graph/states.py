"""States of recurrent layers: of fixed size, one for each sequence beside its pages, and some of earlier positions.

Rules: a state that counts is never overwritten. A call reads the state before its rows and writes another one, which
replaces it when the call has succeeded. So a failed call, or a cancelled chunk, leaves the old state in place.
Sequences with the same beginning hold the same state, without a copy. A sequence can go back only to positions whose
states are kept.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from uma_core.engine.graph.shape import Shape
from uma_core.engine.lib import ffi
from uma_core.errors import ErrorCode, UmaError

ZERO = -1  # stands for a state of all zeros, as before the first position
UNKNOWN = -2  # the state is missing: the sequence cannot continue from its end
# states of earlier positions, per sequence: at the ends of the instructions, the last message, and the prompt
N_KEPT_SEQ = 3
ALIGNMENT = 64


class Next(NamedTuple):
    """The states that a call computes for a sequence, by number. The caller holds them until `States.adopt` or
    `States.drop`.
    """

    seq: int
    end: int
    kept: list[tuple[int, int]]  # (position, state) pairs that are worth keeping
    passed: list[tuple[int, int]]  # pairs on the way there; if the rows are drafts, the sequence may end at one of them


class Stretch(NamedTuple):
    """Rows between two states; see uma_stretch."""

    first_row: int
    n_rows: int
    source: int
    target: int


class States:
    """Owns the memory. `of[seq]` is the state at the sequence's end."""

    def __init__(self, shape: Shape, n_seq: int, n_prefill_slots: int, n_verify: int) -> None:
        """`n_verify`: most rows of a call that holds drafts. Raises: INSUFFICIENT_MEMORY."""
        self.n_floats = sum(layer.state.n_floats for layer in shape.layers if layer.state)
        self.n_bytes_each = -(-4 * self.n_floats // ALIGNMENT) * ALIGNMENT
        # each sequence's own state and the next, or the states of a call with drafts; prefill slots hold states that
        # are not handed over yet
        n_needed = n_seq + max(n_seq, n_verify) + 2 * n_prefill_slots
        self.n = n_needed + N_KEPT_SEQ * n_seq
        self.of = [ZERO] * n_seq
        self.wanted: list[tuple[int, ...]] = [()] * n_seq  # positions whose states are worth keeping, ascending
        # by sequence and position; least recently used first
        self._kept: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._passed: dict[tuple[int, int], int] = {}  # states on the way through the last call's drafts
        self._n_refs = [0] * self.n
        self._free = list(range(self.n - 1, -1, -1))
        try:
            self._memory = mmap.mmap(-1, max(1, self.n) * self.n_bytes_each)
        except (OSError, OverflowError) as error:
            raise UmaError(
                ErrorCode.INSUFFICIENT_MEMORY, f"cannot allocate {self.n_bytes >> 20} MiB for states: {error}"
            ) from error
        self._base = ffi.from_buffer("char *", self._memory)

    @property
    def n_bytes(self) -> int:
        return self.n * self.n_bytes_each

    def address(self, state: int) -> object:
        """The state as float *; NULL for zeros."""
        return ffi.NULL if state < 0 else ffi.cast("float *", self._base + state * self.n_bytes_each)

    def data(self, state: int) -> np.ndarray:
        """(bytes,) uint8 view."""
        return np.frombuffer(self._memory, np.uint8, 4 * self.n_floats, state * self.n_bytes_each)

    # references

    def take(self) -> int:
        """Take a state to write. If none is free, the least recently used state of an earlier position is dropped."""
        if not self._free:
            self._forget_passed()
        while not self._free:
            _, state = self._kept.popitem(last=False)
            self.give(state)
        state = self._free.pop()
        self._n_refs[state] = 1
        return state

    def hold(self, state: int) -> int:
        if state >= 0:
            self._n_refs[state] += 1
        return state

    def give(self, state: int) -> None:
        if state >= 0:
            self._n_refs[state] -= 1
            if not self._n_refs[state]:
                self._free.append(state)

    # a call

    def plan(
        self, runs: Sequence[tuple[int, int, int]], source: int | None = None, drafts: Sequence[bool] = ()
    ) -> tuple[list[Stretch], list[Next]]:
        """Plan the states of runs of rows, each (sequence, first position, how many), one run after another.

        `source`: a state to use instead of the sequence's own. `drafts`: which runs are a row and drafts after it.
        Until the next call, their sequences can be cut back to each position on the way.
        """
        self._forget_passed()
        stretches, nexts, row = [], [], 0
        for i, (seq, pos, n) in enumerate(runs):
            before, end = self.of[seq] if source is None else source, pos + n
            assert before != UNKNOWN, "the state at the sequence's end is not known"
            kept: list[tuple[int, int]] = []
            passed: list[tuple[int, int]] = []
            wanted = [at for at in self.wanted[seq] if pos < at <= end]
            stops = list(range(pos + 1, end)) if any(drafts[i : i + 1]) else [at for at in wanted if at < end]
            for stop in (*stops, end):
                after = self.take()
                stretches.append(Stretch(row, stop - pos, before, after))
                if stop in wanted:
                    kept.append((stop, self.hold(after)))
                if stop < end:
                    passed.append((stop, after))
                row, pos, before = row + stop - pos, stop, after
            nexts.append(Next(seq, before, kept, passed))
        return stretches, nexts

    def _forget_passed(self) -> None:
        for state in self._passed.values():
            self.give(state)
        self._passed.clear()

    def keep(self, made: Next) -> None:
        """Note that the rows are computed: the sequence may go back to states on the way."""
        for pos, state in made.kept:
            self.give(self._kept.pop((made.seq, pos), ZERO))
            self._kept[made.seq, pos] = state
        made.kept.clear()
        self._passed |= {(made.seq, pos): state for pos, state in made.passed}
        made.passed.clear()

    def adopt(self, made: Next) -> None:
        """Note that the rows are computed and count."""
        self.keep(made)
        self.put(made.seq, made.end)

    def drop(self, made: Next) -> None:
        """Note that the rows were not computed."""
        for _, state in (*made.kept, *made.passed):
            self.give(state)
        made.kept.clear()
        made.passed.clear()
        self.give(made.end)

    def want(self, seq: int, positions: Sequence[int]) -> None:
        """Keep the states of these positions once they are computed: the first one, and the last ones."""
        found = sorted(set(positions))
        self.wanted[seq] = tuple(found[:1] + found[1:][1 - N_KEPT_SEQ :])

    def put(self, seq: int, state: int) -> None:
        """Make this state, which the caller held, that of the sequence's end."""
        self.give(self.of[seq])
        self.of[seq] = state

    # positions

    def resumable(self, seq: int, n: int, n_kv: int) -> int:
        """The last position up to n that has a state, in a sequence of n_kv positions; 0: none."""
        if n >= n_kv and self.of[seq] != UNKNOWN:
            return n_kv
        known = (*self._kept, *self._passed)
        return max((pos for other, pos in known if other == seq and pos <= min(n, n_kv)), default=0)

    def at(self, seq: int, n: int, n_kv: int) -> int:
        """The state after n positions, a `resumable` number of them."""
        if n == n_kv:
            return self.of[seq]
        if n == 0:
            return ZERO
        if (seq, n) in self._passed:
            return self._passed[seq, n]
        self._kept.move_to_end((seq, n))
        return self._kept[seq, n]

    def cut(self, seq: int, n: int) -> None:
        """Forget states of positions beyond n."""
        for known in (self._kept, self._passed):
            for each in [(other, pos) for other, pos in known if other == seq and pos > n]:
                self.give(known.pop(each))
        if not n:
            self.put(seq, ZERO)

    def share_kept(self, src: int, dst: int, n: int) -> None:
        """Let `dst`, which holds the first n positions of `src` too, go back to the same positions as `src`."""
        for other, pos in list(self._kept):
            if other == src and pos <= n and (dst, pos) not in self._kept:
                self._kept[dst, pos] = self.hold(self._kept[src, pos])

    def close(self) -> None:
        """Idempotent. Views of the memory keep it until they go."""
        if self._base is not None:
            ffi.release(self._base)
            self._base = None
            del self._memory
