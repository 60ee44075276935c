"""Prompts whose tokens are rows of the streams' own decode calls, through whole lives of requests."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.executor.rig import Rig
from uma_core.engine.api import Batch, DecodeOutcome, DecodeStatus
from uma_core.engine.fake.engine import FakeEngine, FakeModel
from uma_core.executor.accounting import Accounting
from uma_core.executor.executor import device_view
from uma_core.executor.meters import Meters
from uma_core.metrics import catalog as m
from uma_core.metrics.catalog import new_registry
from uma_core.policy.cost.calibrate import guess
from uma_core.policy.cost.curve import Curve
from uma_core.session.events import Token
from uma_core.trace.recorder import Recorder
from uma_core.types import Peer, Phase, Priority

MIXES = FakeModel(is_unified=True, ride_rows=(2, 4, 8))
PROMPT = "a prompt of a few dozen tokens, read while somebody else is being answered"
N = 60


def rig_of(model: FakeModel) -> Rig:
    rig = Rig(model)
    if model.ride_rows:
        step = rig.executor.cost.solo_step_ns(0)
        rig.executor.cost = rig.executor.cost._replace(mixed=Curve((1, 8), (step, step), (0.0, 0.0)))
    return rig


def beside_a_chat(rig: Rig, priority: Priority, n_max: int = 9) -> Rig:
    rig.submit("chat", "hello", conn_id=1, max_tokens=N, priority=Priority.INTERACTIVE)
    for _ in range(5):
        rig.tick()
    rig.submit("other", PROMPT, conn_id=2, peer=Peer(2, 2, 2), max_tokens=n_max, priority=priority)
    return rig


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return the sequences for which a chunk was opened."""
    seqs: list[int] = []
    plain = FakeEngine.prefill_open
    monkeypatch.setattr(
        FakeEngine, "prefill_open", lambda self, seq_id, *rest: (seqs.append(seq_id), plain(self, seq_id, *rest))[1]
    )
    yield seqs


@pytest.mark.parametrize("priority", Priority)
def test_the_text_is_that_of_prompts_read_in_chunks(priority: Priority, opened: list[int]) -> None:
    texts, n_opened = [], []
    for model in (MIXES, FakeModel(is_unified=True)):
        opened.clear()
        rig = beside_a_chat(rig_of(model), priority)
        rig.run()
        texts.append((rig.text("chat"), rig.text("other")))
        n_opened.append(len(opened))
        rig.check_one_final_each()
        rig.check_all_free()
    assert texts[0] == texts[1]
    assert n_opened[0] == 1 < n_opened[1], "only the chat's own prompt was read in a chunk"


@pytest.mark.parametrize("priority", Priority)
def test_a_prompt_of_one_token_is_answered_by_the_streams_next_step(priority: Priority, opened: list[int]) -> None:
    """Before, it was read as a chunk, in pieces: it took several steps more than a prompt of two tokens."""
    rig = rig_of(MIXES)
    rig.submit("chat", "hello", conn_id=1, max_tokens=N)
    for _ in range(5):
        rig.tick()
    opened.clear()
    n_seen = len(rig.seen)
    rig.submit("other", tokens=[104], conn_id=2, peer=Peer(2, 2, 2), max_tokens=9, priority=priority)
    while not any(isinstance(event, Token) and event.request_id == "other" for event in rig.seen):
        rig.tick()
    assert sum(isinstance(event, Token) and event.request_id == "chat" for event in rig.seen[n_seen:]) == 1
    assert opened == []
    rig.run()
    alone = rig_of(MIXES)
    alone.submit("other", tokens=[104], max_tokens=9)
    alone.run()
    assert rig.text("other") == alone.text("other")
    rig.check_one_final_each()
    rig.check_all_free()


def test_every_token_of_the_prompt_is_counted_once() -> None:
    rig = beside_a_chat(rig_of(MIXES), Priority.INTERACTIVE)
    rig.run()
    rig.tick()
    n_prompt = sum(final.usage["prompt_tokens"] for request in ("chat", "other") for final in rig.finals(request))
    assert rig.executor.meters.prefill_tokens.value == n_prompt
    calls = rig.registry.snapshot().merged(m.DECODE_CALL)
    assert calls.n_values == rig.executor.meters.calls.value


def test_what_is_reported_tells_mixed_rows_from_streams() -> None:
    rig = beside_a_chat(rig_of(MIXES), Priority.BACKGROUND)
    recorder = Recorder()
    rig.executor.record(recorder)
    rig.run()
    reports = [report for tick in recorder.ticks for report in tick.reports]
    mixed = [r for r in reports if r.n_mixed]
    assert mixed and all(r.phase is Phase.DECODE and r.n_rows == 1 + r.n_mixed for r in mixed)


def test_a_call_with_mixed_rows_is_booked_as_it_was_predicted() -> None:
    cost = guess(device_view(FakeEngine(MIXES)))._replace(mixed=Curve((1, 8), (1e6, 3e6), (100.0, 800.0)))
    accounting = Accounting(Meters(new_registry()))
    people = [SimpleNamespace(client=1), SimpleNamespace(client=2)]
    accounting.unbooked.append((people, 8, 50, 7, 20, 0, False, DecodeOutcome(DecodeStatus.OK, [1], 4_000_000, 0)))  # type: ignore[arg-type]
    (report,) = accounting.flush(cost)
    assert report.predicted_ns == cost.decode_ns(1, 50) + cost.mixed_ns(1, 7, 20) > cost.decode_ns(1, 50)
    assert (report.n_rows, report.n_mixed, report.n_kv) == (8, 7, 70) and report.mixed_ns == cost.mixed_ns(1, 7, 20)
    assert accounting.client_ns == {1: 2_000_000, 2: 2_000_000}


def test_a_call_without_room_loses_nothing() -> None:
    rig = beside_a_chat(rig_of(MIXES), Priority.BACKGROUND)
    seen = []
    decode = rig.engine.decode

    def full_once(batch: Batch, samplers):  # type: ignore[no-untyped-def]
        if batch.n > 2 and not seen:
            seen.append(batch.n)
            rig.faults.n_full += 1
        return decode(batch, samplers)

    rig.engine.decode = full_once  # type: ignore[method-assign]
    rig.run()
    assert seen and rig.text("other") == beside(rig_of(FakeModel(is_unified=True)))
    rig.check_one_final_each()


def beside(rig: Rig) -> str:
    beside_a_chat(rig, Priority.BACKGROUND).run()
    return rig.text("other")
