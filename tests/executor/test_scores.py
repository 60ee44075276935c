"""Log probabilities of prompts, over the FakeEngine."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.executor.rig import Rig
from uma_core.cache.settings import CacheSettings
from uma_core.engine.fake.engine import FakeModel
from uma_core.engine.fake.text import BOS, START, advance, next_token, row_logits
from uma_core.session.events import Prompt, Token
from uma_core.types import FinishReason, Priority, SamplingParams, TokenLogprob

TEXT = "the quick brown fox jumps over the lazy dog, " * 4
TOKENS = [BOS, *TEXT.encode()]


def told(rig: Rig, request_id: str = "a") -> list[TokenLogprob]:
    return [one for e in rig.seen if isinstance(e, Prompt) and e.request_id == request_id for one in e.logprobs]


def expected(tokens: list[int], n_top: int) -> list[tuple[float | None, list[int]]]:
    """Return what the engine's rows give to each token, and the likeliest tokens in its place."""
    out: list[tuple[float | None, list[int]]] = [(None, [])]
    state = START
    for token, following in itertools.pairwise(tokens):
        state = advance(state, token)
        row = row_logits(next_token(state, 0)).astype(np.float64)
        logs = row - np.log(np.exp(row).sum())
        out.append((float(logs[following]), np.argsort(-logs, kind="stable")[:n_top].tolist()))
    return out


def check(rig: Rig, tokens: list[int] = TOKENS, n_top: int = 2, request_id: str = "a") -> None:
    ones = told(rig, request_id)
    assert [one.token_id for one in ones] == tokens
    for one, (logprob, top) in zip(ones, expected(tokens, n_top), strict=True):
        assert one.logprob == (None if logprob is None else pytest.approx(logprob, abs=1e-5))
        assert [t for t, _, _ in one.top] == top


@pytest.mark.parametrize("priority", [Priority.INTERACTIVE, Priority.BACKGROUND])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n_prefill_slots", [0, 2])
def test_each_token_of_a_prompt_has_what_its_row_gives_and_the_answer_is_the_same(
    n_prefill_slots: int, stream: bool, priority: Priority
) -> None:
    plain, rig = Rig(FakeModel(n_prefill_slots=n_prefill_slots)), Rig(FakeModel(n_prefill_slots=n_prefill_slots))
    for each, n_top in ((plain, None), (rig, 2)):
        each.submit("a", TEXT, max_tokens=20, stream=stream, priority=priority, prompt_logprobs=n_top)
        each.run()
        each.check_all_free()
    check(rig)
    assert rig.text("a") == plain.text("a") and told(plain) == []
    assert rig.finals("a")[0].usage == plain.finals("a")[0].usage
    kinds = [type(e) for e in rig.seen if isinstance(e, Prompt | Token)]
    assert kinds == sorted(kinds, key=[Prompt, Token].index), "the prompt comes before any text"


def test_a_prompt_of_one_token_has_none() -> None:
    rig = Rig()
    rig.submit("a", tokens=[BOS], max_tokens=3, prompt_logprobs=5)
    rig.run()
    assert told(rig) == [TokenLogprob(BOS, b"<bos>", None)] and len(rig.text("a")) == 3


def test_nothing_but_the_prompt() -> None:
    rig = Rig()
    rig.submit("a", TEXT, max_tokens=0, echo=True, prompt_logprobs=2, sampling=SamplingParams(logprobs=2))
    rig.run()
    check(rig)
    assert rig.text("a") == TEXT and rig.finals("a")[0].reason is FinishReason.LENGTH
    assert rig.finals("a")[0].usage["completion_tokens"] == 0


def test_nothing_is_restored_and_others_may_begin_with_what_was_read() -> None:
    rig = Rig()
    rig.executor.set_cache(CacheSettings(is_on=True))
    for name, n_top in (("before", None), ("a", 1), ("after", None)):
        rig.submit(name, TEXT, max_tokens=5, prompt_logprobs=n_top)
        rig.run()
    check(rig, n_top=1)
    cached = [rig.finals(name)[0].usage["cached_tokens"] for name in ("before", "a", "after")]
    assert cached[:2] == [0, 0] and cached[2] >= len(TOKENS) - 1


@pytest.mark.parametrize("ride_rows", [(), (8,), (8, 16, 32)])
def test_beside_others_every_row_is_right_and_the_others_lose_no_step(ride_rows: tuple[int, ...]) -> None:
    def run(*names: str) -> Rig:
        rig = Rig(FakeModel(n_prefill_slots=0, is_unified=True, ride_rows=ride_rows))
        for name in names:
            fields = {"prompt_logprobs": 2} if name in "ab" else {}
            rig.submit(name, TEXT if name == "a" else f"prompt {name}" * 3, max_tokens=60, **fields)
        rig.run()
        return rig

    rig = run("c", "a", "d", "b")
    check(rig)
    check(rig, [BOS, *b"prompt bprompt bprompt b"], request_id="b")
    for name in "abcd":
        assert rig.text(name) == run(name).text(name)


def test_alone_it_is_read_many_tokens_at_a_time_and_beside_others_one_a_step_where_more_cost_time() -> None:
    alone, beside = Rig(FakeModel(n_prefill_slots=0)), Rig(FakeModel(n_prefill_slots=0))
    alone.submit("a", TEXT, max_tokens=1, prompt_logprobs=0)
    alone.run()
    beside.submit("chat", "hello", max_tokens=len(TOKENS) + 40)
    for _ in range(5):
        beside.tick()
    beside.submit("a", TEXT, max_tokens=1, prompt_logprobs=0)
    beside.run()
    n_calls = [rig.executor.meters.calls.value for rig in (alone, beside)]
    assert n_calls[0] < len(TOKENS) / 8 and n_calls[1] > len(TOKENS)
    assert max(e.text.count("") for e in beside.seen if isinstance(e, Token)) == 2, "the chat got a token a step"


def test_of_several_answers_one_tells_of_the_prompt() -> None:
    rig = Rig()
    rig.submit(
        "a", TEXT, max_tokens=10, n=3, prompt_logprobs=2, stream=False, sampling=SamplingParams(temperature=1, seed=4)
    )
    plain = Rig()
    plain.submit("a", TEXT, max_tokens=10, n=3, stream=False, sampling=SamplingParams(temperature=1, seed=4))
    for each in (rig, plain):
        each.run()
        each.check_all_free()
    check(rig)
    texts = [[answer.text for answer in each.finals("a")[0].answers or ()] for each in (rig, plain)]
    assert texts[0] == texts[1]


def test_another_answer_goes_on_where_the_first_was_cancelled() -> None:
    rig = Rig(FakeModel(n_prefill_slots=0))
    rig.submit("chat", "hello", max_tokens=500)
    rig.submit("a", TEXT, max_tokens=10, n=2, prompt_logprobs=2)
    while len(told(rig)) < 64:
        rig.tick()
    rig.executor.cancel(1, "a", 0)
    rig.run()
    check(rig)
    rig.check_all_free()


def test_parking_in_between_loses_and_repeats_nothing() -> None:
    rig = Rig(FakeModel(n_seq_max=1, n_prefill_slots=0))
    rig.submit("a", TEXT, max_tokens=10, prompt_logprobs=2, priority=Priority.BACKGROUND)
    for i in range(3):
        for _ in range(9):
            rig.tick()
        rig.submit(f"chat{i}", "hi", max_tokens=3, priority=Priority.INTERACTIVE)
    rig.run()
    assert rig.executor.meters.preemptions.value
    check(rig)
    rig.check_all_free()


def test_a_row_that_is_not_finite_ends_it_with_a_code_once() -> None:
    rig = Rig(FakeModel(n_prefill_slots=0))
    rig.submit("a", TEXT, max_tokens=10, prompt_logprobs=2)
    rig.tick()
    rig.faults.nan_rows = {3}
    rig.run()
    rig.check_one_final_each()
    assert rig.finals("a")[0].reason is FinishReason.ERROR
    rig.check_all_free()


def test_a_cancelled_one_leaves_no_trace() -> None:
    rig = Rig(FakeModel(n_prefill_slots=0))
    rig.submit("chat", "hello", max_tokens=200)
    rig.submit("a", TEXT, max_tokens=10, prompt_logprobs=2)
    for _ in range(20):
        rig.tick()
    rig.executor.cancel(1, "a")
    rig.run()
    rig.check_one_final_each()
    rig.check_all_free()
