"""Several answers to one request: one prompt, a stream for each answer, one end."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.executor.rig import Rig, alone
from uma_core.cache.settings import CacheSettings
from uma_core.engine.api import DecodeStatus
from uma_core.engine.fake.engine import FakeModel
from uma_core.errors import ErrorCode, UmaError
from uma_core.executor.admission import Limits
from uma_core.session.events import Accepted, End, Token
from uma_core.types import FinishReason, Priority, SamplingParams

HOT = SamplingParams(temperature=1.0, seed=11)
PROMPT = "a prompt that several answers share, " * 9


def texts(rig: Rig, n: int) -> list[str]:
    events = [e for e in rig.seen if isinstance(e, Token)]
    return ["".join(e.text for e in events if e.which == i) for i in range(n)]


def ends(rig: Rig) -> dict[int, FinishReason]:
    found = {e.answer.which: e.answer.reason for e in rig.seen if isinstance(e, End)}
    assert len(found) == sum(isinstance(e, End) for e in rig.seen), "each ends once"
    return found


def drawn_alone(seed: int, n: int = 12, **fields: Any) -> str:
    return alone(PROMPT, max_tokens=n, sampling=SamplingParams(temperature=1.0, seed=seed), **fields)


@pytest.mark.parametrize("n_prefill_slots", [0, 2])
@pytest.mark.parametrize("is_unified", [False, True])
@pytest.mark.parametrize("priority", list(Priority))
def test_each_answer_is_that_of_its_own_seed_and_the_prompt_is_read_once(
    n_prefill_slots: int, is_unified: bool, priority: Priority
) -> None:
    rig = Rig(FakeModel(n_prefill_slots=n_prefill_slots, is_unified=is_unified))
    rig.submit("a", PROMPT, max_tokens=12, n=4, priority=priority, sampling=HOT)
    rig.run()
    assert texts(rig, 4) == [drawn_alone(11 + i) for i in range(4)]
    assert ends(rig) == dict.fromkeys(range(4), FinishReason.LENGTH)
    (final,) = rig.finals("a")
    assert rig.seen[-1] is final and final.reason is FinishReason.LENGTH and final.answers is None
    n_prompt = len(PROMPT) + 1
    assert final.usage == {"prompt_tokens": n_prompt, "cached_tokens": 0, "completion_tokens": 48}
    assert rig.executor.meters.prefill_tokens.value == n_prompt + 3, "the others compute its last token"
    assert sum(isinstance(e, Accepted) for e in rig.seen) == 1
    rig.check_one_final_each()
    rig.check_all_free()


def test_a_request_counts_once_however_many_answers_it_has() -> None:
    rig = Rig()
    rig.submit("a", PROMPT, max_tokens=12, n=3, sampling=HOT)
    rig.run()
    meters = rig.executor.meters
    assert sum(counter.value for counter in meters.accepted.values()) == 1
    assert {reason: counter.value for reason, counter in meters.ended.items() if counter.value} == {
        FinishReason.LENGTH: 1
    }


def test_without_a_stream_all_answers_come_at_the_end() -> None:
    rig = Rig()
    rig.submit("a", PROMPT, max_tokens=12, n=3, stream=False, sampling=HOT)
    rig.run()
    (final,) = rig.finals("a")
    assert [type(e) for e in rig.seen] == [Accepted, type(final)]
    assert final.answers is not None
    assert [(a.which, a.text, a.reason) for a in final.answers] == [
        (i, drawn_alone(11 + i), FinishReason.LENGTH) for i in range(3)
    ]


def test_the_likeliest_of_several_are_told() -> None:
    rig = Rig()
    rig.submit(
        "all", PROMPT, max_tokens=6, n=4, stream=False, sampling=SamplingParams(temperature=1.0, seed=5, logprobs=0)
    )
    rig.submit(
        "best", PROMPT, max_tokens=6, n=2, best_of=4, stream=False, sampling=SamplingParams(temperature=1.0, seed=5)
    )
    rig.run()
    (every,), (best,) = rig.finals("all"), rig.finals("best")
    assert every.answers and best.answers
    ranked = sorted(every.answers, key=lambda a: -np.mean([one.logprob for one in a.logprobs or ()]))
    assert [a.text for a in best.answers] == [a.text for a in ranked[:2]]
    assert [a.which for a in best.answers] == [0, 1] and all(a.logprobs is None for a in best.answers)
    assert best.usage["completion_tokens"] == 24, "all four were made"


def test_one_answer_is_cancelled_and_the_others_go_on() -> None:
    rig = Rig()
    rig.submit("a", PROMPT, max_tokens=30, n=3, sampling=HOT)
    while len([e for e in rig.seen if isinstance(e, Token)]) < 12:
        rig.tick()
    assert rig.executor.cancel(1, "a", 1) and not rig.executor.cancel(1, "a", 1)
    assert not rig.executor.cancel(1, "a", 9)
    rig.run()
    assert ends(rig) == {0: FinishReason.LENGTH, 1: FinishReason.CANCELLED, 2: FinishReason.LENGTH}
    assert [len(text) for text in texts(rig, 3)][::2] == [30, 30]
    assert rig.finals("a")[0].reason is FinishReason.LENGTH
    rig.check_one_final_each()


@pytest.mark.parametrize("n_ticks", [0, 1, 3, 12])
def test_a_cancel_of_the_request_ends_all_answers(n_ticks: int) -> None:
    rig = Rig()
    rig.submit("a", PROMPT, max_tokens=30, n=3, sampling=HOT)
    for _ in range(n_ticks):
        rig.tick()
    assert rig.executor.cancel(1, "a")
    rig.run()
    assert set(ends(rig).values()) == {FinishReason.CANCELLED}
    assert rig.finals("a")[0].reason is FinishReason.CANCELLED
    rig.check_one_final_each()
    rig.check_all_free()


def test_a_cancelled_request_has_no_error_although_one_answer_failed() -> None:
    rig = Rig()
    rig.submit("a", PROMPT, max_tokens=30, n=2, sampling=HOT)
    while not any(isinstance(e, Token) for e in rig.seen):
        rig.tick()
    first = next(session for session in rig.executor.table if session.index == 0)
    rig.executor.output.fail(first, UmaError(ErrorCode.CONSTRAINT_FAILED), rig.clock.now_ns())
    assert rig.executor.cancel(1, "a")
    rig.run()
    assert ends(rig) == {0: FinishReason.ERROR, 1: FinishReason.CANCELLED}
    (final,) = rig.finals("a")
    assert (final.reason, final.error) == (FinishReason.CANCELLED, None)
    rig.check_one_final_each()


@pytest.mark.parametrize("n_ticks", [0, 1, 2])
def test_the_others_go_on_when_the_one_that_reads_the_prompt_is_cancelled(n_ticks: int) -> None:
    rig = Rig()
    rig.submit("a", PROMPT, max_tokens=8, n=3, sampling=HOT)
    for _ in range(n_ticks):
        rig.tick()
    rig.executor.cancel(1, "a", 0)
    rig.run()
    assert texts(rig, 3)[1:] == [drawn_alone(12, 8), drawn_alone(13, 8)]
    rig.check_one_final_each()
    rig.check_all_free()


def test_answers_that_end_with_their_first_token_share_the_prompt_too() -> None:
    rig = Rig()
    rig.submit("a", PROMPT, max_tokens=1, n=3, sampling=HOT)
    rig.run()
    assert [len(text) for text in texts(rig, 3)] == [1, 1, 1]
    assert rig.executor.meters.prefill_tokens.value == len(PROMPT) + 1 + 2


@pytest.mark.parametrize("settings", [CacheSettings(is_on=False), CacheSettings()])
def test_answers_share_a_prompt_that_is_kept_for_nobody_else(settings: CacheSettings) -> None:
    rig = Rig()
    rig.executor.set_cache(settings)
    rig.submit("a", PROMPT, max_tokens=12, n=3, sampling=HOT, cache_prompt=False)
    rig.run()
    assert texts(rig, 3) == [drawn_alone(11 + i) for i in range(3)]
    assert rig.executor.meters.prefill_tokens.value == len(PROMPT) + 1 + 2
    assert all(not resident.n for resident in rig.executor.cache.residents) and not rig.executor.cache.trees
    rig.check_all_free()


def test_more_answers_than_sequences_or_sessions_are_refused() -> None:
    rig = Rig(limits=Limits(max_sessions=3))
    rig.submit("a", n=5)
    rig.submit("b", best_of=5, stream=False)
    rig.submit("c", n=4)
    rig.submit("d", n=3, max_tokens=2)
    rig.run()
    assert [(e.request_id, e.error.error, e.error.detail.get("field")) for e in rig.refusals()] == [
        ("a", ErrorCode.BAD_REQUEST, "n"),
        ("b", ErrorCode.BAD_REQUEST, "best_of"),
        ("c", ErrorCode.TOO_MANY_SESSIONS, None),
    ]
    assert len(ends(rig)) == 3


def test_a_failure_ends_one_answer_and_the_request_says_so() -> None:
    rig = Rig()
    rig.submit("a", PROMPT, max_tokens=20, n=3, sampling=HOT)
    while len([e for e in rig.seen if isinstance(e, Token)]) < 9:
        rig.tick()
    rig.faults.nan_rows = {1}
    rig.run()
    reasons = sorted(reason.value for reason in ends(rig).values())
    assert reasons == ["error", "length", "length"]
    (final,) = rig.finals("a")
    assert (
        final.reason is FinishReason.ERROR and final.error is not None and final.error.error is ErrorCode.SAMPLER_FAILED
    )


@pytest.mark.parametrize("seed", range(25))
def test_any_interleaving_gives_one_end(seed: int) -> None:
    chance = random.Random(seed)
    rig = Rig(FakeModel(n_seq_max=4, n_ctx=4096, is_unified=chance.random() < 0.5, eog_every=chance.choice([0, 7])))
    for i in range(8):
        n = chance.randrange(1, 5)
        rig.submit(
            f"r{i}",
            PROMPT[: chance.randrange(1, 300)],
            conn_id=chance.randrange(1, 4),
            max_tokens=chance.randrange(1, 20),
            n=n,
            stream=chance.random() < 0.7,
            cache_prompt=chance.random() < 0.7,
            timeout_ns=chance.choice([0, 0, 30_000_000]),
            sampling=SamplingParams(temperature=chance.choice([0.0, 1.0]), logprobs=chance.choice([None, 1])),
        )
        for _ in range(chance.randrange(8)):
            rig.tick()
        what = chance.random()
        if what < 0.25:
            rig.executor.cancel(chance.randrange(1, 4), f"r{i}", chance.choice([None, 0, 1, 2]))
        elif what < 0.35:
            rig.executor.hang_up(chance.randrange(1, 4))
        elif what < 0.45:
            rig.faults.statuses.append(chance.choice([DecodeStatus.FATAL, DecodeStatus.FULL, DecodeStatus.ABORTED]))
        elif what < 0.5:
            rig.faults.nan_rows = {0}
    rig.run()
    rig.check_one_final_each()
    rig.check_all_free()
    for event in (e for e in rig.seen if isinstance(e, End)):
        assert event.answer.reason in FinishReason


# -- echo, and nothing at all


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [True, False])
def test_answers_begin_with_what_they_echo(n: int, stream: bool) -> None:
    rig = Rig()
    rig.submit("a", PROMPT, max_tokens=6, n=n, stream=stream, sampling=HOT, echo=True)
    rig.run()
    told = [e.text for e in rig.finals("a")[0].answers or ()] or [rig.text("a")]
    said = texts(rig, n) if stream and n > 1 else told
    assert said == [PROMPT + drawn_alone(11 + i, 6) for i in range(n)]


def test_no_tokens_are_made_where_none_are_wanted() -> None:
    rig = Rig()
    rig.submit("a", PROMPT, max_tokens=0)
    rig.submit("b", PROMPT, max_tokens=0, echo=True, n=2)
    rig.run()
    (a,), (b,) = rig.finals("a"), rig.finals("b")
    assert (rig.text("a"), a.reason, a.usage["completion_tokens"]) == ("", FinishReason.LENGTH, 0)
    assert texts(rig, 2) == [PROMPT, PROMPT] and b.usage["completion_tokens"] == 0
