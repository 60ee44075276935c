"""Inputs become vectors over the FakeEngine: beside streams, however they are read, with one final event each."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.executor.rig import Rig, alone
from tests.speculation.oracle import Oracle
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.engine.fake.engine import FakeModel, _hidden_rows
from uma_core.engine.fake.kv import FakeKV
from uma_core.errors import ErrorCode
from uma_core.executor.admission import Limits
from uma_core.metrics import catalog as m
from uma_core.session.embedding import normalized
from uma_core.session.events import Submit, Token
from uma_core.session.session import Session
from uma_core.speculation.settings import Settings
from uma_core.speculation.speculator import Speculator
from uma_core.types import Embed, FinishReason, Peer, Priority, Request

RNG = np.random.default_rng(5)


def inputs_of(*sizes: int) -> list[np.ndarray]:
    return [RNG.integers(3, 200, n).astype(np.int32) for n in sizes]


def hidden(tokens: Sequence[int]) -> np.ndarray:
    """Each token's hidden state; it also depends on all tokens before it."""
    kv = FakeKV(1, 1 << 16, 1 << 16, True)
    return _hidden_rows([kv.append(0, int(token)) for token in tokens])


def pooled(tokens: Sequence[int], pooling: str) -> np.ndarray:
    rows = hidden(tokens)
    return {"none": rows, "mean": rows.mean(0, keepdims=True), "cls": rows[:1], "last": rows[-1:]}[pooling]


SOMEBODY = Peer(1, 1, 1)


def submit(
    rig: Rig, request_id: str, inputs: list[np.ndarray], peer: Peer = SOMEBODY, conn_id: int = 1, **fields: Any
) -> None:
    names = ("pooling", "normalize", "dimensions", "truncate", "reply_bytes", "op")
    embed = Embed(fields.pop("op", "embed"), **{name: fields.pop(name) for name in names if name in fields})
    request = Request(request_id, embed=embed, stream=False, cache_prompt=False, **fields)
    ends = tuple(np.cumsum([len(tokens) for tokens in inputs]).tolist())
    rig.executor.submit(Submit(conn_id, peer, request, np.concatenate(inputs), rig.clock.now_ns(), ends))


def vectors(rig: Rig, request_id: str) -> list[np.ndarray]:
    (final,) = rig.finals(request_id)
    assert final.reason is FinishReason.STOP and final.error is None
    found: list[np.ndarray] = final.embedding.vectors
    return found


@pytest.mark.parametrize("pooling", ["none", "mean", "cls", "last"])
@pytest.mark.parametrize("n_prefill_slots", [0, 1, 2])
@pytest.mark.parametrize("is_unified", [False, True])
def test_inputs_read_in_any_way_give_the_same_vectors(pooling: str, n_prefill_slots: int, is_unified: bool) -> None:
    inputs = inputs_of(1, 700, 3, 64, 1500)
    rig = Rig(FakeModel(n_prefill_slots=n_prefill_slots, is_unified=is_unified, n_ubatch=128))
    submit(rig, "e", inputs, pooling=pooling, normalize=False)
    rig.run()
    for found, tokens in zip(vectors(rig, "e"), inputs, strict=True):
        np.testing.assert_allclose(found, pooled(tokens, pooling), rtol=1e-6)
    assert rig.finals("e")[0].usage["prompt_tokens"] == sum(map(len, inputs))
    assert rig.registry.snapshot().value(m.PROMPT_TOKENS) == sum(map(len, inputs))
    rig.check_all_free()


def test_vectors_are_cut_and_then_normalized() -> None:
    (tokens,) = inputs_of(20)
    rig = Rig()
    submit(rig, "whole", [tokens])
    submit(rig, "cut", [tokens], dimensions=3)
    submit(rig, "plain", [tokens], dimensions=3, normalize=False)
    rig.run()
    expected = pooled(tokens, "last")
    np.testing.assert_allclose(vectors(rig, "whole")[0], normalized(expected), rtol=1e-6)
    np.testing.assert_allclose(vectors(rig, "cut")[0], normalized(expected[:, :3]), rtol=1e-6)
    np.testing.assert_allclose(vectors(rig, "plain")[0], expected[:, :3], rtol=1e-6)
    assert abs(np.linalg.norm(vectors(rig, "cut")[0]) - 1) < 1e-6


@pytest.mark.parametrize("n_prefill_slots", [0, 2])
@pytest.mark.parametrize("ride_rows", [(), (4, 8, 16)])
def test_a_stream_beside_them_says_what_it_says_alone(n_prefill_slots: int, ride_rows: tuple[int, ...]) -> None:
    model = FakeModel(n_prefill_slots=n_prefill_slots, ride_rows=ride_rows)
    rig, inputs = Rig(model), inputs_of(*[90] * 20)
    rig.submit("chat", "hello there", max_tokens=60)
    submit(rig, "e", inputs)
    rig.run()
    assert rig.text("chat") == alone("hello there", model, max_tokens=60)
    for found, tokens in zip(vectors(rig, "e"), inputs, strict=True):
        np.testing.assert_allclose(found, normalized(pooled(tokens, "last")), rtol=1e-5)
    rig.check_all_free()


@pytest.mark.parametrize("n_prefill_slots", [0, 2])
def test_no_gap_of_a_stream_holds_more_of_a_batch_than_of_a_prompt(n_prefill_slots: int) -> None:
    """The guard treats an input like a prompt: the longest gap is not longer beside an input than beside a prompt."""

    def longest(kind: str) -> int:
        rig = Rig(FakeModel(n_prefill_slots=n_prefill_slots), cost=CPU_SHAPE)
        rig.submit("chat", "hello", max_tokens=150, priority=Priority.INTERACTIVE)
        for _ in range(10):
            rig.tick()
        if kind == "batch":
            submit(rig, "other", inputs_of(*[300] * 40), priority=Priority.BACKGROUND)
        elif kind == "prompt":
            rig.submit("other", tokens=inputs_of(4000)[0].tolist(), priority=Priority.BACKGROUND, max_tokens=1)
        times, n = [], 0
        for _ in range(20_000):
            rig.tick()
            n_now = sum(isinstance(e, Token) for e in rig.seen)
            times += [rig.clock.now_ns()] * (n_now > n)
            n = n_now
            if rig.finals("chat"):
                break
        return max(b - a for a, b in itertools.pairwise(times))

    assert longest("batch") <= 1.05 * longest("prompt")


def test_a_batch_ends_when_it_is_cancelled_and_leaves_nothing() -> None:
    rig = Rig(FakeModel(n_ubatch=64))
    submit(rig, "e", inputs_of(*[400] * 50))
    for _ in range(5):
        rig.tick()
    assert rig.executor.cancel(1, "e")
    rig.run()
    (final,) = rig.finals("e")
    assert final.reason is FinishReason.CANCELLED and final.embedding is None
    rig.check_all_free()


def test_a_batch_ends_at_its_time_out() -> None:
    rig = Rig(FakeModel(n_ubatch=64), cost=CPU_SHAPE)
    submit(rig, "e", inputs_of(*[400] * 500), timeout_ns=50_000_000)
    rig.run()
    assert rig.finals("e")[0].reason is FinishReason.TIMEOUT
    rig.check_all_free()


def test_one_short_input_is_interactive_and_many_are_not() -> None:
    rig = Rig()
    submit(rig, "one", inputs_of(12))
    submit(rig, "many", inputs_of(12, 12))
    submit(rig, "long", inputs_of(900))
    priorities = {session.id: session.priority for session in rig.executor.table}
    assert priorities == {"one": Priority.INTERACTIVE, "many": Priority.BACKGROUND, "long": Priority.BACKGROUND}
    rig.run()
    rig.check_one_final_each()


def test_chats_that_find_every_place_taken_get_one_between_two_inputs() -> None:
    rig = Rig(FakeModel(n_seq_max=2, n_ubatch=64), cost=CPU_SHAPE)
    inputs = inputs_of(*[100] * 60)
    for name in ("e1", "e2"):
        submit(rig, name, inputs, conn_id=2)
    for _ in range(3):
        rig.tick()
    for i in range(2):
        rig.submit(f"chat{i}", "hello", max_tokens=400, priority=Priority.INTERACTIVE)
    for _ in range(20_000):
        rig.tick()
        if all(rig.finals(f"chat{i}") for i in range(2)):
            break
    assert not rig.finals("e1") or not rig.finals("e2")  # the chats did not wait for both batches
    rig.run()
    for name in ("e1", "e2"):
        for found, tokens in zip(vectors(rig, name), inputs, strict=True):
            np.testing.assert_allclose(found, normalized(pooled(tokens, "last")), rtol=1e-5)
    rig.check_all_free()


def test_a_call_that_fails_ends_its_batch_and_no_other() -> None:
    rig = Rig()
    rig.faults.prefill_failures = 1
    submit(rig, "bad", inputs_of(40))
    submit(rig, "good", inputs_of(40), conn_id=2)
    rig.run()
    assert rig.finals("bad")[0].error.error is ErrorCode.DECODE_FAILED  # type: ignore[union-attr]
    assert len(vectors(rig, "good")) == 1
    rig.check_all_free()


@pytest.mark.parametrize(
    ("sizes", "fields", "code", "detail"),
    [
        ((5,), {"pooling": "rank"}, ErrorCode.UNSUPPORTED, {"pooling": "rank"}),
        ((5,), {"op": "rerank"}, ErrorCode.UNSUPPORTED, {"pooling": "rank"}),
        ((5,), {"dimensions": 9}, ErrorCode.BAD_REQUEST, {"field": "dimensions"}),
        ((5, 5000), {}, ErrorCode.PROMPT_TOO_LARGE, {"index": 1, "limit": 4096}),
        ((5,) * 100, {"reply_bytes": 1000}, ErrorCode.PROMPT_TOO_LARGE, {"limit": 1000}),
        ((100,), {"reply_bytes": 1000, "pooling": "none"}, ErrorCode.PROMPT_TOO_LARGE, {"limit": 1000}),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_computed(
    sizes: tuple[int, ...], fields: dict[str, Any], code: ErrorCode, detail: dict[str, Any]
) -> None:
    rig = Rig()
    submit(rig, "e", inputs_of(*sizes), **fields)
    rig.tick()
    (refused,) = rig.refusals()
    assert refused.error.error is code
    assert detail.items() <= refused.error.detail.items()
    rig.check_all_free()


def test_tokens_out_of_range_are_refused() -> None:
    rig = Rig()
    submit(rig, "e", [np.array([3, 1 << 30], np.int32)])
    rig.tick()
    (refused,) = rig.refusals()
    assert refused.error.error is ErrorCode.BAD_REQUEST


def test_too_long_an_input_is_cut_before_its_last_token_where_asked() -> None:
    rig, (tokens,) = Rig(), inputs_of(5000)
    submit(rig, "e", [tokens], truncate=True)
    rig.run()
    kept = np.concatenate([tokens[:4095], tokens[-1:]])
    np.testing.assert_allclose(vectors(rig, "e")[0], normalized(pooled(kept, "last")), rtol=1e-5)
    assert rig.finals("e")[0].usage["prompt_tokens"] == 4096


def test_a_full_queue_refuses_batches_as_it_refuses_prompts() -> None:
    rig = Rig(FakeModel(n_seq_max=1), limits=Limits(queue=(64, 1)))
    for i in range(3):
        submit(rig, f"e{i}", inputs_of(50, 50), conn_id=i)
    rig.run()
    assert [refused.error.error for refused in rig.refusals()] == [ErrorCode.OVERLOADED]
    rig.check_one_final_each()


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=6), min_size=1, max_size=5),
    cancels=st.dictionaries(st.integers(0, 4), st.integers(1, 30), max_size=3),
    n_prefill_slots=st.integers(0, 2),
    n_chats=st.integers(0, 3),
)
def test_every_request_ends_once_whatever_happens(
    sizes: list[list[int]], cancels: dict[int, int], n_prefill_slots: int, n_chats: int
) -> None:
    rig = Rig(FakeModel(n_prefill_slots=n_prefill_slots, n_ubatch=64, n_seq_max=3), cost=CPU_SHAPE)
    for i, lengths in enumerate(sizes):
        submit(rig, f"e{i}", inputs_of(*lengths), conn_id=i)
    for i in range(n_chats):
        rig.submit(f"c{i}", "hi " * (i + 1), conn_id=100 + i, max_tokens=20)
    for tick in range(31):
        for i, at in cancels.items():
            if at == tick:
                rig.executor.cancel(i, f"e{i}")
        rig.tick()
    rig.run()
    rig.check_one_final_each()
    rig.check_all_free()


def test_nothing_is_looked_up_for_inputs() -> None:
    asked: list[str] = []

    def source(session: Session) -> Oracle:
        asked.append(session.id)
        return Oracle((), random.Random(1), 0.0, 200)

    rig = Rig(speculator=Speculator(Settings("lookup"), True, source))
    submit(rig, "vector", inputs_of(300, 20))
    rig.submit("text", "hello" * 20, max_tokens=5)
    rig.run()
    assert len(vectors(rig, "vector")) == 2
    assert set(asked) == {"text"}
