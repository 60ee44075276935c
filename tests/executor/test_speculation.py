"""Draft tokens change how many steps an answer takes, but not the answer."""

from __future__ import annotations

import gc
import logging
import os
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.executor.rig import Rig
from tests.executor.test_constraints import Failing
from tests.speculation.oracle import Oracle
from uma_core.clock import ManualClock
from uma_core.constraint.compiler import Compiler
from uma_core.engine.api import DecodeOutcome, DecodeStatus
from uma_core.engine.fake.cost import GPU_SHAPE
from uma_core.engine.fake.engine import FakeEngine, FakeModel
from uma_core.engine.fake.text import N_VOCAB
from uma_core.metrics.catalog import new_registry
from uma_core.session.events import End, Token
from uma_core.session.session import Session
from uma_core.speculation.model import DraftModel
from uma_core.speculation.settings import Settings
from uma_core.speculation.speculator import Speculator
from uma_core.types import Constraint, FinishReason, Phase, Priority, SamplingParams, TokenId, Trigger

IS_FULL = os.environ.get("UMA_FUZZ") == "full"
MODEL = FakeModel(n_seq_max=3, n_ctx=768, is_unified=True, eog_every=60)


class Known:
    """Remembers the answers of one rig as drafts for another rig."""

    def __init__(self) -> None:
        self.answers: dict[str, list[TokenId]] = {}

    def watch(self, rig: Rig) -> None:
        on_finished = rig.executor.output.on_finished

        def note(session: Session) -> None:
            self.answers[f"{session.id}/{session.index}"] = list(session.generated)
            on_finished(session)

        rig.executor.output.on_finished = note

    def source(self, seed: int, error: float) -> Callable[[Session], Oracle]:
        rng = random.Random(seed)
        return lambda session: Oracle(self.answers.get(f"{session.id}/{session.index}", ()), rng, error, N_VOCAB)


def outcome(rig: Rig, names: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return what clients were told about each request, without times and counts of drafts."""
    told = {}
    for name in names:
        final = rig.finals(name)[0]
        usage = {key: n for key, n in final.usage.items() if "prediction" not in key and key != "cached_tokens"}
        texts = [(max(0, e.which), e.text) for e in rig.seen if isinstance(e, Token) and e.request_id == name]
        answers = ["".join(text for index, text in texts if index == i) for i in range(2)]
        told[name] = answers, final.reason, usage, final.stop, final.logprobs
    return told


def run(asks: dict[str, dict[str, Any]], speculator: Speculator | None, known: Known, **more: Any) -> Rig:
    rig = Rig(MODEL, speculator=speculator, **more)
    known.watch(rig)
    for name, fields in asks.items():
        rig.submit(name, **fields)
    rig.run()
    rig.check_one_final_each()
    rig.check_all_free()
    return rig


def with_drafts(known: Known, seed: int = 1, error: float = 0.1) -> Speculator:
    return Speculator(Settings("lookup"), True, known.source(seed, error))


def test_accepted_drafts_save_steps() -> None:
    known = Known()
    ask = {"a": {"max_tokens": 50, "ignore_eos": True, "priority": Priority.BACKGROUND}}
    plain = run(ask, None, known)
    fast = run(ask, with_drafts(known, error=0.0), known)
    assert outcome(fast, "a") == outcome(plain, "a")
    assert fast.executor.n_ticks < 0.7 * plain.executor.n_ticks
    usage = fast.finals("a")[0].usage
    assert usage["accepted_prediction_tokens"] > 15 and usage["rejected_prediction_tokens"] == 0


def test_the_time_that_drafts_saved_is_the_time_that_the_engine_computed_less() -> None:
    known = Known()
    ask = {"a": {"max_tokens": 50, "ignore_eos": True, "priority": Priority.BACKGROUND}}
    plain = run(ask, None, known, cost=GPU_SHAPE)
    fast = run(ask, with_drafts(known, error=0.1), known, cost=GPU_SHAPE)
    plain_ns, fast_ns = (rig.executor.meters.engine_time.value for rig in (plain, fast))
    saved = {source: gauge.value for source, gauge in fast.executor.meters.drafts_saved.items()}
    assert fast_ns < 0.8 * plain_ns
    assert saved["lookup"] == pytest.approx(plain_ns - fast_ns, rel=0.1)
    assert not any(ns for source, ns in saved.items() if source != "lookup")


def test_drafts_that_never_hold_are_a_loss() -> None:
    known = Known()
    ask = {"a": {"max_tokens": 50, "ignore_eos": True, "priority": Priority.BACKGROUND}}
    plain = run(ask, None, known, cost=GPU_SHAPE)
    slow = run(ask, with_drafts(known, error=1.0), known, cost=GPU_SHAPE)
    assert slow.executor.meters.drafted["lookup"].value
    lost_ns = slow.executor.meters.engine_time.value - plain.executor.meters.engine_time.value
    assert slow.executor.meters.drafts_saved["lookup"].value == pytest.approx(-lost_ns, rel=0.2)


def test_drafts_go_on_after_what_a_grammar_forces() -> None:
    known, compiler = Known(), Compiler(new_registry())

    def held(speculator: Speculator | None) -> Rig:
        rig = Rig(MODEL, speculator=speculator, cost=GPU_SHAPE)
        known.watch(rig)
        matcher = compiler.compile(rig.engine, Constraint("regex", "(xy[0-9])+"))
        rig.submit("a", matcher=matcher, max_tokens=60, ignore_eos=True, priority=Priority.BACKGROUND)
        rig.run()
        rig.check_all_free()
        return rig

    plain, fast = held(None), held(with_drafts(known, error=0.0))
    assert outcome(fast, "a") == outcome(plain, "a")
    assert fast.executor.n_ticks < 14, "11; 17 if a step ended with what is forced"
    accepted = fast.executor.meters.accepted_drafts
    assert accepted["forced"].value and accepted["lookup"].value


def test_a_slow_grammar_skips_as_many_ticks_for_tokens_that_come_together() -> None:
    known, rest = Known(), {"ignore_eos": True, "priority": Priority.BACKGROUND}
    run({"slow": {"max_tokens": 30, "matcher": Failing(None), **rest}}, None, known)
    rig = Rig(MODEL, speculator=with_drafts(known, error=0.0))
    rig.submit("slow", matcher=Failing(None, spent_ns=2_600_000), max_tokens=30, **rest)
    rig.submit("other", max_tokens=600, **rest)
    while not rig.finals("slow"):
        rig.tick()
        assert not rig.finals("other"), "it waits forever"
    assert rig.finals("slow")[0].usage["accepted_prediction_tokens"]
    assert 300 < rig.executor.n_ticks < 450, "30 steps of 2.6 ms, 0.2 ms a tick"


@pytest.mark.parametrize(("error", "is_ahead"), [(0.0, True), (1.0, False)])
def test_the_policy_is_told_how_many_tokens_a_stream_is_ahead(error: float, is_ahead: bool) -> None:
    known = Known()
    ask = {"a": {"max_tokens": 50, "ignore_eos": True, "priority": Priority.BACKGROUND}}
    run(ask, None, known)
    rig = Rig(MODEL, speculator=with_drafts(known, error=error))
    rig.submit("a", **ask["a"])
    ahead = []
    while not rig.finals("a"):
        rig.tick()
        ahead += [session.view().ahead for session in rig.executor.table]
    assert (max(ahead) > 4.0) is is_ahead


def test_a_request_that_fails_before_it_begins_leaves_no_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # a log record of the failure would keep the session alive
    rig = Rig(MODEL, speculator=Speculator(Settings("lookup"), True))
    prompts = []

    def broken(session: Session) -> None:
        prompts.append(weakref.ref(session.given))
        raise RuntimeError("no such sampler")

    monkeypatch.setattr(rig.executor.output, "open_sampler", broken)
    rig.submit("a", "hello" * 20)
    rig.run()
    assert rig.finals("a")[0].reason is FinishReason.ERROR
    rig.seen.clear()
    gc.collect()
    assert len(prompts) == 1 and prompts[0]() is None


def test_wrong_drafts_are_counted_and_change_nothing() -> None:
    known = Known()
    ask = {"a": {"max_tokens": 50, "ignore_eos": True, "priority": Priority.BACKGROUND}}
    plain = run(ask, None, known)
    fast = run(ask, with_drafts(known, error=1.0), known)
    assert outcome(fast, "a") == outcome(plain, "a")
    usage = fast.finals("a")[0].usage
    assert usage["accepted_prediction_tokens"] == 0 and usage["rejected_prediction_tokens"] > 15


def test_a_draft_that_a_grammar_refuses_is_not_accepted() -> None:
    """Before, it counted as accepted, though another token was drawn in its place."""
    known, compiler, until = Known(), Compiler(new_registry()), " lbieogocnwiyjsi"
    ask: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "priority": Priority.BACKGROUND}
    assert run({"a": ask}, None, known).text("a").startswith(until + "d")
    rig = Rig(MODEL, speculator=with_drafts(known, error=0.0))
    matcher = compiler.compile(rig.engine, Constraint("regex", "[0-9]", (Trigger("word", "sid"),)))
    rig.submit("a", matcher=matcher, **{**ask, "max_tokens": len(until) + 2})
    rig.run()
    assert rig.text("a").startswith(until) and "d" not in rig.text("a")
    usage = rig.finals("a")[0].usage
    assert usage["accepted_prediction_tokens"] > 5 and usage["rejected_prediction_tokens"] == 1
    accepted = sum(counter.value for counter in rig.executor.meters.accepted_drafts.values())
    assert accepted == usage["accepted_prediction_tokens"]


def test_drafts_of_several_answers_are_counted_together() -> None:
    known = Known()
    ask = {"a": {"max_tokens": 50, "ignore_eos": True, "priority": Priority.BACKGROUND, "n": 2}}
    run(ask, None, known)
    fast = run(ask, with_drafts(known, error=0.5), known)
    each = [event.answer.usage for event in fast.seen if isinstance(event, End)]
    usage = fast.finals("a")[0].usage
    assert len(each) == 2 and usage["accepted_prediction_tokens"] > 0
    for name in ("accepted_prediction_tokens", "rejected_prediction_tokens", "completion_tokens"):
        assert usage[name] == sum(one.get(name, 0) for one in each)


SAMPLING = st.sampled_from(
    (
        SamplingParams(),
        SamplingParams(temperature=0.8, seed=7),
        SamplingParams(temperature=1.0, seed=3, repeat_penalty=1.2),
        SamplingParams(logprobs=2),
        SamplingParams(temperature=0.5, seed=5, min_tokens=20),
        SamplingParams(stop_token_ids=(100, 110, 120)),
    )
)
ASK = st.fixed_dictionaries(
    {
        "prompt": st.text("abc", min_size=1, max_size=120),
        "max_tokens": st.integers(1, 90),
        "sampling": SAMPLING,
        "stop": st.sampled_from(((), ("e",), ("the", "a b"))),
        "priority": st.sampled_from(tuple(Priority)),
        "n": st.sampled_from((1, 1, 1, 2)),
    }
)


@pytest.mark.fuzz
@settings(max_examples=1000 if IS_FULL else 60, deadline=None)
@given(st.lists(ASK, min_size=1, max_size=6), st.integers(0, 99), st.sampled_from((0.0, 0.1, 0.6)))
def test_answers_are_the_same_with_drafts(asks: list[dict[str, Any]], seed: int, error: float) -> None:
    named = {f"r{i}": fields for i, fields in enumerate(asks)}
    known = Known()
    plain = run(named, None, known)
    fast = run(named, with_drafts(known, seed, error), known)
    assert outcome(fast, list(named)) == outcome(plain, list(named))


def test_a_request_may_do_without() -> None:
    known = Known()
    ask = {"a": {"max_tokens": 30, "ignore_eos": True, "speculate": "off"}}
    run(ask, None, known)
    fast = run(ask, with_drafts(known), known)
    assert "accepted_prediction_tokens" not in fast.finals("a")[0].usage


@pytest.mark.parametrize("n_done", (3, 10, 25))
def test_a_cancelled_answer_leaves_a_sequence_of_what_was_sent(n_done: int) -> None:
    known = Known()
    ask = {"a": {"max_tokens": 60, "ignore_eos": True}}
    run(ask, None, known)
    rig = Rig(MODEL, speculator=with_drafts(known, error=0.2))
    rig.submit("a", **ask["a"])
    while sum(len(s.generated) for s in rig.executor.table) < n_done:
        rig.tick()
    (session,) = rig.executor.table
    assert rig.engine.kv_len(session.seq_id) == session.n_past
    rig.executor.cancel(1, "a")
    rig.tick()
    assert rig.finals("a")[0].reason is FinishReason.CANCELLED
    rig.check_all_free()


def draft_model() -> DraftModel:
    """A draft model of the same language: its drafts are right."""
    engine = FakeEngine(FakeModel(n_seq_max=2, n_ctx=2048, n_batch=64, eog_every=60), clock=ManualClock(1))
    return DraftModel(engine, N_VOCAB, ManualClock(1))


def test_a_draft_model_saves_steps_and_changes_nothing() -> None:
    known = Known()
    ask = {"a": {"max_tokens": 50, "ignore_eos": True, "priority": Priority.BACKGROUND, "speculate": "draft"}}
    plain = run(ask, None, known)
    fast = run(ask, Speculator(Settings("off"), True, model=draft_model()), known)
    assert outcome(fast, "a") == outcome(plain, "a")
    assert fast.executor.n_ticks < 0.7 * plain.executor.n_ticks
    assert fast.finals("a")[0].usage["accepted_prediction_tokens"] > 15
    assert fast.executor.meters.accepted_drafts["draft"].value > 15


@pytest.mark.parametrize("max_tokens", [7, 21])
def test_a_draft_model_drafts_no_token_that_has_no_place_in_the_answer(
    max_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the last token waited for up to as many drafts as the step before it had accepted."""
    model, calls = draft_model(), []
    compute = model.compute

    def counted(*args: Any) -> TokenId:
        calls.append(args)
        return compute(*args)

    monkeypatch.setattr(model, "compute", counted)
    rig = Rig(MODEL, speculator=Speculator(Settings("draft"), True, model=model), cost=GPU_SHAPE)
    rig.submit("a", max_tokens=max_tokens, ignore_eos=True, priority=Priority.BACKGROUND)
    rig.run()
    usage = rig.finals("a")[0].usage
    assert usage["rejected_prediction_tokens"] == 0, "all of its drafts are right"
    assert len(calls) == usage["accepted_prediction_tokens"] > 0


@pytest.mark.parametrize(("mode", "source"), [("lookup", "prediction"), ("draft", "draft"), ("off", "")])
def test_a_prediction_leaves_the_configured_sources_where_drafts_are_not_exact(mode: str, source: str) -> None:
    """Before, a request with a prediction had no drafts at all, though others of the same daemon had."""
    ask = {"max_tokens": 50, "ignore_eos": True, "priority": Priority.BACKGROUND}
    known = Known()
    plain = run({"a": ask}, None, known)
    foreseen = {"a": {**ask, "prediction": tuple(known.answers["a/-1"])}}
    fast = run(foreseen, Speculator(Settings(mode), False, model=draft_model()), known)
    assert outcome(fast, "a") == outcome(plain, "a")
    held = {name for name, counter in fast.executor.meters.accepted_drafts.items() if counter.value > 15}
    assert held == ({source} if source else set())


def test_a_draft_model_is_not_asked_where_it_may_not_be() -> None:
    for mode in ("off", "lookup"):
        ask = {"a": {"max_tokens": 50, "ignore_eos": True, "priority": Priority.BACKGROUND, "speculate": mode}}
        fast = run(ask, Speculator(Settings("auto"), True, model=draft_model()), Known())
        assert not fast.executor.meters.drafted["draft"].value


@pytest.mark.fuzz
@settings(max_examples=400 if IS_FULL else 25, deadline=None)
@given(st.lists(ASK, min_size=1, max_size=5))
def test_answers_are_the_same_with_a_draft_model(asks: list[dict[str, Any]]) -> None:
    named = {f"r{i}": {**fields, "speculate": "draft"} for i, fields in enumerate(asks)}
    known = Known()
    plain = run(named, None, known)
    fast = run(named, Speculator(Settings("auto"), True, model=draft_model()), known)
    assert outcome(fast, list(named)) == outcome(plain, list(named))


@pytest.mark.parametrize("reads_states", [False, True])
def test_a_parked_session_gives_up_its_place_in_the_draft_model(reads_states: bool) -> None:
    """Others take it, and prediction heads have no more cells than the model that verifies."""
    model = draft_model()
    model.reads_states = reads_states  # as prediction heads do
    ask: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "speculate": "draft"}
    rig = Rig(replace(MODEL, n_seq_max=1), speculator=Speculator(Settings("off"), True, model=model))
    rig.submit("a", priority=Priority.BACKGROUND, **ask)
    while not any(model.engine.kv_len(seq_id) for seq_id in (0, 1)):
        rig.tick()
    rig.submit("b", "another text", max_tokens=200, ignore_eos=True, speculate="off")
    while not any(session.phase is Phase.PARKED for session in rig.executor.table):
        rig.tick()
    rig.tick()
    assert not any(model.engine.kv_len(seq_id) for seq_id in (0, 1))
    rig.run()
    assert len(rig.finals("a")) == 1 and rig.finals("a")[0].usage["accepted_prediction_tokens"] > 15


def test_texts_too_long_for_the_draft_model_leave_it_to_others() -> None:
    model = draft_model()
    model.n_ctx_seq = 40
    rig = Rig(MODEL, speculator=Speculator(Settings("off"), True, model=model))
    ask: dict[str, Any] = {"ignore_eos": True, "priority": Priority.BACKGROUND, "speculate": "draft"}
    for name in ("a", "b"):
        rig.submit(name, "x" * 45, max_tokens=200, **ask)
    while len(rig.finals("a") + rig.finals("b")) < 2:
        rig.tick()
        if rig.executor.n_ticks == 20:
            rig.submit("c", "short", max_tokens=30, **ask)
    rig.run()
    assert rig.finals("c")[0].usage["accepted_prediction_tokens"] > 5
    assert "accepted_prediction_tokens" not in rig.finals("a")[0].usage


def test_a_failing_draft_model_is_done_without() -> None:
    known = Known()
    ask = {"a": {"max_tokens": 40, "ignore_eos": True, "priority": Priority.BACKGROUND, "speculate": "draft"}}
    plain = run(ask, None, known)
    model = draft_model()
    calls, real = [0], model.engine.decode

    def decode(batch: Any, samplers: Any) -> DecodeOutcome:
        calls[0] += 1
        return real(batch, samplers) if calls[0] < 6 else DecodeOutcome(DecodeStatus.FATAL, [], 0, 0)

    model.engine.decode = decode  # type: ignore[method-assign]
    broken = run(ask, Speculator(Settings("auto"), True, model=model), known)
    assert outcome(broken, "a") == outcome(plain, "a") and calls[0] == 6
