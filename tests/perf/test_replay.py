"""Recorded texts are replayed token by token, with drafts and without, and studied without an engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perf import drafts, replay
from perf.recorded import N_TURNS, WORKLOADS, Recorded, recorded
from perf.replayed import Replay, Spelling, constraint_of, seed_of, vocabulary
from tests.perf.fake_server import uds_server
from uma_core.constraint.grammar import Grammar
from uma_core.constraint.matcher import Matcher
from uma_core.constraint.vocabulary import Vocabulary
from uma_core.engine.api import NOT_DRAWN, WANT_IF_ACCEPTED, Batch
from uma_core.engine.fake.engine import FakeEngine, FakeModel
from uma_core.speculation.acceptance import Acceptance
from uma_core.types import SamplingParams

ANSWER = [70, 71, 72, 73, 74, 75]
PRICES = {2: 1.05, 4: 1.17, 8: 1.37, 16: 2.0}


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(FakeModel(n_seq_max=2, n_ctx=512, is_unified=True))
    Replay(engine, {seed_of(0): ANSWER})
    return engine


def test_a_recorded_answer_is_chosen_and_others_are_not(engine: FakeEngine) -> None:
    ours, other = engine.sampler(SamplingParams(), seed_of(0)), engine.sampler(SamplingParams(), 1)
    batch = Batch(8)
    batch.add(5, 0, 0, True)
    batch.add(5, 0, 1, True)
    first = engine.decode(batch, [ours, other]).tokens
    assert first[0] == ANSWER[0] and first[1] != ANSWER[0]


def test_drafts_hold_as_far_as_they_were_recorded(engine: FakeEngine) -> None:
    sampler = engine.sampler(SamplingParams(), seed_of(0))
    batch = Batch(8)
    batch.add(5, 0, 0, True)
    batch.verify([70, 71, 9], 1, 0, WANT_IF_ACCEPTED)
    assert engine.decode(batch, [sampler] * 4).tokens == [70, 71, 72, NOT_DRAWN]
    assert list(batch.want_logits[:4]) == [1, 3, 3, 3], "the batch is as it was"
    engine.kv_truncate(0, 3)
    batch.clear()
    batch.add(72, 3, 0, True)
    assert engine.decode(batch, [sampler]).tokens == [73]


def test_every_workload_is_recorded() -> None:
    texts = recorded()
    assert {text.workload for text in texts} == set(WORKLOADS)
    assert sum(text.workload == "agent" for text in texts) == N_TURNS


def test_what_a_schema_forces_is_what_was_recorded() -> None:
    """Otherwise an extraction that must follow its schema could not be replayed."""
    vocab = vocabulary()
    spelling = Spelling(vocab, 2 * vocab.n_vocab)  # the spelling of a model with more tokens
    words, n_forced = Vocabulary(spelling), 0
    for text in recorded():
        constraint = constraint_of(text)
        assert (constraint is not None) is (text.workload == "json")
        if constraint is None:
            continue
        matcher = Matcher(Grammar(words, constraint))
        for token in vocab.tokenize(text.answer, False, False):
            assert token == next(iter(matcher.forced), token)
            n_forced += bool(matcher.forced)
            matcher.accept(token)
        assert matcher.is_done
    assert n_forced


def test_the_study_counts_what_holds() -> None:
    cost, prompt = drafts.cost_of(PRICES), np.arange(50, dtype=np.int32)
    copied, new = (
        drafts.Text(Recorded("edit", "", ""), prompt, list(range(begin, begin + 35))) for begin in (10, 1000)
    )
    tally, plain = drafts.Tally(), drafts.Tally()
    drafts.play([copied], Acceptance(), cost, tally)
    assert tally.n_tokens == 35 and tally.n_held > 15 and tally.speed > 1.5
    drafts.play([new, new], Acceptance(), cost, plain)
    assert plain.n_tokens == 70 and plain.n_drafted == 0 and plain.speed == pytest.approx(1.0)


def test_the_study_replays_several_streams_at_once() -> None:
    """Each stream gets its own tokens. A stream that copies is faster beside one that does not copy than it is without
    drafts.
    """
    cost, prompt = drafts.cost_of(PRICES), np.arange(50, dtype=np.int32)
    texts = [drafts.Text(Recorded("edit", "", ""), prompt, answer) for answer in (list(range(10, 45)), [999] * 5)]
    tally = drafts.Tally()
    drafts.play(texts, Acceptance(), cost, tally)
    assert tally.n_tokens == 40 and tally.speed > 1.2


def test_a_slow_answer_counts_for_as_long_as_it_took() -> None:
    second = 1_000_000_000
    assert replay.pace([(0, second, 11)]) == 10
    assert replay.pace([(0, second, 11), (5 * second, 15 * second, 11)]) == pytest.approx(20 / 11)


def test_a_daemon_that_hangs_up_is_said_at_once(socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "TIMEOUT_S", 1.0)
    with uds_server(socket_path, lambda request: [b""]), pytest.raises(OSError, match="hung up"):
        replay.Replayer(str(socket_path)).measure(replay.Case("prose", 1, False), "off", 0)


def test_words_compare_with_one_stream_without_drafts() -> None:
    row = {
        "tok_s": 10.0,
        "step_p95_ms": 12.0,
        "step_max_ms": 15.0,
        "token_p95_ms": 12.0,
        "accepted": 0.5,
        "drafted_per_token": 1.0,
    }
    told = replay.words(replay.Case("edit", 1, True), [{**row, "tok_s": 25.0}], [row], 10.0)
    assert "spec-edit-1-storm" in told and "2.50x" in told and "step_p95 1.20" in told
