"""Constrained answers with tokens that real models choose, at temperature 1, through the whole executor with many
streams at once.

test_answers has the other half of the evidence: adversaries instead of a model. `make fuzz` writes 10,098 answers here.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.constraint import driving, suite
from tests.executor.rig import new_executor
from tests.trained import DRAFT
from uma_core.clock import MonotonicClock
from uma_core.config.options import EngineOptions
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.executor.admission import Limits
from uma_core.models import default_model_path
from uma_core.session.events import Final, Submit
from uma_core.types import FinishReason, Peer, Request, SamplingParams

IS_FULL = os.environ.get("UMA_FUZZ") == "full"
N_EACH = 27 if IS_FULL else 1  # answers per schema and model: 187 schemas x 2 x 27 = 10,098
EVERY = 1 if IS_FULL else 10  # use one of this many schemas
N_TOKENS = 160
N_WAITING = 64
OPTIONS = EngineOptions(n_ctx=16 * 256, n_seq=16, threads=1, n_batch=64, n_ubatch=64)
PROMPT = "Some JSON: "


@pytest.mark.model
@pytest.mark.fuzz
@pytest.mark.parametrize("path", [default_model_path(), DRAFT], ids=["tiny", "draft"])
def test_what_a_model_writes_parses_and_validates(compiler, path):
    engine, clock = LlamaEngine(str(path), OPTIONS), MonotonicClock()
    executor = new_executor(engine, Limits(max_sessions=10_000, queue=(10_000, 10_000)), clock=clock)
    tokens = engine.tokenize(PROMPT, True, False)
    asked = [(case, seed) for case in suite.accepted(compiler, engine)[::EVERY] for seed in range(N_EACH)]
    waiting, running, ends = list(enumerate(asked)), {}, Counter()
    while waiting or running:
        while waiting and len(running) < N_WAITING:
            number, (case, seed) = waiting.pop()
            sampling = SamplingParams(temperature=1.0, top_k=0, seed=number * 1_000 + seed)
            request = Request(str(number), prompt=PROMPT, stream=False, max_tokens=N_TOKENS, sampling=sampling)
            matcher = compiler.compile(engine, driving.schema(case.schema))
            executor.submit(Submit(1, Peer(1, 1, 1), request, tokens, clock.now_ns(), text=engine, matcher=matcher))
            running[str(number)] = case
        executor.tick()
        while executor.events:
            event = executor.events.popleft()
            if isinstance(event, Final):
                ends[check(event, running.pop(event.request_id))] += 1
    engine.close()
    print(f"{sum(ends.values())} answers of {path.stem}: {dict(ends)}")  # `pytest -s` shows it
    assert sum(ends.values()) == len(asked) and len(asked) >= 180 // EVERY * N_EACH
    assert ends["valid"] > len(asked) / 4, "many answers come to their end"


def check(final: Final, case: suite.Case) -> str:
    """Return how the answer ended. An answer that ended by itself is complete and valid; an answer that was cut could
    have continued.
    """
    if final.reason is FinishReason.STOP:
        suite.check_answer(final.text, case)
        return "valid"
    if final.reason is FinishReason.LENGTH:
        assert final.usage["completion_tokens"] == N_TOKENS
        return "length"
    assert final.reason is FinishReason.ERROR and final.error is not None
    return final.error.error.code
