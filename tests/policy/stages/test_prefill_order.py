"""Which prompt is read next."""

from __future__ import annotations

import re

import pytest

from tests.policy.build import CPU, NOW, S, reading, state_of, talking, waiting
from uma_core.policy.plan import Admission, Plan, PrefillMode
from uma_core.policy.stages import prefill_order
from uma_core.types import Phase, Priority

BACK = Priority.BACKGROUND
CHUNK = {"n_chunk": 256, "chunk_fraction": 0.3, "n_prompt": 1200}


def head(*views, **more):
    plan = prefill_order.run(state_of(*views, **more), Plan())
    return plan.items[0].sid if plan.items else None


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        ((reading(1, BACK), reading(2)), 2),  # priority
        ((reading(1, n_prompt=900), reading(2, n_prompt=90)), 2),  # least remaining work
        ((reading(1, n_prompt=900, n_past=890), reading(2, n_prompt=90)), 1),  # remaining work, not the whole
        ((reading(1, BACK, **CHUNK), reading(2, n_prompt=90)), 2),  # a chat overtakes a paused background chunk
        ((reading(1, BACK, **CHUNK), reading(2, BACK, n_prompt=64)), 1),  # background does not take the last slot
        ((reading(1, is_ready=False), reading(2, BACK)), 2),
        ((), None),
    ],
)
def test_order(views, expected):
    assert head(*views) == expected


@pytest.mark.parametrize("seq_id", [0, 7])
def test_what_a_client_holds_keeps_its_prompts_from_no_slot(seq_id):
    """What the client holds counted when its requests waited for sequences. Now they have sequences."""
    short = reading(4, client=1, seq_id=seq_id, n_prompt=20)
    views = (short, talking(1, client=1), talking(2, client=1), reading(5, client=2, n_prompt=600))
    plan = prefill_order.run(state_of(*views), Plan(charged={1: 0, 2: 0}))
    assert plan.items[0].sid == 4


def test_a_more_urgent_prompt_waits_for_a_slot_and_the_most_urgent_chunk_goes_on():
    paused = (reading(1, BACK, **CHUNK), reading(2, **CHUNK))
    assert head(*paused, reading(3, n_prompt=30)) == 2
    assert head(*paused, reading(3, n_prompt=30), n_prefill_slots=3) == 3


def test_a_handover_holds_its_slot():
    moving = reading(1, BACK, is_ready=False, is_transferring=True)
    assert head(moving, reading(2, BACK)) is None
    assert head(moving, reading(2)) == 2


def test_one_slot_is_enough_for_background_where_there_is_but_one():
    assert head(reading(1, BACK), n_prefill_slots=1) == 1


def test_a_resumed_chunk_keeps_its_length_and_logits_belong_to_the_last_token():
    plan = prefill_order.run(state_of(reading(1, n_prompt=1000, n_past=744, n_chunk=256)), Plan())
    item = plan.items[0]
    assert (item.n_tokens, item.want_logits, item.mode) == (256, True, PrefillMode.SLICED)


def test_admitted_in_this_tick_reads_in_this_tick_unless_it_is_restored():
    state = state_of(waiting(7))
    plan = Plan(admit=(Admission(7, 3),))
    item = prefill_order.run(state, plan).items[0]
    assert (item.sid, item.seq_id) == (7, 3)
    assert prefill_order.run(state, plan._replace(restore=(7,))).items == ()


def test_parked_in_this_tick_is_not_read():
    assert prefill_order.run(state_of(reading(1, BACK)), Plan(park=(1,))).items == ()


class TestStarvation:
    ROUNDS = 64 * CPU.solo_step_ns(110)

    def test_beside_a_stream_the_longest_starved_goes_first(self):
        starved = reading(1, BACK, n_prompt=2000, t_progress_ns=NOW - self.ROUNDS)
        fresh = reading(2, n_prompt=10)
        assert head(talking(0), starved, fresh) == 1
        assert head(talking(0), starved._replace(t_progress_ns=NOW - self.ROUNDS + 10**6), fresh) == 2

    def test_with_nobody_streaming_nobody_is_starved(self):
        assert head(reading(1, BACK, n_prompt=2000, t_progress_ns=NOW - self.ROUNDS), reading(2, n_prompt=10)) == 2

    def test_aging_lifts_background_above_interactive(self):
        assert head(reading(1, BACK, t_progress_ns=NOW - 11 * S), reading(2)) == 1


class TestWithoutResumablePrefill:
    def test_every_prompt_has_a_call_after_the_decode_calls(self):
        state = state_of(reading(1, BACK, n_prompt=3000), reading(2, n_prompt=90), n_prefill_slots=0)
        items = prefill_order.run(state, Plan()).items
        assert [(i.sid, i.call, i.n_tokens) for i in items] == [(2, 0, 90), (1, 1, 512)]
        assert all(i.phase is Phase.PREFILL for i in items)


@pytest.mark.parametrize(
    ("views", "note"),
    [
        ((reading(1), reading(2, BACK)), "prompt 1 goes first, prompt 2 waits: before 2 by priority"),
        (
            (reading(1, n_prompt=400), reading(2, n_prompt=90), reading(3, BACK)),
            "prompt 2 goes first, 2 others wait: before 1, less is left to read (LESS ms, less a tenth of the wait)",
        ),
        ((reading(1, BACK), reading(2, BACK)), "prompt 1 goes first, prompt 2 waits: before 2, it arrived first"),
        (
            (reading(1, BACK, **CHUNK), reading(2, BACK)),
            "prompt 1 goes first, prompt 2 waits: the last prefill slot is kept for chats",
        ),
        (
            (reading(1, BACK, **CHUNK), reading(2, BACK), reading(3, BACK)),
            "prompt 1 goes first, 2 others wait: the last prefill slot is kept for chats",
        ),
    ],
)
def test_a_note_says_why_prompts_wait_for_another(views, note):
    (said,) = prefill_order.run(state_of(*views), Plan()).notes
    assert re.sub(r"-?[0-9.]+ < -?[0-9.]+", "LESS", said) == f"prefill_order: {note}"


def test_a_note_says_that_every_prefill_slot_is_taken():
    chunk, moving = reading(1, **CHUNK), reading(1, is_ready=False, is_transferring=True)
    for view, start in ((chunk, "prompt 1 goes first, prompt 2 waits: "), (moving, "")):
        (note,) = prefill_order.run(state_of(view, reading(2), n_prefill_slots=1), Plan()).notes
        assert note == f"prefill_order: {start}every prefill slot is taken"


def test_a_note_says_whose_client_had_less():
    views = reading(1, client=1, n_prompt=90), reading(2, client=2, n_prompt=900)
    (note,) = prefill_order.run(state_of(*views), Plan(charged={1: 3 * S, 2: 0})).notes
    why = "before 1, its client was charged less (0 < 6 times 500 ms)"
    assert note == f"prefill_order: prompt 2 goes first, prompt 1 waits: {why}"


def test_a_note_says_who_starves():
    starved = reading(1, BACK, n_prompt=2000, t_progress_ns=NOW - 9 * S)
    (note,) = prefill_order.run(state_of(talking(0), starved, reading(2, n_prompt=10)), Plan()).notes
    assert note.startswith("prefill_order: prompt 1 goes first, prompt 2 waits: without progress for 9000 ms")


def test_one_prompt_alone_needs_no_note():
    assert prefill_order.run(state_of(reading(1)), Plan()).notes == ()
