"""Decode rows in the cheapest calls, chats first."""

from __future__ import annotations

from tests.policy.build import CPU, GPU, state_of, talking
from uma_core.policy.index import rows_time
from uma_core.policy.rows import added_ns, decode_items
from uma_core.types import Priority

BACK = Priority.BACKGROUND
CHATS, OTHERS = [talking(0), talking(2)], [talking(1, BACK), talking(3, BACK)]


def state(cost, **more):
    return state_of(*CHATS, *OTHERS, cost=cost, **{"can_mix_rows": True, **more})


def calls(items):
    return {item.sid: item.call for item in items}


def test_a_shared_call_costs_others_only_what_it_adds():
    at = state(GPU)
    added, is_shared = added_ns(at, CHATS, OTHERS)
    assert is_shared and added == rows_time(at, CHATS + OTHERS) - rows_time(at, CHATS)
    assert added < rows_time(at, OTHERS)


def test_where_sharing_saves_nothing_background_rows_have_their_own_time():
    at = state(CPU)
    assert added_ns(at, CHATS[:1], OTHERS[:1]) == (rows_time(at, OTHERS[:1]), False)


def test_chats_have_the_first_calls_unless_one_call_is_cheaper_for_all():
    apart = decode_items(state(CPU), CHATS[:1], OTHERS[:1])
    assert calls(apart) == {0: 0, 1: 1}
    assert [item.reason for item in apart] == ["interactive", "background"]
    together = decode_items(state(GPU), CHATS, OTHERS)
    assert set(calls(together).values()) == {0} and {item.reason for item in together} == {"shared call"}


def test_calls_are_numbered_from_zero_whoever_is_there():
    assert calls(decode_items(state(GPU), [], OTHERS)) == {1: 0, 3: 0}
    assert calls(decode_items(state(GPU), CHATS, [])) == {0: 0, 2: 0}
    assert decode_items(state(GPU), [], []) == ()


def test_no_call_has_more_rows_than_a_batch():
    items = decode_items(state(GPU, n_batch=3), CHATS, OTHERS)
    sizes = [sum(item.call == call for item in items) for call in sorted({item.call for item in items})]
    assert sum(sizes) == 4 and max(sizes) <= 3 and len(items) == len({item.sid for item in items})
    assert all(item.n_tokens == 1 and item.want_logits and item.mode is None for item in items)
