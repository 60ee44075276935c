"""Constrained answers through whole lives of requests over the FakeEngine, whose logits ignore every grammar."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.executor.rig import Rig, alone
from uma_core.cache.settings import CacheSettings
from uma_core.constraint.compiler import Compiler
from uma_core.engine.fake.engine import FakeModel
from uma_core.errors import ErrorCode, UmaError
from uma_core.metrics.catalog import new_registry
from uma_core.session.events import Token
from uma_core.types import Constraint, FinishReason, Priority, Reasoning, SamplingParams, Trigger

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "n": {"type": "integer", "maximum": 999, "minimum": 0}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
HOT = SamplingParams(temperature=1.0, seed=7)


def ask(rig: Rig, compiler: Compiler, name: str, constraint: Constraint, **fields) -> None:
    rig.submit(name, matcher=compiler.compile(rig.engine, constraint), **fields)


def schema(value=SCHEMA, **fields) -> Constraint:
    return Constraint("json_schema", value, **fields)


@pytest.mark.parametrize("sampling", [SamplingParams(), HOT], ids=["greedy", "hot"])
@pytest.mark.parametrize("n_prefill_slots", [0, 2])
def test_an_answer_validates_and_ends_by_itself(compiler, sampling, n_prefill_slots):
    rig = Rig(FakeModel(n_prefill_slots=n_prefill_slots))
    ask(rig, compiler, "a", schema(), sampling=sampling, max_tokens=300)
    rig.run()
    answer = json.loads(rig.text("a"))
    assert set(answer) == {"name", "n"} and 0 <= answer["n"] <= 999
    assert rig.finals("a")[0].reason is FinishReason.STOP
    rig.check_all_free()


def test_a_model_that_wants_to_end_early_does_not(compiler):
    rig = Rig(FakeModel(eog_every=2))
    ask(rig, compiler, "a", schema(), max_tokens=300)
    rig.run()
    assert set(json.loads(rig.text("a"))) == {"name", "n"}


def test_it_may_end_only_where_the_grammar_may(compiler):
    rig = Rig(FakeModel(eog_every=2))
    ask(rig, compiler, "a", Constraint("regex", "(ab){3,}"), max_tokens=300)
    rig.run()
    text = rig.text("a")
    assert len(text) >= 6 and text == "ab" * (len(text) // 2)


def test_ignore_eos_goes_on_for_as_long_as_the_grammar_can(compiler):
    rig = Rig(FakeModel(eog_every=2))
    ask(rig, compiler, "a", Constraint("regex", "(ab){3,}"), max_tokens=40, ignore_eos=True)
    ask(rig, compiler, "b", Constraint("regex", "(ab){3,4}"), max_tokens=40, ignore_eos=True)
    rig.run()
    assert rig.text("a") == "ab" * 20 and rig.finals("a")[0].reason is FinishReason.LENGTH
    assert rig.text("b") == "ab" * 4 and rig.finals("b")[0].reason is FinishReason.STOP


def test_max_tokens_cuts_it_with_reason_length(compiler):
    rig = Rig()
    ask(rig, compiler, "a", schema(), max_tokens=4)
    rig.run()
    assert rig.finals("a")[0].reason is FinishReason.LENGTH and rig.text("a").startswith("{")


def test_a_stop_text_ends_it_before_the_grammar_does(compiler):
    rig = Rig()
    ask(rig, compiler, "a", Constraint("choices", ("one two three",)), max_tokens=40, stop=(" th",))
    rig.run()
    assert rig.text("a") == "one two" and rig.finals("a")[0].reason is FinishReason.STOP


def test_free_text_until_the_trigger_and_then_the_grammar(compiler):
    constraint = Constraint("regex", "[0-9]{3}!", triggers=(Trigger("pattern", "[aeiou]", True),))
    rig = Rig()
    ask(rig, compiler, "a", constraint, max_tokens=60)
    rig.run()
    text = rig.text("a")
    n_free = next(i for i, c in enumerate(text) if c in "aeiou") + 1
    assert text[:n_free] == alone(max_tokens=60)[:n_free], "until then it is what it would have been"
    assert len(text) == n_free + 4 and text[n_free:-1].isdigit() and text[-1] == "!"


@pytest.mark.parametrize("overflow", ["error", "shift"])
@pytest.mark.parametrize("sampling", [SamplingParams(), HOT, SamplingParams(logprobs=1)], ids=["", "hot", "logprobs"])
@pytest.mark.parametrize("n_prefill_slots", [0, 2])
def test_a_token_that_no_grammar_after_its_trigger_takes_is_drawn_again(compiler, n_prefill_slots, sampling, overflow):
    refused = Constraint("regex", "[0-9]+", triggers=(Trigger("pattern", "[a-m]"),))
    rig = Rig(FakeModel(n_prefill_slots=n_prefill_slots, n_ctx=256))
    for name in "abc":
        ask(rig, compiler, name, refused, prompt=name, max_tokens=90, sampling=sampling, overflow=overflow)
    rig.submit("free", max_tokens=90, ignore_eos=True)
    rig.run()
    for name in "abc":
        assert [final.error for final in rig.finals(name)] == [None]
        assert rig.text(name) and not set("abcdefghijklm") & set(rig.text(name))
    model = FakeModel(n_prefill_slots=n_prefill_slots, n_ctx=256)
    assert rig.text("free") == alone(model=model, max_tokens=90, ignore_eos=True)


def test_answers_do_not_change_each_other_nor_free_ones(compiler):
    def texts(*names: str) -> dict[str, str]:
        rig = Rig()
        for name in names:
            if name.startswith("free"):
                rig.submit(name, f"prompt {name}", max_tokens=40)
            else:
                ask(rig, compiler, name, schema(), prompt=f"prompt {name}", max_tokens=200, sampling=HOT)
        rig.run()
        return {name: rig.text(name) for name in names}

    names = ["s1", "free1", "s2", "free2", "s3"]
    together = texts(*names)
    assert all(texts(name)[name] == together[name] for name in names)


def test_parking_and_a_shift_of_the_context_lose_nothing_of_it(compiler):
    model = FakeModel(n_seq_max=1, n_ctx=64)
    rig = Rig(model)
    ask(
        rig,
        compiler,
        "long",
        Constraint("regex", "(ab){60,}!"),
        max_tokens=150,
        overflow="shift",
        priority=Priority.BACKGROUND,
        ignore_eos=True,
    )
    for _ in range(20):
        rig.tick()
    for i in range(3):
        rig.submit(f"chat{i}", max_tokens=3, priority=Priority.INTERACTIVE)
    rig.run()
    text = rig.text("long")
    assert text.rstrip("!") == "ab" * (len(text) // 2) and len(text) > 64
    assert rig.executor.meters.preemptions.value


def test_a_cancelled_answer_leaves_no_trace(compiler):
    rig = Rig()
    ask(rig, compiler, "a", schema({"type": "string", "minLength": 500}), max_tokens=600)
    for _ in range(10):
        rig.tick()
    assert rig.executor.cancel(1, "a")
    rig.run()
    assert rig.finals("a")[0].reason is FinishReason.CANCELLED
    rig.check_all_free()


class Failing:
    """A matcher that allows everything for some tokens and then fails."""

    mask: np.ndarray | None = None
    forced = ()
    is_done = False

    def __init__(self, error: Exception | None, n: int = 3, spent_ns: int = 0) -> None:
        self.error, self.n, self.spent_ns = error, n, spent_ns

    def accept(self, token: int) -> bool:
        self.n -= 1
        if self.error is not None and not self.n:
            raise self.error
        return True

    def fork(self) -> Failing:
        return self


@pytest.mark.parametrize(
    ("raised", "code"),
    [(UmaError(ErrorCode.CONSTRAINT_FAILED), ErrorCode.CONSTRAINT_FAILED), (ZeroDivisionError(), ErrorCode.INTERNAL)],
)
def test_a_matcher_that_fails_ends_its_own_request_alone(raised, code):
    rig = Rig()
    rig.submit("a", matcher=Failing(raised), max_tokens=40)
    rig.submit("b", max_tokens=40)
    rig.run()
    (final,) = rig.finals("a")
    assert final.reason is FinishReason.ERROR and final.error.error is code and len(rig.text("a")) == 2
    assert rig.finals("b")[0].reason is FinishReason.LENGTH
    rig.check_all_free()


@pytest.mark.parametrize("n_prefill_slots", [0, 2])
@pytest.mark.parametrize("n", [1, 3])
def test_a_prompt_whose_grammar_fails_need_not_be_read_again(n_prefill_slots, n):
    rig, prompt = Rig(FakeModel(n_prefill_slots=n_prefill_slots)), "a prompt of some length " * 10
    rig.executor.set_cache(CacheSettings(is_on=True))
    rig.submit("a", prompt, matcher=Failing(UmaError(ErrorCode.CONSTRAINT_FAILED), n), max_tokens=40)
    rig.run()
    assert rig.finals("a")[0].error.error is ErrorCode.CONSTRAINT_FAILED
    rig.check_all_free()
    rig.check_cached(prompt, 200)


def test_a_prompt_whose_answer_has_no_way_on_need_not_be_read_again(compiler):
    rig, prompt = Rig(), "a prompt of some length " * 10
    rig.executor.set_cache(CacheSettings(is_on=True))
    never = SamplingParams(logit_bias=((ord("b"), -np.inf),))
    ask(rig, compiler, "a", Constraint("regex", "ab[cd]"), prompt=prompt, sampling=never, max_tokens=30)
    rig.run()
    assert rig.finals("a")[0].error.error is ErrorCode.CONSTRAINT_FAILED
    rig.check_cached(prompt, 200)


def test_what_the_engine_may_have_spoilt_is_not_used_again():
    rig, prompt = Rig(), "a prompt of some length " * 10
    rig.executor.set_cache(CacheSettings(is_on=True))
    rig.submit("a", prompt, matcher=Failing(None), max_tokens=40, sampling=HOT)
    while not rig.text("a"):
        rig.tick()
    rig.faults.nan_rows.add(0)
    rig.run()
    assert rig.finals("a")[0].error.error is ErrorCode.SAMPLER_FAILED
    rig.submit("b", prompt, max_tokens=20)
    rig.run()
    assert rig.finals("b")[0].usage["cached_tokens"] == 0


def gaps(rig: Rig, names: str, n: int) -> dict[str, int]:
    """Return how many tokens each request gets in `n` ticks."""
    rig.seen.clear()
    for _ in range(n):
        rig.tick()
    return {name: sum(isinstance(e, Token) and e.request_id == name for e in rig.seen) for name in names}


def test_a_slow_grammar_skips_ticks_beside_others_and_none_alone():
    rig = Rig()
    rig.submit("s", matcher=Failing(None, spent_ns=2_000_000), max_tokens=3000)
    rig.submit("f", max_tokens=300)
    while len({e.request_id for e in rig.seen if isinstance(e, Token)}) < 2:
        rig.tick()
    beside = gaps(rig, "sf", 110)
    assert beside["f"] == 110, "nobody waits for it"
    assert 5 <= beside["s"] <= 30, "0.2 ms a tick for steps of 2 ms: every eleventh"
    rig.executor.cancel(1, "f")
    assert gaps(rig, "s", 40)["s"] >= 38


# -- forced tokens


def unforced(monkeypatch) -> None:
    monkeypatch.setattr("uma_core.constraint.grammar.Grammar.forced_by", lambda self, matcher: [])


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(logprobs=2), SamplingParams(repeat_penalty=1.2)])
def test_what_a_grammar_forces_is_not_sampled_and_the_text_is_the_same(sampling, monkeypatch):
    def run() -> tuple[Rig, int, int]:
        rig = Rig()
        ask(rig, Compiler(new_registry()), "a", schema(), sampling=sampling, max_tokens=300)
        (session,) = rig.executor.table
        sampler = session.sampler
        rig.run()
        return rig, sampler.n_drawn, sampler.n_forced

    rig, n_drawn, n_forced = run()
    n = rig.finals("a")[0].usage["completion_tokens"]
    assert n_drawn + n_forced == n and n_forced > len('{"name""n"}') and rig.executor.meters.forced.value == n_forced
    ones = [one for e in rig.seen if isinstance(e, Token) for one in e.logprobs or ()]
    assert len(ones) == (n if sampling.logprobs is not None else 0), "forced ones have their probabilities too"
    unforced(monkeypatch)
    other, n_drawn, n_forced = run()
    assert other.text("a") == rig.text("a") and (n_drawn, n_forced) == (n, 0)


def test_a_forced_token_that_is_banned_is_not_forced(compiler):
    rig = Rig()
    never = SamplingParams(logit_bias=((ord("b"), -np.inf),))
    ask(rig, compiler, "a", Constraint("regex", "ab[cd]"), sampling=never, max_tokens=30)
    rig.run()
    (final,) = rig.finals("a")
    assert (
        final.reason is FinishReason.ERROR and final.error.error is ErrorCode.CONSTRAINT_FAILED and rig.text("a") == "a"
    )


def test_a_row_that_is_no_number_is_the_engines_fault_under_a_constraint_too(compiler):
    rig = Rig()
    ask(rig, compiler, "a", Constraint("regex", "a[bc]d"), sampling=SamplingParams(temperature=1.0), max_tokens=30)
    while not rig.text("a"):
        rig.tick()
    rig.faults.nan_rows.add(0)
    rig.run()
    (final,) = rig.finals("a")
    assert final.reason is FinishReason.ERROR and final.error.error is ErrorCode.SAMPLER_FAILED


def test_the_end_of_a_thought_is_not_sampled_either():
    rig = Rig()
    rig.submit("a", "[", max_tokens=30, reasoning=Reasoning("[", "]", 4, "enough."))
    (session,) = rig.executor.table
    sampler = session.sampler
    rig.run()
    assert rig.text("a")[4:12] == "enough.]" and sampler.n_forced == 8 == rig.executor.meters.forced.value


THOUGHT = Constraint("lark", "start: /[^\\]]*\\]/ /[0-9]{3}/")


def test_a_spent_budget_ends_a_thought_that_a_grammar_follows(compiler):
    """The grammar continues after the forced end."""
    rig = Rig()
    ask(rig, compiler, "a", THOUGHT, max_tokens=60, reasoning=Reasoning("", "]", 4, "enough."))
    rig.run()
    text = rig.text("a")
    assert text[4:12] == "enough.]" and text[12:].isdigit() and len(text) == 15
    assert rig.finals("a")[0].reason is FinishReason.STOP
    rig.check_all_free()


def test_an_end_that_the_grammar_does_not_take_yet_waits_until_it_does(compiler):
    rig = Rig()
    grammar = Constraint("lark", 'start: "abcdefgh" /[^\\]]*\\]/ /[0-9]{3}/')
    ask(rig, compiler, "a", grammar, max_tokens=60, reasoning=Reasoning("", "]", 2))
    rig.run()
    assert rig.text("a").startswith("abcdefgh]") and rig.finals("a")[0].reason is FinishReason.STOP


def test_an_end_that_the_grammar_never_takes_is_not_forced(compiler):
    rig = Rig()
    ask(rig, compiler, "a", schema(), max_tokens=300, reasoning=Reasoning("", "\n]", 2))
    rig.run()
    assert set(json.loads(rig.text("a"))) == {"name", "n"}
