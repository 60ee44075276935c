"""Who goes first, and who may not be passed over any longer."""

from __future__ import annotations

import pytest

from tests.policy.build import CPU, MS, NOW, S, reading, state_of, talking, waiting
from uma_core.policy.order import (
    AGE_RATE,
    FAIR_QUANTUM_NS,
    fair_share,
    in_turn,
    is_starved,
    n_rounds_without,
    starved_first,
    urgency_key,
    why_first,
)
from uma_core.types import Phase, Priority

BACK = Priority.BACKGROUND
OLD = NOW - 11 * S  # longer ago than aging_ns


def order(*views, charged=None, **more):
    key = urgency_key(state_of(*views, **more), charged or {})
    return [v.sid for v in sorted(views, key=key)]


CHARGED = {1: 0, 2: 3 * FAIR_QUANTUM_NS + 1}


class TestUrgency:
    def test_chats_go_before_background_work_however_long_their_prompt_is(self):
        assert order(waiting(0, BACK, n_prompt=1), waiting(1, n_prompt=4000)) == [1, 0]

    def test_the_shortest_prompt_goes_first_and_of_equal_ones_the_first(self):
        assert order(waiting(0, n_prompt=500), waiting(1, n_prompt=100), waiting(2, n_prompt=100)) == [1, 2, 0]

    def test_only_what_is_left_counts(self):
        assert order(reading(0, n_prompt=900, n_past=850), reading(1, n_prompt=100)) == [0, 1]
        assert order(waiting(0, n_prompt=900, cached_hint=850), waiting(1, n_prompt=100)) == [0, 1]
        chunk = {"n_chunk": 512, "chunk_fraction": 0.9}
        assert order(reading(0, n_prompt=512, **chunk), reading(1, n_prompt=100)) == [0, 1]

    def test_a_restore_is_work_too(self):
        assert order(waiting(0, n_prompt=100, restore_ns=S), waiting(1, n_prompt=101)) == [1, 0]

    def test_waiting_takes_from_the_work(self):
        more_ns = 400 * CPU.token_ns
        early = {"n_prompt": 500, "t_queued_ns": NOW - int(more_ns / AGE_RATE)}
        assert order(waiting(0, **early), waiting(1, n_prompt=110)) == [0, 1]
        assert order(waiting(0, **early), waiting(1, n_prompt=90)) == [1, 0]

    def test_background_work_without_progress_ranks_as_a_chat_at_last(self):
        aged = waiting(0, BACK, n_prompt=10, t_queued_ns=OLD)
        assert order(aged, waiting(1)) == [0, 1]
        busy = talking(2, BACK)  # it still gets work done: the aged one has to wait for its sequence
        assert order(aged, waiting(1), busy).index(0) > order(aged, waiting(1), busy).index(1)

    def test_who_holds_fewer_sequences_goes_first_but_only_in_the_queue(self):
        charged = {1: 0, 2: 0}
        views = talking(0, client=1), waiting(3, client=1, n_prompt=10), waiting(4, client=2, n_prompt=900)
        assert [sid for sid in order(*views, charged=charged) if sid > 0] == [4, 3]
        here = [reading(view.sid, client=view.client, n_prompt=view.n_prompt) for view in views[1:]]
        assert [sid for sid in order(views[0], *here, charged=charged) if sid > 0] == [3, 4]

    @pytest.mark.parametrize(
        ("first", "second", "charged", "text"),
        [
            (waiting(1), waiting(0, BACK), {}, " by priority"),
            (waiting(1, client=1), waiting(0, client=2), {1: 0, 2: 2 * FAIR_QUANTUM_NS}, "charged less (0 < 2 times"),
            (waiting(1, n_prompt=10), waiting(0, n_prompt=500), {}, "less is left to read"),
            (waiting(0), waiting(1), {}, "it arrived first"),
        ],
    )
    def test_the_reason_names_what_decided(self, first, second, charged, text):
        key = urgency_key(state_of(first, second), charged)
        assert text in why_first(key(first), key(second))


class TestShares:
    def test_they_are_whole_quanta_above_the_least(self):
        share = fair_share(state_of(), CHARGED)
        assert [share(waiting(0, client=client)) for client in (1, 2, 9)] == [0, 3, 0]
        assert fair_share(state_of(), {})(waiting(0)) == 0

    def test_a_request_that_waited_long_is_not_passed_over_for_what_its_client_was_charged(self):
        views = [waiting(n, client=2, t_queued_ns=OLD) for n in range(2)]
        share = fair_share(state_of(*views), CHARGED)
        assert [share(view) for view in views] == [0, 0]

    def test_but_only_one_of_a_clients_requests_once_it_has_a_sequence(self):
        views = [reading(5, client=2, t_queued_ns=OLD), waiting(6, client=2, t_queued_ns=OLD)]
        share = fair_share(state_of(*views), CHARGED)
        assert [share(view) for view in views] == [0, 3]


class TestStarvation:
    def test_it_is_time_without_progress_in_rounds_of_the_chats(self):
        round_ns = CPU.rows_ns(1, talking(0).n_past)
        for n_rounds, expected in ((63, False), (64, True)):
            late = reading(1, BACK, t_progress_ns=NOW - n_rounds * round_ns)
            assert is_starved(state_of(talking(0), late), late) is expected
            assert not is_starved(state_of(talking(0), late), late, times=2)
            assert not is_starved(state_of(late), late), "nobody streams"

    def test_the_one_that_waits_longest_goes_first_and_the_others_keep_their_order(self):
        views = [reading(n, t_progress_ns=NOW - age * S) for n, age in ((1, 0), (2, 20), (3, 30), (4, 0))]
        state = state_of(talking(0), *views)
        assert [v.sid for v in starved_first(state, views)] == [3, 1, 2, 4]
        assert starved_first(state, views[:1]) == views[:1] and starved_first(state, []) == []

    def test_rounds_without_a_background_row_are_counted_in_time_and_in_ticks(self):
        late = [talking(1, BACK, t_last_ns=NOW - S), talking(2, BACK, t_last_ns=NOW - 5 * MS)]
        state = state_of(talking(0), *late)
        n = S // CPU.rows_ns(1, talking(0).n_past)
        assert n_rounds_without(state, late, forced_tick=0) == n
        assert n_rounds_without(state, late, forced_tick=state.tick - 3) == 3


def test_turns_go_round_and_begin_after_the_last_one_served():
    views = [talking(n, BACK) for n in (4, 1, 9)]
    assert [v.sid for v in in_turn(views, 1)] == [4, 9, 1]
    assert [v.sid for v in in_turn(views, -1)] == [1, 4, 9] == [v.sid for v in in_turn(views, 9)]


def test_who_came_back_from_parking_and_is_read_again_counts_its_wait_from_its_last_progress():
    back = reading(5, client=2, t_queued_ns=OLD, t_first_ns=OLD, t_progress_ns=NOW - S)
    assert fair_share(state_of(back), CHARGED)(back) == 3
    parked = back._replace(phase=Phase.PARKED, seq_id=-1, t_progress_ns=OLD)
    assert fair_share(state_of(parked), CHARGED)(parked) == 0
