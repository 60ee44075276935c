"""What every engine promises, whatever it computes with."""

import numpy as np
import pytest

from tests.engine.conftest import SLICED
from tests.engine.drive import FOREVER, finish, generate, read, read_plain, read_sliced, step, tokens_of
from uma_core.engine.api import Batch, DecodeStatus, Engine
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import SamplingParams

N_GENERATED = 12


on_sliced = pytest.mark.parametrize("engine", SLICED, indirect=True)


def test_positions_count_up_and_truncate(clean: Engine) -> None:
    assert clean.kv_len(0) == 0
    read(clean, 0, tokens_of(clean, 40))
    assert clean.kv_len(0) == 40
    assert clean.kv_truncate(0, 25) and clean.kv_len(0) == 25
    assert clean.kv_truncate(0, 0) and clean.kv_len(0) == 0


def test_one_text_however_the_prompt_is_read(clean: Engine) -> None:
    prompt = tokens_of(clean, 600)
    texts = [generate(clean, 0, read_plain(clean, 0, prompt), N_GENERATED)]
    if clean.info.capabilities.n_prefill_slots:
        texts.append(generate(clean, 1, read_sliced(clean, 1, prompt, FOREVER), N_GENERATED))
        texts.append(generate(clean, 2, read_sliced(clean, 2, prompt, 1), N_GENERATED))
    assert texts.count(texts[0]) == len(texts)


@on_sliced
def test_decode_calls_in_the_pauses_change_nothing(clean: Engine) -> None:
    prompt, chat = tokens_of(clean, 300, 1), tokens_of(clean, 30, 2)
    expected_chat = generate(clean, 0, read(clean, 0, chat), 60)
    expected = generate(clean, 1, read(clean, 1, prompt), N_GENERATED)
    clean.kv_truncate(0, 0)
    clean.kv_truncate(1, 0)
    out = [read(clean, 0, chat)]

    def one_more() -> None:
        if len(out) <= 60:
            out.extend(step(clean, [(0, out[-1])]))

    first = read_sliced(clean, 1, prompt, 1, between=one_more)
    while len(out) <= 60:
        one_more()
    assert out == expected_chat
    assert generate(clean, 1, first, N_GENERATED) == expected


@on_sliced
def test_two_chunks_in_progress(clean: Engine) -> None:
    a, b = tokens_of(clean, 200, 3), tokens_of(clean, 100, 4)
    expected = [read(clean, 0, a), read(clean, 1, b)]
    clean.kv_truncate(0, 0)
    clean.kv_truncate(1, 0)
    assert clean.prefill_open(0, a, True) and clean.prefill_open(1, b, True)
    assert not clean.prefill_open(2, b, True), "both prefill slots are taken"
    waiting = {0, 1}
    while waiting:
        for seq_id in sorted(waiting):
            if clean.prefill_run(seq_id, 0, 1, 1).status:
                waiting.discard(seq_id)
    assert [clean.prefill_sample(0, None), clean.prefill_sample(1, None)] == expected


@on_sliced
def test_a_paused_chunk_can_be_given_up(clean: Engine) -> None:
    prompt = tokens_of(clean, 200)
    expected = read(clean, 0, prompt)
    clean.kv_truncate(0, 0)
    clean.prefill_open(0, prompt, True)
    clean.prefill_run(0, 0, 1, 3)
    clean.prefill_close(0)
    assert clean.kv_len(0) == 0
    assert read(clean, 0, prompt) == expected


@on_sliced
def test_a_ring_ends_a_run_early(clean: Engine) -> None:
    clean.prefill_open(0, tokens_of(clean, 256), False)
    clean.interrupt()
    assert clean.prefill_run(0, FOREVER, 1, 1).fraction < 1.0
    clean.clear_interrupt()
    assert clean.prefill_run(0, FOREVER, 1, 1).fraction == 1.0


@on_sliced
def test_a_run_without_time_reads_on_all_the_same(clean: Engine) -> None:
    """Otherwise a chunk whose pieces take longer than was predicted would never be read."""
    clean.prefill_open(0, tokens_of(clean, 256), False)
    n_runs = 0
    while clean.prefill_run(0, 0, 1, 0).fraction < 1.0:
        n_runs += 1
        assert n_runs < 10_000


@on_sliced
def test_fraction_grows_to_one(clean: Engine) -> None:
    read(clean, 1, tokens_of(clean, 256), False)  # one chunk must be read before the share of a piece is known
    clean.prefill_open(0, tokens_of(clean, 256), False)
    seen = [0.0]
    while seen[-1] < 1.0:
        seen.append(clean.prefill_run(0, 0, 1, 1).fraction)
    assert seen == sorted(seen) and len(seen) > 3


def test_batches_of_one_and_of_many_agree(clean: Engine) -> None:
    prompts = [tokens_of(clean, 20 + 9 * i, 10 + i) for i in range(4)]
    firsts = [read(clean, i, p) for i, p in enumerate(prompts)]
    alone = [step(clean, [(i, firsts[i])])[0] for i in range(4)]
    single = [clean.logits(0).copy()]
    for i in range(4):
        clean.kv_truncate(i, len(prompts[i]))
    together = step(clean, list(enumerate(firsts)))
    last = clean.logits(3)
    assert together == alone
    spread = max(float(single[0].std()), 1e-6)
    assert np.abs(last - single[0]).max() < 0.1 * spread  # other batch shapes use other kernels: only rounding differs


@on_sliced
def test_copied_prefix_continues_alike(clean: Engine) -> None:
    prompt = tokens_of(clean, 150)
    first = read(clean, 0, prompt)
    finish(clean.copy_prefix(0, 1, 150), 0)
    assert clean.kv_len(1) == 150
    assert generate(clean, 1, first, N_GENERATED) == generate(clean, 0, first, N_GENERATED)


@on_sliced
def test_part_of_a_prefix_is_as_good_as_reading_it(clean: Engine) -> None:
    prompt = tokens_of(clean, 150)
    read(clean, 0, prompt)
    finish(clean.copy_prefix(0, 1, 90))
    tail = np.concatenate([prompt[90:120], tokens_of(clean, 40, 5)])
    expected = read(clean, 2, np.concatenate([prompt[:90], tail]))
    assert read(clean, 1, tail) == expected


@on_sliced
def test_state_leaves_and_returns(clean: Engine) -> None:
    prompt = tokens_of(clean, 130)
    first = read(clean, 0, prompt)
    export = clean.export_state(0, 130)
    finish(export, 0)
    expected = generate(clean, 0, first, N_GENERATED)
    clean.kv_truncate(0, 0)
    finish(clean.import_state(3, bytes(export.blob), 130), 0)
    assert generate(clean, 3, first, N_GENERATED) == expected


@on_sliced
def test_foreign_state_is_refused(clean: Engine) -> None:
    with pytest.raises(UmaError) as caught:
        clean.import_state(0, b"not a state", 5)
    assert caught.value.error is ErrorCode.STATE_RESTORE_FAILED


@on_sliced
def test_an_import_given_up_leaves_nothing(clean: Engine) -> None:
    read(clean, 0, tokens_of(clean, 200))
    export = clean.export_state(0, 200)
    finish(export)
    transfer = clean.import_state(1, bytes(export.blob), 200)
    transfer.step(0)
    transfer.close()
    assert clean.kv_len(1) in (0, 200)


def test_no_room_is_soft_and_changes_nothing(clean: Engine) -> None:
    n = clean.info.n_ctx_seq
    clean.fake_context(0, n - 3)
    if clean.info.is_unified:
        clean.fake_context(1, clean.info.n_ctx - n)  # the rest of the pool
    batch = Batch(8)
    batch.extend(tokens_of(clean, 5), n - 3, 0, True)
    assert clean.decode(batch, [None]).status is DecodeStatus.FULL
    assert clean.kv_len(0) == n - 3


def test_seeded_sampling_repeats_and_greedy_ignores_the_seed(clean: Engine) -> None:
    prompt = tokens_of(clean, 30)

    def draw(params: SamplingParams, seed: int) -> list[int]:
        clean.kv_truncate(0, 0)
        token = read(clean, 0, prompt)
        sampler = clean.sampler(params, seed)
        out = []
        for _ in range(10):
            batch = Batch(1)
            batch.add(token, clean.kv_len(0), 0, True)
            token = clean.decode(batch, [sampler]).tokens[0]
            out.append(token)
        sampler.close()
        return out

    hot = SamplingParams(temperature=1.5, top_k=0)
    assert draw(hot, 1) == draw(hot, 1)
    assert draw(hot, 1) != draw(hot, 2)
    assert draw(SamplingParams(repeat_penalty=1.0001), 1) == draw(SamplingParams(repeat_penalty=1.0001), 2)


def test_tokens_and_pieces_agree(clean: Engine) -> None:
    text = "Unix sockets, größer, 日本語.\n"
    tokens = clean.tokenize(text, False, False)
    assert b"".join(clean.piece(t) for t in tokens).decode() == text
    assert clean.tokenize("", False, False) == []


def test_control_tokens_have_a_text_for_those_who_ask(clean: Engine) -> None:
    bos = clean.special("bos")
    tokens = clean.tokenize(f"a{bos}b", False, True)
    assert b"".join(clean.piece(t) for t in tokens) == b"ab"
    assert b"".join(clean.piece(t, True) for t in tokens).decode() == f"a{bos}b"
    assert all(0 <= t < clean.n_vocab for t in tokens)


def test_pages_cover_the_positions(clean: Engine) -> None:
    size = clean.info.kv_page
    n = 2 * size + 1 if size > 1 else 20
    read_plain(clean, 1, tokens_of(clean, n))
    assert len(clean.kv_pages(1, n)) == (3 if size > 1 else 0)
    assert len(clean.kv_pages(1, size)) == (1 if size > 1 else 0)
    assert len(set(clean.kv_pages(1, n).tolist())) == len(clean.kv_pages(1, n))
    assert len(clean.kv_pages(0, n)) == 0
