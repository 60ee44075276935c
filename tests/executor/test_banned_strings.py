"""Banned strings through whole lives of requests over the FakeEngine, whose next token is a hash of everything in its
KV.
"""

from __future__ import annotations

import functools
import os
import random
from typing import Any

import pytest

from tests.executor.rig import Rig
from uma_core.cache.settings import CacheSettings
from uma_core.constraint.compiler import Compiler
from uma_core.engine.fake.engine import FakeModel
from uma_core.engine.fake.text import BOS
from uma_core.errors import ErrorCode
from uma_core.executor.admission import Limits
from uma_core.metrics.catalog import new_registry
from uma_core.session.bans import Bans
from uma_core.session.events import Token
from uma_core.types import Constraint, FinishReason, Priority, Reasoning, SamplingParams, Trigger

N = 60
MODELS = {
    "lanes": FakeModel(),
    "chunks": FakeModel(n_prefill_slots=0),
    "no rollback": FakeModel(can_rollback=False),
    "no rollback, chunks": FakeModel(can_rollback=False, n_prefill_slots=0),
}


def run(model: FakeModel | None = None, n: int = N, prompt: str = "hello", **fields: Any) -> Rig:
    rig = Rig(model)
    rig.submit("a", prompt, max_tokens=n, **fields)
    rig.run()
    rig.check_one_final_each()
    rig.check_all_free()
    return rig


def text_of(*args: Any, **fields: Any) -> str:
    return run(*args, **fields).text("a")


@functools.cache  # kinds of models and priorities have the same answers, so the same is asked again and again
def favourites(tokens: tuple[int, ...]) -> str:
    """Return what the engine would say next."""
    return text_of(tokens=list(tokens), n=4)


def check_each_choice(tokens: list[int], banned: tuple[str, ...]) -> None:
    """Check each token that is not the engine's favourite after the tokens before it: the favourite would have begun a
    banned string.
    """
    before = [BOS, *b"hello"]
    for at, token in enumerate(tokens):
        best = favourites((*before, *tokens[:at]))
        if ord(best[0]) != token:
            assert any(best.startswith(b) for b in banned), (at, token, best)


def tokens_of(rig: Rig) -> list[int]:
    ones = [one for e in rig.seen if isinstance(e, Token) for one in e.logprobs or ()]
    return [one.token_id for one in [*ones, *(rig.finals("a")[0].logprobs or ())]]


@pytest.mark.parametrize("priority", [Priority.INTERACTIVE, Priority.BACKGROUND])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_banned_string_never_comes_and_all_else_is_what_the_model_likes_best(
    model: FakeModel, priority: Priority
) -> None:
    free = text_of(model)
    for banned in ((free[10:14],), (free[:1],), (free[0:3], free[20:24]), (free[30],)):
        rig = run(model, banned_strings=banned, priority=priority, sampling=SamplingParams(logprobs=0))
        text = rig.text("a")
        assert len(text) == N and not any(b in text for b in banned)
        assert text.startswith(free[: min(free.index(b) for b in banned)]), "before it nothing changes"
        assert rig.finals("a")[0].usage["completion_tokens"] == N, "what was taken back does not count"
        assert rig.executor.meters.taken_back.value > 0
        check_each_choice(tokens_of(rig), banned)


def test_no_event_has_a_part_of_what_is_taken_back() -> None:
    free = text_of()
    banned = (free[10:16],)
    rig = run(banned_strings=banned)
    said = ""
    for event in rig.seen:
        if isinstance(event, Token):
            said += event.text
            assert not any(b in said for b in banned)
    assert said == rig.text("a") == text_of(banned_strings=banned, stream=False)


def test_the_first_token_of_all_can_be_taken_back() -> None:
    free = text_of()
    for n in (1, 2, N):
        for priority in Priority:
            assert text_of(n=n, banned_strings=(free[0],), priority=priority)[0] != free[0]


def test_whoever_streams_beside_it_notices_nothing() -> None:
    alone = {name: text_of(prompt=f"prompt {name}") for name in "bc"}
    free = text_of()
    rig = Rig()
    rig.submit("b", "prompt b", max_tokens=N)
    rig.submit("a", max_tokens=N, banned_strings=(free[4:6], free[9]))
    rig.submit("c", "prompt c", max_tokens=N)
    rig.run()
    assert {name: rig.text(name) for name in "bc"} == alone
    assert rig.text("a") == text_of(banned_strings=(free[4:6], free[9]))


def test_several_answers_each_go_back_by_themselves() -> None:
    hot = [SamplingParams(temperature=1.0, seed=5 + i) for i in range(3)]
    free = text_of(sampling=hot[0])
    banned = (free[8:11], free[0])
    alone = [text_of(sampling=each, banned_strings=banned, stream=False) for each in hot]
    rig = Rig()
    rig.submit("a", max_tokens=N, n=3, stream=False, banned_strings=banned, sampling=hot[0])
    rig.run()
    assert [answer.text for answer in rig.finals("a")[0].answers or ()] == alone
    rig.check_all_free()


def test_log_probabilities_come_for_what_stays() -> None:
    free = text_of()
    rig = run(banned_strings=(free[5:9],), sampling=SamplingParams(logprobs=1))
    ones = [one for e in [*rig.seen] if isinstance(e, Token) for one in e.logprobs or ()]
    ones += rig.finals("a")[0].logprobs or ()
    assert b"".join(one.data for one in ones).decode() == rig.text("a") and len(ones) == N


def test_a_stop_text_before_a_banned_one_ends_the_answer_and_one_after_it_is_looked_for_in_what_stays() -> None:
    free = text_of()
    rig = run(banned_strings=(free[10:14],), stop=(free[9:12],))
    assert rig.text("a") == free[: free.index(free[9:12])] and rig.finals("a")[0].reason is FinishReason.STOP
    held = text_of(banned_strings=(free[3:6],))
    rig = run(banned_strings=(free[3:6],), stop=(held[20:23],))
    assert rig.text("a") == held[: held.index(held[20:23])]


def test_penalties_count_what_stays() -> None:
    """A token that was taken back is as likely as before. It is the engine's own choice here, which a penalty would
    have changed.
    """
    free = text_of()
    rig = Rig()
    rig.submit(
        "a", max_tokens=N, banned_strings=(free[10:14],), sampling=SamplingParams(repeat_penalty=1.1, repeat_last_n=8)
    )
    session = next(iter(rig.executor.table))
    sampler = session.sampler
    rig.run()
    assert bytes(sampler.accepted).decode() != "hello"[-8:], "told anew"
    content = "\x00hello" + rig.text("a")  # the first character stands for BOS, which is not a byte
    assert bytes(t & 0xFF for t in sampler.accepted).decode() in content


def test_the_least_length_holds_though_it_was_reached_once() -> None:
    model = FakeModel(eog_every=3)
    for at in range(6, 11):
        free = text_of(model, sampling=SamplingParams(min_tokens=12))
        rig = run(model, banned_strings=(free[at:12],), sampling=SamplingParams(min_tokens=12))
        assert rig.finals("a")[0].usage["completion_tokens"] >= 12


def test_a_thought_that_is_taken_back_is_thought_again_within_its_budget() -> None:
    free = text_of(prompt="[", reasoning=Reasoning("[", "]", 7, "enough."))
    assert free[7:15] == "enough.]"
    rig = run(prompt="[", reasoning=Reasoning("[", "]", 7, "enough."), banned_strings=(free[4:9],))
    text = rig.text("a")
    assert text[7:15] == "enough.]" and text[:4] == free[:4] and text[4:7] != free[4:7]
    assert rig.finals("a")[0].usage["reasoning_tokens"] == 7 + len("enough.")


def test_a_forced_end_that_is_banned_ends_with_a_code() -> None:
    rig = run(prompt="[", reasoning=Reasoning("[", "]", 7, "enough."), banned_strings=("ough",))
    (final,) = rig.finals("a")
    assert final.reason is FinishReason.ERROR and final.error is not None
    assert final.error.error is ErrorCode.CONSTRAINT_FAILED


def test_a_grammar_goes_back_too(compiler: Compiler) -> None:
    for choices, banned, expected in (
        (("abcd", "axy"), "bc", "axy"),
        (("abcd", "abxy", "q"), "ab", "q"),
        (("one two", "one six"), "two", "one six"),
        (("stop", "go"), "sto", "go"),
    ):
        for sampling in (SamplingParams(), SamplingParams(temperature=1.0, seed=3)):
            rig = Rig()
            matcher = compiler.compile(rig.engine, Constraint("choices", choices))
            rig.submit("a", max_tokens=40, matcher=matcher, banned_strings=(banned,), sampling=sampling)
            rig.run()
            assert rig.text("a") == expected and rig.finals("a")[0].reason is FinishReason.STOP


def test_a_grammar_that_leaves_no_way_around_ends_with_a_code(compiler: Compiler) -> None:
    rig = Rig()
    rig.submit(
        "a",
        max_tokens=40,
        matcher=compiler.compile(rig.engine, Constraint("choices", ("abc", "ab"))),
        banned_strings=("ab",),
    )
    rig.submit("b", max_tokens=10)
    rig.run()
    (final,) = rig.finals("a")
    assert final.error is not None and final.error.error is ErrorCode.CONSTRAINT_FAILED and rig.text("a") == ""
    assert rig.finals("b")[0].reason is FinishReason.LENGTH
    rig.check_all_free()


@pytest.mark.parametrize("is_spent", [False, True])
def test_a_prompt_whose_answer_has_no_way_around_need_not_be_read_again(
    compiler: Compiler, is_spent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_spent:
        monkeypatch.setattr(Bans, "is_spent", property(lambda bans: True))
    rig, prompt = Rig(), "a prompt of some length " * 10
    rig.executor.set_cache(CacheSettings(is_on=True))
    matcher = compiler.compile(rig.engine, Constraint("choices", ("abc", "ab")))
    rig.submit("a", prompt, max_tokens=40, matcher=matcher, banned_strings=("ab",))
    rig.run()
    (final,) = rig.finals("a")
    assert final.error is not None and final.error.error is ErrorCode.CONSTRAINT_FAILED
    rig.check_all_free()
    rig.check_cached(prompt, 200)


def test_a_row_that_is_no_number_is_the_engines_fault_where_a_token_is_banned_too() -> None:
    banned = text_of()[10:14]
    rig = Rig()
    rig.submit("a", max_tokens=N, banned_strings=(banned,))
    while not rig.executor.meters.taken_back.value:
        rig.tick()
    rig.faults.nan_rows.add(0)
    rig.run()
    (final,) = rig.finals("a")
    assert final.error is not None and final.error.error is ErrorCode.SAMPLER_FAILED


def test_a_grammar_that_began_at_a_trigger_can_be_left_again(compiler: Compiler) -> None:
    free = text_of()
    at = free.index(" ", 5)
    constraint = Constraint("regex", "[0-9]{3}!", triggers=(Trigger("word", free[at - 3 : at + 1], True),))
    rig = Rig()
    rig.submit(
        "a", max_tokens=N, matcher=compiler.compile(rig.engine, constraint), banned_strings=(free[at - 1 : at + 1],)
    )
    rig.run()
    text = rig.text("a")
    assert text.startswith(free[: at - 1]) and free[at - 1 : at + 1] not in text, "the trigger itself was taken back"


def test_an_answer_that_can_say_nothing_at_all_ends_with_a_code() -> None:
    banned = tuple(chr(c) for c in range(1, 0x80))
    for n_letters in (127, 60):
        rig = Rig(limits=Limits())
        rig.submit("a", max_tokens=20, banned_strings=(*banned[:n_letters], *"etaoin shrdlu cmfwyp vbgkqjxz"))
        rig.run()
        (final,) = rig.finals("a")
        assert final.reason in (FinishReason.ERROR, FinishReason.LENGTH, FinishReason.STOP)
        assert not any(b in rig.text("a") for b in banned[:n_letters])


@pytest.mark.parametrize("n_ctx", [4, 6, 12, 20])
def test_a_string_that_began_before_a_shift_of_the_context_is_taken_back(n_ctx: int) -> None:
    """What a shift dropped comes back as far as there is room."""
    texts = []
    for n_prefill_slots in (0, 2):
        rig = Rig(FakeModel(n_seq_max=2, n_ctx=2 * n_ctx, n_prefill_slots=n_prefill_slots))
        matcher = Compiler(new_registry()).compile(rig.engine, Constraint("regex", "(q[a-z]|zabcdefghij)+"))
        fields = {"banned_strings": ("zabcdefghij",), "overflow": "shift", "ignore_eos": True}
        rig.submit("a", tokens=[BOS, 116], matcher=matcher, max_tokens=40, **fields)
        rig.run(1000)
        assert rig.finals("a")[0].reason is FinishReason.LENGTH and "zabcdefghij" not in rig.text("a")
        assert rig.executor.meters.taken_back.value >= 11 and not rig.executor.meters.violations.value
        rig.check_all_free()
        texts.append(rig.text("a"))
    assert texts[0] == texts[1]


def test_parking_and_a_shift_of_the_context_in_between() -> None:
    free = text_of(FakeModel(n_seq_max=1), n=150)
    banned = tuple(free[i : i + 2] for i in range(0, 40, 5))
    rig = Rig(FakeModel(n_seq_max=1, n_ctx=64))
    rig.submit("long", max_tokens=150, overflow="shift", priority=Priority.BACKGROUND, banned_strings=banned)
    for i in range(12):
        for _ in range(11):
            rig.tick()
        rig.submit(f"chat{i}", max_tokens=3, priority=Priority.INTERACTIVE)
    rig.run()
    text = rig.text("long")
    assert len(text) == 150 and not any(b in text for b in banned)
    assert rig.executor.meters.preemptions.value and rig.executor.meters.taken_back.value
    rig.check_all_free()


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100 if os.environ.get("UMA_FUZZ") == "full" else 6))
def test_any_mixture_ends_once_and_clean(seed: int) -> None:
    rng = random.Random(seed)
    model = FakeModel(
        n_seq_max=rng.choice([1, 2, 4]),
        n_prefill_slots=rng.choice([0, 2]),
        can_rollback=rng.random() < 0.7,
        is_unified=rng.random() < 0.5,
        eog_every=rng.choice([0, 40]),
    )
    rig = Rig(model)
    wanted: dict[str, tuple[str, ...]] = {}
    for i in range(12):
        alphabet = "etaoin shrdlu"
        banned = tuple(
            "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(0, 12))
        )
        name = f"r{i}"
        wanted[name] = banned
        fields: dict[str, Any] = {
            "sampling": SamplingParams(temperature=rng.choice([0, 1.0]), seed=i, logprobs=rng.choice([None, 1]))
        }
        if rng.random() < 0.3:
            fields |= {"n": min(2, model.n_seq_max)}
        if rng.random() < 0.3:
            fields |= {"stop": (rng.choice(alphabet) + rng.choice(alphabet),)}
        fields |= {"stream": rng.random() < 0.5, "priority": rng.choice(list(Priority))}
        fields |= {"max_tokens": rng.randint(1, 50)}
        rig.submit(name, f"prompt {i}" * rng.randint(1, 60), banned_strings=banned, **fields)
        for _ in range(rng.randint(0, 20)):
            rig.tick()
        if rng.random() < 0.2:
            rig.executor.cancel(1, name)
    rig.run()
    rig.check_one_final_each()
    rig.check_all_free()
    for name, banned in wanted.items():
        for text in texts(rig, name):
            assert not any(b in text for b in banned), name


def texts(rig: Rig, name: str) -> list[str]:
    """Return the text of each of its answers."""
    said: dict[int, str] = {}
    for event in rig.seen:
        if isinstance(event, Token) and event.request_id == name:
            said[event.which] = said.get(event.which, "") + event.text
    finals = rig.finals(name)
    return [*said.values(), *(f.text for f in finals), *(a.text for f in finals for a in f.answers or ())]
