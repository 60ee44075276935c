"""Parts of a sequence's KV, as the prefix cache moves them."""

import pytest

from tests.engine.conftest import SLICED
from tests.engine.drive import finish, generate, read, tokens_of
from uma_core.engine.api import Engine
from uma_core.errors import ErrorCode, UmaError

on_sliced = pytest.mark.parametrize("engine", SLICED, indirect=True)
N = 150
N_GENERATED = 8


@on_sliced
def test_a_sequence_is_put_together_from_segments(clean: Engine) -> None:
    first = read(clean, 0, tokens_of(clean, N))
    blobs = []
    for start, end in ((0, 70), (70, 71), (71, N)):
        export = clean.export_state(0, end, start)
        finish(export, 0)
        blobs.append((start, end, bytes(export.blob)))
    for start, end, blob in blobs:
        finish(clean.import_state(1, blob, end, start, start), 0)
    assert clean.kv_len(1) == N
    assert generate(clean, 1, first, N_GENERATED) == generate(clean, 0, first, N_GENERATED)


@on_sliced
def test_a_part_of_a_blob_is_enough(clean: Engine) -> None:
    prompt = tokens_of(clean, N)
    first = read(clean, 0, prompt)
    export = clean.export_state(0, N, 20)
    finish(export)
    read(clean, 1, prompt[:50])
    finish(clean.import_state(1, bytes(export.blob), 90, 50, 20), 0)
    assert clean.kv_len(1) == 90
    assert read(clean, 1, prompt[90:]) == first
    assert generate(clean, 1, first, N_GENERATED) == generate(clean, 0, first, N_GENERATED)


@on_sliced
def test_a_copy_continues_what_is_there(clean: Engine) -> None:
    prompt = tokens_of(clean, N)
    first = read(clean, 0, prompt)
    read(clean, 1, prompt[:40])
    transfer = clean.copy_prefix(0, 1, 120, 40)
    finish(transfer, 0)
    assert read(clean, 1, prompt[120:]) == first


@on_sliced
def test_a_part_given_up_leaves_what_was_there(clean: Engine) -> None:
    prompt = tokens_of(clean, N)
    read(clean, 0, prompt)
    read(clean, 1, prompt[:40])
    transfer = clean.copy_prefix(0, 1, 120, 40)
    transfer.step(0)
    transfer.close()
    assert clean.kv_len(1) in (40, 120)


@on_sliced
@pytest.mark.parametrize("start, end, origin", [(0, 90, 10), (90, 80, 20), (0, 31, 0), (30, 61, 30)])
def test_positions_outside_the_blob_are_refused(clean: Engine, start: int, end: int, origin: int) -> None:
    read(clean, 0, tokens_of(clean, 30))
    export = clean.export_state(0, 30)
    finish(export)
    with pytest.raises(UmaError) as caught:
        clean.import_state(1, bytes(export.blob), end, start, origin)
    assert caught.value.error is ErrorCode.STATE_RESTORE_FAILED
    assert clean.kv_len(1) == 0
