"""Plans carried out over the FakeEngine: whole lives of requests, limits, and failures."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.executor.rig import Rig, alone
from uma_core.engine.api import Batch, DecodeOutcome, DecodeStatus, Sampler
from uma_core.engine.fake.engine import FakeEngine, FakeModel
from uma_core.errors import ErrorCode
from uma_core.executor import accounting, calls
from uma_core.session.events import Accepted, Token
from uma_core.trace.recorder import Recorder
from uma_core.types import FinishReason, Peer


def test_one_request_from_acceptance_to_final() -> None:
    rig = Rig()
    rig.submit("a", "hello", max_tokens=7)
    rig.run()
    assert isinstance(rig.seen[0], Accepted)
    (final,) = rig.finals("a")
    assert final.reason is FinishReason.LENGTH
    assert final.usage == {"prompt_tokens": 6, "cached_tokens": 0, "completion_tokens": 7}
    assert len(rig.text("a")) > 0
    rig.check_all_free()


def test_streams_do_not_change_each_other() -> None:
    texts = [alone(f"prompt {i} " * (i + 1), max_tokens=20) for i in range(9)]
    rig = Rig()
    for i in range(9):
        rig.submit(f"r{i}", f"prompt {i} " * (i + 1), max_tokens=20)
    rig.run()
    assert [rig.text(f"r{i}") for i in range(9)] == texts
    rig.check_all_free()


@pytest.mark.parametrize("n_prefill_slots", [0, 1, 2])
@pytest.mark.parametrize("is_unified", [False, True])
def test_long_prompts_read_in_any_way_give_one_text(n_prefill_slots: int, is_unified: bool) -> None:
    prompt = "a long prompt, " * 120
    model = FakeModel(n_prefill_slots=n_prefill_slots, is_unified=is_unified)
    assert alone(prompt, model, max_tokens=5) == alone(prompt, max_tokens=5)


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sequences whose first token was drawn from the logits of their own prompt."""
    seqs: list[int] = []
    sample = FakeEngine.prefill_sample
    monkeypatch.setattr(
        FakeEngine,
        "prefill_sample",
        lambda self, seq_id, sampler: [seqs.append(seq_id), sample(self, seq_id, sampler)][1],
    )
    return seqs


def test_chats_that_come_together_begin_together() -> None:
    rig = Rig()
    for name in "abc":
        rig.submit(name, f"prompt {name} " * 9, max_tokens=9)
    rig.run()
    firsts = {e.request_id: i for i, e in reversed(list(enumerate(rig.seen))) if isinstance(e, Token)}
    assert max(firsts.values()) - min(firsts.values()) == 2, "three first tokens, one after another"


def test_cancel_frees_cells_at_once() -> None:
    rig = Rig()
    rig.submit("a", "x" * 300, max_tokens=100)
    rig.tick()
    assert rig.executor.table.n_cells_reserved > 0
    assert rig.executor.cancel(1, "a")
    rig.check_all_free()
    rig.tick()
    assert rig.finals("a")[0].reason is FinishReason.CANCELLED


def test_timeout_ends_with_what_was_generated() -> None:
    rig = Rig()
    rig.submit("a", max_tokens=1000, timeout_ns=20_000_000)
    rig.run()
    assert rig.finals("a")[0].reason is FinishReason.TIMEOUT
    assert rig.text("a")


def test_a_held_reader_pauses_alone() -> None:
    rig = Rig()
    rig.submit("slow", conn_id=1, max_tokens=40)
    rig.submit("fast", conn_id=2, max_tokens=40)
    for _ in range(4):
        rig.tick()
    rig.executor.hold(1, True)
    for _ in range(200):
        rig.tick()
    assert rig.finals("fast") and not rig.finals("slow")
    rig.executor.hold(1, False)
    rig.run()
    assert rig.text("slow") == alone(max_tokens=40)


# failures


def test_full_is_soft() -> None:
    rig = Rig()
    rig.faults.n_full = 25
    for i in range(3):
        rig.submit(f"r{i}", f"p{i}", max_tokens=10)
    rig.run()
    assert [rig.text(f"r{i}") for i in range(3)] == [alone(f"p{i}", max_tokens=10) for i in range(3)]


@pytest.mark.parametrize("n_ticks", [0, 3])
def test_sessions_that_never_find_cells_end_once_and_make_no_further_call(
    n_ticks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_most, rig, seqs = 10, Rig(), set[int]()
    decode = rig.engine.decode

    def noted(batch: Batch, samplers: Sequence[Sampler | None]) -> DecodeOutcome:
        seqs.update(batch.seq_id[: batch.n].tolist())
        return decode(batch, samplers)

    monkeypatch.setattr(rig.engine, "decode", noted)
    monkeypatch.setattr(calls, "N_FULL_MOST", n_most)
    for request_id in ("a", "b"):
        rig.submit(request_id, max_tokens=50)
    for _ in range(n_ticks):
        rig.tick()
    rig.faults.n_full = 1000
    rig.run()
    ends = [final.error for request_id in ("a", "b") for final in rig.finals(request_id)]
    assert [error and error.error for error in ends] == [ErrorCode.KV_FULL] * 2
    assert seqs == {0, 1}, "a session that has ended has no sequence"
    assert rig.executor.n_ticks > n_most
    rig.check_all_free()


def test_aborted_call_is_repeated() -> None:
    rig = Rig()
    rig.submit("a", max_tokens=10)
    rig.tick()
    rig.faults.statuses.extend([DecodeStatus.ABORTED] * 3)
    rig.run()
    assert rig.text("a") == alone(max_tokens=10)


def test_fatal_decode_ends_its_sessions_and_no_others() -> None:
    rig = Rig()
    rig.submit("a", max_tokens=30)
    while not rig.text("a"):
        rig.tick()
    rig.submit("later", "other", max_tokens=10)
    rig.faults.statuses.append(DecodeStatus.FATAL)
    rig.run()
    (final,) = rig.finals("a")
    assert (
        final.reason is FinishReason.ERROR and final.error is not None and final.error.error is ErrorCode.DECODE_FAILED
    )
    assert rig.text("later") == alone("other", max_tokens=10)
    rig.check_all_free()


def test_logits_that_are_not_finite_end_one_session() -> None:
    rig = Rig()
    rig.submit("a", max_tokens=30)
    while not rig.text("a"):
        rig.tick()
    rig.faults.nan_rows = {0}
    rig.run()
    assert rig.finals("a")[0].error.error is ErrorCode.SAMPLER_FAILED  # type: ignore[union-attr]
    rig.check_all_free()


def test_lost_chunk_ends_its_session() -> None:
    rig = Rig()
    rig.faults.prefill_failures = 1
    rig.submit("a")
    rig.run()
    assert rig.finals("a")[0].error.error is ErrorCode.DECODE_FAILED  # type: ignore[union-attr]
    rig.submit("b")
    rig.run()
    assert rig.finals("b")[0].error is None


def test_a_failing_stage_falls_back_to_decode_only(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.submit("a", max_tokens=99)
    while not rig.text("a"):
        rig.tick()

    def broken(state: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.executor, "_pipeline", broken)
    rig.run()
    assert rig.text("a") == alone(max_tokens=99)
    assert rig.executor.meters.violations.value > 0


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 3), st.integers(1, 700), st.integers(1, 30), st.booleans()),
        st.tuples(st.just("cancel"), st.integers(1, 3), st.integers(0, 40)),
        st.tuples(st.just("hang_up"), st.integers(1, 3)),
        st.tuples(st.just("hold"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("fault"), st.sampled_from([DecodeStatus.FATAL, DecodeStatus.ABORTED, DecodeStatus.FULL])),
        st.tuples(st.just("nan")),
        st.tuples(st.just("lose_chunk")),
        st.tuples(st.just("tick"), st.integers(1, 20)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_every_accepted_request_ends_exactly_once(actions: list[tuple]) -> None:  # type: ignore[type-arg]
    rig = Rig(FakeModel(n_ctx=4096, eog_every=25))
    n = 0
    for action in actions:
        match action:
            case ("submit", conn, size, n_max, stream):
                rig.submit(f"r{n}", "x" * size, conn_id=conn, max_tokens=n_max, stream=stream)
                n += 1
            case ("cancel", conn, i):
                rig.executor.cancel(conn, f"r{i}")
            case ("hang_up", conn):
                rig.executor.hang_up(conn)
            case ("hold", conn, held):
                rig.executor.hold(conn, held)
            case ("fault", status):
                rig.faults.statuses.append(status)
            case ("nan",):
                rig.faults.nan_rows = {0}
            case ("lose_chunk",):
                rig.faults.prefill_failures += 1
            case ("tick", k):
                for _ in range(k):
                    rig.tick()
    for conn in (1, 2, 3):
        rig.executor.hold(conn, False)
    rig.run()
    rig.check_one_final_each()
    rig.check_all_free()
    assert rig.executor.meters.violations.value == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 60), st.sampled_from([FinishReason.DRAINING, FinishReason.ERROR]))
def test_end_all_ends_everything(n_ticks: int, reason: FinishReason) -> None:
    rig = Rig()
    for i in range(6):
        rig.submit(f"r{i}", "x" * (50 * i + 5), max_tokens=200)
    for _ in range(n_ticks):
        rig.tick()
    rig.executor.end_all(reason)
    rig.tick()
    rig.check_one_final_each()
    rig.check_all_free()


def test_a_trace_holds_the_ticks_between_start_and_stop() -> None:
    rig, first, second = Rig(), Recorder(), Recorder()
    rig.executor.record(first)
    rig.submit("a", max_tokens=5)
    rig.run()
    n_ticks = len(first.ticks)
    rig.executor.record(second)
    rig.submit("b", max_tokens=5)
    rig.executor.forget(first)
    rig.run()
    assert len(first.ticks) == n_ticks >= 5 and len(second.ticks) >= 5, "recordings do not end each other"
    assert (first.names, second.names) == ({1: "a", 2: "b"}, {2: "b"})


def test_a_recording_for_replays_leaves_repeated_plans_alone() -> None:
    drawn, lines = Recorder(), Recorder(is_every_tick=False)
    for recorder in (drawn, lines):
        rig = Rig()
        rig.executor.record(recorder)
        rig.submit("a", max_tokens=200)
        rig.run()
    assert len(drawn.ticks) > 10 * len(lines.ticks) > 0


def test_a_process_for_each_request_does_not_grow_the_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    n_most = 64
    monkeypatch.setattr(accounting, "CLIENTS_MOST", n_most)
    rig = Rig()
    rig.submit("heavy", "hello", peer=Peer(1, 1, 1), max_tokens=2000)
    for n in range(3 * n_most):
        rig.submit(f"r{n}", "x", peer=Peer(1, 1, 100 + n), conn_id=2, max_tokens=1)
        rig.tick()
    heavy = next(s.client for s in rig.executor.table if s.id == "heavy")
    shares = rig.executor.client_ns
    assert len(shares) <= n_most
    assert shares[heavy] == max(shares.values())
    rig.executor.cancel(1, "heavy")
    rig.run()
    rig.check_all_free()
