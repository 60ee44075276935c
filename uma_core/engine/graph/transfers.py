"""Moves of KV between sequences and host bytes. Pages that can be shared are not moved; the others move one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from uma_core.engine.blob import new_blob
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.states import UNKNOWN, ZERO, States
from uma_core.engine.graph.store import PAGE
from uma_core.engine.lib import lib
from uma_core.errors import ErrorCode, UmaError

STATE_SLICE = 1 << 20  # bytes that are moved between two looks at the clock
FLAG_BYTES = 8


class Steps:
    """A Transfer over positions start..n: `move(p0, p1)` for each stretch within one page, then `finish` once.

    If it is closed before its end, `give_up` is called instead.
    """

    def __init__(
        self,
        n_bytes: int,
        span: tuple[int, int],
        move: Callable[[int, int], None],
        finish: Callable[[], None],
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self.n_bytes = n_bytes
        self._at, self._end = span
        self._move = move
        self._finish = finish
        self._give_up = give_up
        self._is_open = True

    def step(self, until_ns: int) -> bool:
        while self._is_open and self._at < self._end:
            stop = min(self._end, (self._at // PAGE + 1) * PAGE)
            self._move(self._at, stop)
            self._at = stop
            if stop < self._end and lib.uma_now_ns() >= until_ns:
                return False
        if self._is_open:
            self._is_open = False
            self._finish()
        return True

    def then(self, more: Callable[[], None]) -> None:
        """Call `more` too at the end."""
        finish = self._finish

        def both() -> None:
            finish()
            more()

        self._finish = both

    def close(self) -> None:
        """Cancel an unfinished transfer. The old content stays: nothing counts before `finish`."""
        if self._is_open:
            self._is_open = False
            self._give_up()


class HostExport(Steps):
    """Owns the bytes. They are not zeroed: touching 100 MB for the first time would be a long pause."""

    def __init__(self, pages: Pages, seq: int, start: int, n: int, n_behind: int = 0) -> None:
        """`n_behind`: further bytes at the end, which other code fills."""
        layout = pages.store.layout
        n_bytes = (n - start) * layout.position_bytes
        self.blob: bytearray | memoryview = new_blob(n_bytes + n_behind)
        views = layout.views(np.frombuffer(self.blob, np.uint8)[:n_bytes], n - start)
        row = pages.table[seq]

        def move(p0: int, p1: int) -> None:
            begin = p0 % PAGE
            pages.store.read(
                int(row[p0 // PAGE]), begin, begin + p1 - p0, [view[:, p0 - start : p1 - start] for view in views]
            )

        super().__init__(n_bytes, (start, n), move, lambda: None)


def import_moves(
    pages: Pages, seq: int, blob: bytes | bytearray | memoryview, origin: int
) -> Callable[[int, int], None]:
    """Make the function that moves positions p0..p1, within one page, from a blob that begins at `origin`."""
    data, layout = np.frombuffer(blob, np.uint8), pages.store.layout
    views = layout.views(data, data.size // layout.position_bytes)  # bytes after them are left alone

    def move(p0: int, p1: int) -> None:
        begin = p0 % PAGE
        cells = [view[:, p0 - origin : p1 - origin] for view in views]
        pages.store.write(int(pages.table[seq, p0 // PAGE]), begin, begin + p1 - p0, cells)

    return move


class WithState:
    """A Transfer of a state, and then of positions: the sequence has both when it is done."""

    def __init__(
        self, n_state: int, move: Callable[[int, int], None], positions: Steps, end: Callable[[], None]
    ) -> None:
        """`move(b0, b1)` copies the state's bytes b0..b1 of `n_state`. `end` is called once, at the end or when the
        transfer is cancelled.
        """
        self.n_bytes = positions.n_bytes + n_state
        self._at, self._n_state = 0, n_state
        self._move = move
        self._positions = positions
        self._end: Callable[[], None] | None = end

    def step(self, until_ns: int) -> bool:
        while self._end is not None and self._at < self._n_state:
            stop = min(self._n_state, self._at + STATE_SLICE)
            self._move(self._at, stop)
            self._at = stop
            if lib.uma_now_ns() >= until_ns:
                return False
        if self._end is not None and not self._positions.step(until_ns):
            return False
        self.close()
        return True

    def close(self) -> None:
        self._positions.close()
        end, self._end = self._end, None
        if end is not None:
            end()


class StateExport(WithState):
    """A sequence's positions start..n, the state after them if it is kept, and a flag for that.

    Owns the bytes.
    """

    def __init__(self, pages: Pages, seq: int, span: tuple[int, int], n_kv: int) -> None:
        states, (start, n) = pages.states, span
        assert states is not None
        has_state = states.resumable(seq, n, n_kv) == n
        positions = HostExport(pages, seq, start, n, blob_bytes(states, has_state))
        self.blob = positions.blob
        behind = np.frombuffer(self.blob, np.uint8)[positions.n_bytes :]
        behind[-FLAG_BYTES:] = has_state
        target = behind[:-FLAG_BYTES]
        state = states.hold(states.at(seq, n, n_kv)) if has_state else ZERO
        source = states.data(state) if state >= 0 else None

        def move(b0: int, b1: int) -> None:
            target[b0:b1] = 0 if source is None else source[b0:b1]

        super().__init__(len(target), move, positions, lambda: states.give(state))


class StateImport(WithState):
    """Positions of a blob, and the state after them if `state` has it; without it the sequence cannot continue from
    there.
    """

    def __init__(self, states: States, seq: int, state: np.ndarray | None, positions: Steps) -> None:
        made = states.take() if state is not None else UNKNOWN
        target = states.data(made) if state is not None else None
        self._made: int | None = made

        def move(b0: int, b1: int) -> None:
            assert target is not None and state is not None
            target[b0:b1] = state[b0:b1]

        def count() -> None:
            states.put(seq, made)
            self._made = None

        def end() -> None:
            if self._made is not None:
                states.give(self._made)

        positions.then(count)
        super().__init__(0 if state is None else len(state), move, positions, end)


class SharedState(WithState):
    """A copy of `n` positions. The transfer holds the state after them, because the source may continue meanwhile; at
    the end both sequences have the state.
    """

    def __init__(self, states: States, what: tuple[int, int, int], n_kv: int, positions: Steps) -> None:
        """`what`: source sequence, destination sequence, number of positions."""
        src, dst, n = what
        state = states.hold(states.at(src, n, n_kv))

        def count() -> None:
            states.put(dst, states.hold(state))
            states.share_kept(src, dst, n)

        positions.then(count)
        super().__init__(0, lambda b0, b1: None, positions, lambda: states.give(state))


def blob_bytes(states: States, has_state: bool) -> int:
    """Number of bytes after the positions of an exported blob."""
    return FLAG_BYTES + (4 * states.n_floats if has_state else 0)


def split_blob(states: States, blob: bytes | bytearray | memoryview) -> tuple[int, np.ndarray | None]:
    """Return how many bytes of positions the blob has, and the state after them. Raises: STATE_RESTORE_FAILED."""
    data = np.frombuffer(blob, np.uint8)
    has_state = len(data) >= FLAG_BYTES and bool(data[-1])
    n = len(data) - blob_bytes(states, has_state)
    if n < 0:
        raise UmaError(
            ErrorCode.STATE_RESTORE_FAILED, f"{len(data)} bytes are not the positions and state of this model"
        )
    return n, data[n:-FLAG_BYTES] if has_state else None
