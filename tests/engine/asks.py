"""Random requests that are cancelled, constrained, sampled and preempted, and share prompts."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from tests.executor.rig import new_executor
from uma_core.clock import MonotonicClock
from uma_core.constraint.compiler import Compiler
from uma_core.engine.api import Engine
from uma_core.session.events import Submit
from uma_core.session.session import Session
from uma_core.speculation.speculator import Speculator
from uma_core.types import Constraint, FinishReason, Peer, Priority, Request, SamplingParams, TokenId

N_TICKS_MOST = 20_000
WORDS = ("the", "shell", "reads", "commands", "and", "runs", "them", "while", "a", "kernel", "has", "many", "tasks")

SAMPLING = (
    SamplingParams(),
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=7),
    SamplingParams(temperature=1.0, seed=3, repeat_penalty=1.2),
    SamplingParams(temperature=0.7, seed=11, top_k=20, top_p=0.9, presence_penalty=0.5),
    SamplingParams(logprobs=2),
    SamplingParams(temperature=0.6, seed=5, min_tokens=12, logprobs=1),
)
CONSTRAINTS = (
    Constraint("choices", ("temperature", "temporary", "humidity")),
    Constraint("regex", "[a-c]{3,9}(foo|bar) end"),
)


class Ask(NamedTuple):
    fields: dict[str, Any]
    tokens: list[TokenId]
    constraint: Constraint | None
    cancel_at: int  # tokens after which it is cancelled; 0: never


def random_ask(rng: random.Random, engine: Engine, shared: str) -> Ask:
    text = (shared if rng.random() < 0.5 else "") + " ".join(rng.choices(WORDS, k=rng.randint(1, 60)))
    fields = {
        "max_tokens": rng.randint(1, 48),
        "sampling": rng.choice(SAMPLING),
        "stop": rng.choice(((), (), (" the",), ("and", "is a"))),
        "priority": rng.choice(list(Priority)),
        "ignore_eos": rng.random() < 0.5,
        "n": rng.choice((1, 1, 1, 2)),
    }
    constraint = rng.choice(CONSTRAINTS) if rng.random() < 0.15 else None
    if constraint is not None:
        fields |= {"n": 1, "ignore_eos": False}
    return Ask(fields, engine.tokenize(text, True, False), constraint, rng.randint(1, 20) if rng.random() < 0.15 else 0)


Answers = dict[str, tuple[list[TokenId], FinishReason | None]]


def run(engine: Engine, asks: dict[str, Ask], compiler: Compiler, speculator: Speculator | None) -> tuple[Answers, int]:
    """Return the answer to each request, and how many draft tokens were accepted."""
    clock = MonotonicClock()
    executor = new_executor(engine, speculator=speculator, clock=clock)
    answers: Answers = {}
    on_finished = executor.output.on_finished

    def note(session: Session) -> None:
        answers[f"{session.id}/{max(0, session.index)}"] = list(session.generated), session.reason
        on_finished(session)

    executor.output.on_finished = note
    waiting = list(asks.items())
    for tick in range(N_TICKS_MOST):
        if waiting and tick % 5 == 0:
            name, ask = waiting.pop(0)
            matcher = compiler.compile(engine, ask.constraint) if ask.constraint is not None else None
            request = Request(name, **ask.fields)
            executor.submit(Submit(1, Peer(1, 1, 1), request, ask.tokens, clock.now_ns(), matcher=matcher))
        executor.tick()
        executor.events.clear()
        for session in list(executor.table):
            cancel_at = asks[session.id].cancel_at
            if cancel_at and len(session.generated) >= cancel_at:
                executor.cancel(1, session.id)
        if not waiting and not len(executor.table):
            break
    assert not waiting and not len(executor.table), "requests did not end"
    n_held = int(executor.meters.accepted_drafts["lookup"].value)
    executor.close(1.0)
    for seq_id in range(engine.info.n_seq_max):
        engine.kv_truncate(seq_id, 0)
    return answers, n_held


def is_same(name: str, plain: Answers, fast: Answers) -> bool:
    (one, why), (other, also) = plain[name], fast[name]
    if FinishReason.CANCELLED in (why, also):  # the moment of the cancel is chance, but the text until then is not
        n = min(len(one), len(other))
        return one[:n] == other[:n]
    return one == other and why == also
