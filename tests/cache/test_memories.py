"""Models that forget or mix what they read are recognized, and never get KV that does not stand for the whole
prompt.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cache import memories
from tests.executor.rig import new_executor
from uma_core.cache.settings import CacheSettings
from uma_core.config.options import EngineOptions
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.executor.admission import Limits
from uma_core.session.events import Final, Submit
from uma_core.types import Peer, Priority, Request

pytestmark = pytest.mark.model
N_ANSWER = 8


class Bench:
    """One engine and its executor. It remembers the answer to each request."""

    def __init__(self, engine: LlamaEngine, is_on: bool) -> None:
        self.engine = engine
        self.executor = new_executor(engine, Limits(max_sessions=20, queue=(20, 20)))
        self.executor.set_cache(CacheSettings(is_on=is_on, ram_bytes=1 << 24))
        self.answers: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        deliver = self.executor.output.deliver

        def listen(session: Any, token: int, now_ns: int) -> None:
            self.answers.setdefault(session.id, []).append(token)
            deliver(session, token, now_ns)

        self.executor.output.deliver = listen  # type: ignore[method-assign]

    def submit(
        self, name: str, prompt: list[int], n: int = N_ANSWER, priority: Priority = Priority.INTERACTIVE
    ) -> None:
        request = Request(name, tokens=tuple(prompt), max_tokens=n, priority=priority, ignore_eos=True)
        self.executor.submit(Submit(1, Peer(1, 1, 1), request, list(prompt), 0))

    def run(self) -> None:
        while len(self.executor.table):
            self.executor.tick()
        events: deque[Any] = self.executor.events
        self.cached |= {e.request_id: e.usage["cached_tokens"] for e in events if isinstance(e, Final)}
        events.clear()

    def ask(self, name: str, prompt: list[int]) -> list[int]:
        self.submit(name, prompt)
        self.run()
        return self.answers[name]


@pytest.fixture(scope="module", params=list(memories.LAYERS))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    path: Path = tmp_path_factory.mktemp("model") / f"{request.param}.gguf"
    memories.write(request.param, path)
    made = LlamaEngine(str(path), EngineOptions(n_ctx=2048, n_seq=2, threads=1, n_batch=128, n_ubatch=128))
    yield made
    made.close()


@pytest.fixture
def expected(engine: LlamaEngine) -> Iterator[Bench]:
    """Return the answer of the same engine without a cache."""
    yield from benches(engine, False)


@pytest.fixture
def bench(engine: LlamaEngine) -> Iterator[Bench]:
    yield from benches(engine, True)


def benches(engine: LlamaEngine, is_on: bool) -> Iterator[Bench]:
    for seq_id in range(engine.info.n_seq_max):
        assert engine.kv_truncate(seq_id, 0)
    made = Bench(engine, is_on)
    yield made
    made.executor.close(1.0)


def text(n: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(33, 127), k=n)


def test_it_is_recognised(engine: LlamaEngine) -> None:
    can = engine.info.capabilities
    assert (can.can_rollback, can.can_copy_prefix, can.n_prefill_slots) == (False, False, 0)
    assert len(engine.info.notes) == 2 and "no snapshots" in engine.info.notes[1]


def test_what_was_read_cannot_be_cut_back(engine: LlamaEngine, bench: Bench) -> None:
    bench.ask("a", text(60, 1))
    n = engine.kv_len(0)
    assert n >= 60 and not engine.kv_truncate(0, n - 5) and engine.kv_len(0) == n


def test_a_chat_goes_on_in_its_sequence_and_a_branch_is_read_anew(bench: Bench, expected: Bench) -> None:
    first = text(150, 2)
    first_answer = bench.ask("first", first)
    grown = first + first_answer + text(20, 3)
    branch = first[:100] + text(30, 4)
    for name, prompt, n_cached in (
        ("grown", grown, len(first) + N_ANSWER - 1),
        ("branch", branch, 0),
        ("again", first, 0),
    ):
        bench.ask(name, prompt)
        assert bench.cached[name] == n_cached
    for name, prompt in (("first", first), ("grown", grown), ("branch", branch), ("again", first)):
        assert bench.answers[name] == expected.ask(name, prompt)


def test_chats_that_take_turns_and_parked_work_are_answered_alike(bench: Bench, expected: Bench) -> None:
    prompts = {f"chat{i}": text(90 + i, 10 + i) for i in range(4)}
    for each in (bench, expected):
        each.submit("work", text(120, 20), 40, Priority.BACKGROUND)
        each.submit("more", text(130, 21), 40, Priority.BACKGROUND)
        while len(each.answers.get("work", ())) < 5 and len(each.answers.get("more", ())) < 5:
            each.executor.tick()
        for name, prompt in prompts.items():
            each.submit(name, prompt)
        each.run()
    assert bench.answers == expected.answers
    assert len(bench.answers["work"]) == len(bench.answers["more"]) == 40
