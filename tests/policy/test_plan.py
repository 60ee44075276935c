"""The contract that every plan keeps, and the plan that always keeps it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.policy.build import reading, sids, state_of, talking, waiting
from uma_core.policy.plan import Admission, Plan, PlanItem, PrefillMode, check_plan, decode_only
from uma_core.types import Phase, Priority

TONE, TOPIC = (("tone", 1.0),), (("topic", 0.5),)
BOUNDS = {"can_mix_rows": True, "one_set_per_call": True, "n_batch": 600, "n_ubatch": 512, "n_verify_rows": 4}
STATE = state_of(
    talking(0, survival=(0.9, 0.8), draft_rates=(0.5,)),
    talking(1, adapters=TONE),
    talking(2, is_ready=False),
    reading(3, n_prompt=1000),
    reading(4, n_prompt=1000, n_chunk=64),
    waiting(5),
    waiting(6, phase=Phase.PARKED),
    reading(7, n_prompt=100),
    reading(8, is_ready=False),
    free_seqs=(6, 7),
    **BOUNDS,
)


def row(sid: int = 0, **more: Any) -> PlanItem:
    return PlanItem(sid, sid, Phase.DECODE, 1, True, 0, "")._replace(**more)


def chunk(sid: int = 3, n_tokens: int = 512, **more: Any) -> PlanItem:
    return PlanItem(sid, sid, Phase.PREFILL, n_tokens, False, -1, "", PrefillMode.SLICED)._replace(**more)


OWN_CALL = {"call": 5, "mode": PrefillMode.OWN_CALL}


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(items=(row(), row(1, call=1), chunk())),
        Plan(items=(row(n_tokens=3), chunk(4, 64)), drafting=((0, 1),)),
        Plan(items=(chunk(n_tokens=600, **OWN_CALL),)),
        Plan(items=(chunk(n_tokens=300, **OWN_CALL), row(call=5))),
        Plan(admit=(Admission(5, 6), Admission(6, 7)), items=(chunk(5, 100, seq_id=6, want_logits=True),)),
        Plan(restore=(3, 5), admit=(Admission(5, 7),)),
    ],
)
def test_a_sound_plan_breaks_no_rule(plan):
    assert check_plan(STATE, plan) == []


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        (Plan(admit=(Admission(3, 6),)), "waiting sessions are admitted"),
        (Plan(admit=(Admission(5, 0),)), "each to a free sequence of its own"),
        (Plan(admit=(Admission(5, 6), Admission(6, 6))), "each to a free sequence of its own"),
        (Plan(items=(row(), row())), "a session is planned once"),
        (Plan(items=(chunk(), chunk(4, 64))), "one prompt at most is sliced"),
        (Plan(items=(chunk(),), restore=(3,)), "nothing else is done with what is restored"),
        (Plan(restore=(4,)), "nothing else is done with what is restored"),
        (Plan(restore=(5,)), "nothing else is done with what is restored"),
        (Plan(items=(row(),), drafting=((0, 2),)), "drafts are wanted"),
        (Plan(drafting=((0, 1),)), "drafts are wanted"),
        (Plan(run_ns=-1), "no time is negative"),
        (Plan(items=(row(seq_id=1),)), "the session's own sequence"),
        (Plan(items=(row(2),)), "a session that decodes"),
        (Plan(items=(row(3),)), "a session that decodes"),
        (Plan(items=(row(n_tokens=4),)), "one token, and at most all drafts"),
        (Plan(items=(row(want_logits=False),)), "logits, in a decode call"),
        (Plan(items=(chunk(8, 50),)), "a prompt, in one of three ways"),
        (Plan(items=(chunk(7, 101),)), "tokens that are left"),
        (Plan(items=(chunk(4, 128),)), "a paused chunk is resumed whole"),
        (Plan(items=(chunk(call=0),)), "a call of its own only if not sliced"),
        (Plan(items=(chunk(n_tokens=513),)), "slices of an ubatch"),
        (Plan(items=(chunk(want_logits=True),)), "logits of the prompt's last token alone"),
        (Plan(items=(chunk(n_tokens=601, **OWN_CALL),)), "n_batch tokens at most"),
        (Plan(items=(row(n_tokens=2), chunk(n_tokens=3, **OWN_CALL)._replace(call=0))), "n_verify_rows with drafts"),
        (Plan(items=(row(), row(1))), "one adapter set"),
    ],
)
def test_a_broken_rule_is_named_and_no_other(plan, rule):
    (fault,) = check_plan(STATE, plan)
    assert fault.endswith(f"breaks the rule: {rule}")


def test_a_session_that_is_gone_is_found_before_anything_else():
    assert check_plan(STATE, Plan(items=(row(10),), restore=(11,))) == ["no sessions: [10, 11]"]


def test_an_engine_without_slots_slices_nothing():
    (fault,) = check_plan(state_of(reading(3, n_prompt=1000), n_prefill_slots=0), Plan(items=(chunk(),)))
    assert fault.endswith("one prompt at most is sliced")


def test_adapter_sets_may_share_a_call_where_the_engine_can():
    state = STATE._replace(device=STATE.device._replace(one_set_per_call=False))
    assert check_plan(state, Plan(items=(row(), row(1)))) == []


class TestDecodeOnly:
    def test_every_stream_that_is_ready_gets_one_token_and_nobody_else(self):
        plan = decode_only(STATE)
        assert check_plan(STATE, plan) == [] and sids(plan, Phase.DECODE) == [0, 1]
        assert all(item.n_tokens == 1 for item in plan.items) and plan.memory == STATE.memory

    def test_sets_are_kept_apart(self):
        state = state_of(talking(0), talking(1, adapters=TONE), talking(2), **BOUNDS)
        assert check_plan(state, decode_only(state)) == []
        assert sids(decode_only(state), Phase.DECODE) == [0, 2, 1]

    def test_it_stays_within_the_batch(self):
        state = state_of(*(talking(n, Priority.BACKGROUND) for n in range(8)), **{**BOUNDS, "n_batch": 3})
        assert check_plan(state, decode_only(state)) == [] and len(decode_only(state).items) == 3


def test_notes_and_memory_are_added_to_what_is_there():
    plan = Plan().note("one").note("two").remember(decode_first=4).remember(prefill_budget=9)
    assert plan.notes == ("one", "two")
    assert (plan.memory.decode_first, plan.memory.prefill_budget) == (4, 9)
    assert Plan(items=(row(), chunk())).decodes == (row(),) and Plan(items=(row(), chunk())).prompts == (chunk(),)
