"""The decode calls for which graphs are built at load: all that a tick may ask for, and each once."""

from __future__ import annotations

import pytest

from uma_core.engine.graph.forward import N_SMALL
from uma_core.engine.graph.ticks import (
    RIDE_ROWS,
    VERIFY_ROWS,
    VERIFY_ROWS_OF_STATES,
    ride_rows,
    tick_shapes,
    verify_rows,
)


def test_a_prompts_rows_ride_on_the_cpu_as_far_as_a_batch_goes() -> None:
    assert ride_rows(True, 512) == RIDE_ROWS and max(RIDE_ROWS) <= N_SMALL
    assert ride_rows(True, 5) == (2, 3, 4, 5) and ride_rows(True, 1) == ()
    assert ride_rows(False, 512) == ()


def test_a_call_with_drafts_is_no_larger_than_a_batch() -> None:
    assert verify_rows(512, False) == VERIFY_ROWS and verify_rows(4, False) == 4
    assert verify_rows(512, True) == VERIFY_ROWS_OF_STATES and verify_rows(4, True) == 4


@pytest.mark.parametrize("n_seq", [1, 2, 4, 16, 64])
@pytest.mark.parametrize("n_batch", [1, 4, 512])
@pytest.mark.parametrize("has_states", [False, True])
def test_every_call_of_a_tick_has_its_shape_and_none_has_two(n_seq: int, n_batch: int, has_states: bool) -> None:
    rides, n_verify = ride_rows(True, n_batch), verify_rows(n_batch, has_states)
    shapes = list(tick_shapes(n_seq, rides, n_verify))
    assert len(shapes) == len(set(shapes))
    n_most = min(n_seq, N_SMALL)
    streams = {(n, n) for n in range(1, n_most + 1)}
    drafts = {(n, n) for n in range(1, n_verify + 1)}
    beside_streams = {(rows, n) for rows in rides for n in range(1, n_most + 1) if rows > n}
    beside_drafts = {(rows, n) for rows in rides for n in range(1, n_verify + 1) if n < rows <= n_verify}
    assert set(shapes) == streams | drafts | beside_streams | beside_drafts
