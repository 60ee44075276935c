"""Chats whose prompts wait together begin together, as far as their patience goes."""

from tests.policy.build import CPU, MS, NOW, S, reading, state_of, talking
from uma_core.policy.parts import parts_of
from uma_core.policy.patience import TTFT_MOST, left_to_read_ns
from uma_core.types import Lane, Phase

BACK = Lane.BACKGROUND
OWN = CPU.prompt_ns(100, 0)


def begun(sid, **more):
    """A chat whose prompt is read and whose first token did not go out."""
    return talking(sid, **{"n_generated": 0, "n_past": 100, "t_queued_ns": NOW - OWN, "t_first_ns": 0, "t_last_ns": 0, **more})


def talkers(*views):
    return [v.sid for v in parts_of(state_of(*views)).talkers]


def test_it_waits_for_a_prompt_that_can_be_read_before_it_is_due():
    assert talkers(begun(0), reading(1, n_prompt=50)) == []
    assert talkers(begun(0, is_ready=False, is_transferring=True), reading(1, n_prompt=50)) == []
    assert talkers(begun(0), begun(1), reading(2, n_prompt=50)) == []
    assert talkers(begun(0), reading(1, n_prompt=2000, n_past=1900, n_chunk=100, chunk_fraction=0.9)) == []


def test_it_does_not_wait_for_long():
    assert talkers(begun(0), reading(1, n_prompt=3000)) == [0]
    assert talkers(begun(0, t_queued_ns=NOW - int(TTFT_MOST * OWN)), reading(1, n_prompt=50)) == [0]
    assert talkers(begun(0, slo_ttft_ns=OWN), reading(1, n_prompt=50)) == [0]


def test_nobody_waits_for_background_prompts_or_for_those_that_cannot_go_on():
    assert talkers(begun(0), reading(1, BACK, n_prompt=50)) == [0]
    assert talkers(begun(0), reading(1, n_prompt=50, is_ready=False)) == [0]
    assert talkers(begun(0), reading(1, n_prompt=50, n_generated=3, t_first_ns=NOW - S)) == [0], "it reads its own answer again"


def test_where_somebody_streams_nobody_waits():
    assert talkers(begun(0), talking(1), reading(2, n_prompt=50)) == [0, 1]
    arriving = talking(1, is_ready=False, is_transferring=True)
    assert talkers(begun(0), arriving, reading(2, n_prompt=50)) == [0]


def test_background_streams_do_not_count():
    parts = parts_of(state_of(begun(0), talking(1, BACK), reading(2, n_prompt=50)))
    assert (parts.talkers, [v.sid for v in parts.workers], parts.talk_ns) == ([], [1], 0)


def test_what_is_left_counts_what_a_chunk_has_done():
    whole = reading(1, n_prompt=300)
    half = whole._replace(n_chunk=300, chunk_fraction=0.5)
    state = state_of(whole)
    assert left_to_read_ns(state, half) == left_to_read_ns(state, whole) - int(0.5 * CPU.prefill_ns(300, 0))
    assert left_to_read_ns(state, whole._replace(phase=Phase.DECODE, n_past=300)) == 0 < MS
