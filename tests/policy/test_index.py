"""The lists that stages share: each session where it belongs, in order of arrival."""

from __future__ import annotations

import pytest

from tests.policy.build import CPU, reading, state_of, talking, waiting
from uma_core.policy.index import index_of, indexed, prompt_view, rows_time, views_of
from uma_core.policy.plan import PlanItem
from uma_core.policy.state import SessionView
from uma_core.types import Phase, Priority

BACK = Priority.BACKGROUND
MOVING = {"is_ready": False, "is_transferring": True}
HELD = {"is_ready": False}


def sids(views: list[SessionView]) -> list[int]:
    return [view.sid for view in views]


def test_indexing_changes_nothing_but_speed():
    state = state_of(talking(0), talking(1, BACK), reading(2), reading(3, BACK), waiting(4), waiting(5, BACK))
    assert indexed(state) == state
    assert index_of(indexed(state)) == index_of(state)
    assert indexed(indexed(state)) is not state and indexed(kept := indexed(state)) is kept


def test_a_changed_copy_is_sorted_again():
    state = indexed(state_of(talking(0), reading(1)))
    assert index_of(state._replace(sessions=state.sessions[:1])).prompts == []


@pytest.mark.parametrize(
    ("view", "lists"),
    [
        (waiting(7), {"waiting"}),
        (waiting(7, phase=Phase.PARKED), {"waiting"}),
        (waiting(7, **HELD), set()),
        (reading(7), {"resident", "prompts"}),
        (reading(7, n_chunk=64), {"resident", "prompts", "slots"}),
        (reading(7, n_chunk=64, **HELD), {"resident", "slots"}),
        (reading(7, **MOVING), {"resident", "moving", "slots"}),
        (talking(7), {"resident", "interactive", "streams", "decodes"}),
        (talking(7, **HELD), {"resident"}),
        (talking(7, **MOVING), {"resident", "moving", "arriving", "streams"}),
        (talking(7, **{**MOVING, "n_generated": 1}), {"resident", "moving", "arriving", "streams", "slots"}),
        (talking(7, BACK), {"resident", "background", "decodes"}),
        (talking(7, BACK, **MOVING), {"resident", "moving"}),
    ],
)
def test_a_session_is_in_the_lists_of_its_phase(view, lists):
    index = index_of(state_of(talking(0), view))
    names = (*(name for name in index._fields if name != "round_ns"), "streams", "decodes")
    assert {name for name in names if 7 in sids(getattr(index, name))} == lists


def test_lists_keep_the_order_of_arrival():
    index = index_of(state_of(waiting(9), reading(4), waiting(2), reading(1, BACK)))
    assert sids(index.waiting) == [9, 2] and sids(index.prompts) == [4, 1]


def test_a_round_is_that_of_the_chats_alone_and_one_that_is_about_to_join_them():
    chats = [talking(0), talking(1, **MOVING)]
    index = index_of(state_of(*chats, talking(2, BACK), reading(3)))
    assert index.round_ns == CPU.rows_ns(2, sum(view.n_past for view in chats))
    assert index_of(state_of(talking(2, BACK))).round_ns == 0


def test_rows_that_cannot_share_a_call_are_priced_apart():
    views = [talking(0), talking(5)]
    alone = CPU.rows_ns(1, views[0].n_past)
    assert rows_time(state_of(*views, can_mix_rows=False), views) == 2 * alone
    assert rows_time(state_of(can_mix_rows=True), []) == 0


def test_views_are_found_by_their_plan():
    state = state_of(talking(3), reading(1), waiting(2), talking(0))
    items = [PlanItem(sid, sid, Phase.DECODE, 1, True, 0, "") for sid in (0, 3)]
    assert sids(views_of(state, items)) == [3, 0]
    assert prompt_view(state, 1).sid == 1 and prompt_view(state, 2).sid == 2
