"""Which session gets a sequence, which waits, and which is parked."""

from __future__ import annotations

import re

import pytest

from tests.policy.build import NOW, S, reading, state_of, talking, waiting
from uma_core.policy.plan import Plan
from uma_core.policy.stages import admission
from uma_core.types import Phase, Priority

BACK = Priority.BACKGROUND


def admitted(state, charged=None):
    return [a.sid for a in admission.run(state, Plan(charged=charged or {})).admit]


@pytest.mark.parametrize(
    ("views", "n_free", "expected"),
    [
        ((waiting(1, BACK), waiting(2)), 1, [2]),  # priority before arrival
        ((waiting(1, n_prompt=900), waiting(2, n_prompt=50)), 1, [2]),  # least work
        ((waiting(1, n_prompt=900, cached_hint=880), waiting(2, n_prompt=50)), 1, [1]),  # only uncached work counts
        (
            (waiting(1, n_prompt=900, cached_hint=880, restore_ns=9 * S), waiting(2, n_prompt=50)),
            1,
            [2],
        ),  # a restore is not free either
        ((waiting(1), waiting(2)), 1, [1]),  # if equal, order of arrival
        ((waiting(1), waiting(2), waiting(3)), 2, [1, 2]),
        ((waiting(1), waiting(2, is_ready=False)), 2, [1]),
        ((), 2, []),
    ],
)
def test_order(views, n_free, expected):
    assert admitted(state_of(*views, free_seqs=tuple(range(n_free)))) == expected


def test_a_background_session_without_progress_ages_past_fresh_interactive_ones():
    old = waiting(1, BACK, t_queued_ns=NOW - 11 * S)
    assert admitted(state_of(old, waiting(2), free_seqs=(0,))) == [1]
    assert admitted(
        state_of(old._replace(t_queued_ns=NOW - 9 * S, t_progress_ns=NOW - 9 * S), waiting(2), free_seqs=(0,))
    ) == [2]


@pytest.mark.parametrize("others", [talking(7, BACK), waiting(7, BACK, phase=Phase.PARKED, t_progress_ns=NOW - S)])
def test_it_does_not_pass_them_while_other_background_sessions_get_their_turns(others):
    """It would be parked for the chat, and the next one that has aged would take its place."""
    old = waiting(1, BACK, t_queued_ns=NOW - 11 * S)
    assert admitted(state_of(others, old, waiting(2), free_seqs=(0,))) == [2]


def test_work_ages_so_that_long_prompts_are_not_passed_for_ever():
    long = waiting(1, n_prompt=1000, t_queued_ns=NOW - 40 * S, t_progress_ns=NOW - S)
    assert admitted(state_of(long, waiting(2, n_prompt=50), free_seqs=(0,))) == [1]


def test_clients_with_more_virtual_time_wait():
    views = (waiting(1, client=1, n_prompt=50), waiting(2, client=2, n_prompt=400))
    charged = {1: 3 * S, 2: 0}
    assert admitted(state_of(*views, free_seqs=(0,)), charged) == [2]


def test_of_equal_clients_the_one_that_holds_less_comes_first_until_the_other_has_aged():
    """A process that asks one thing at a time does not wait for the whole queue of another process, even if the
    requests in that queue are shorter.
    """
    held = [talking(1, client=1), talking(2, client=1)]
    queue = [waiting(sid, client=1, n_prompt=20, t_queued_ns=NOW - S) for sid in (3, 4)]
    charged = {1: 0, 2: 0}
    late = waiting(9, client=2, n_prompt=60)
    assert admitted(state_of(*held, *queue, late, free_seqs=(0,)), charged) == [9]
    old = queue[0]._replace(t_queued_ns=NOW - 11 * S, t_progress_ns=NOW - 11 * S)
    assert admitted(state_of(*held, old, late, free_seqs=(0,)), charged) == [3]


def test_holding_the_first_sequence_is_holding_one():
    views = (talking(0, client=1), waiting(3, client=1, n_prompt=20), waiting(9, client=2, n_prompt=60))
    assert admitted(state_of(*views, free_seqs=(1,)), {1: 0, 2: 0}) == [9]


def test_lowest_sequences_first_so_that_streams_stay_neighbours():
    plan = admission.run(state_of(waiting(1), waiting(2), free_seqs=(1, 3, 5)), Plan())
    assert [a.seq_id for a in plan.admit] == [1, 3]


@pytest.mark.parametrize(
    ("is_unified", "n_cells_free", "expected"), [(True, 199, []), (True, 200, [1]), (False, 0, [1])]
)
def test_cells_for_prompt_and_answer_are_there_or_nobody_comes_in(is_unified, n_cells_free, expected):
    state = state_of(
        waiting(1, n_prompt=100, n_max=100), free_seqs=(0,), is_unified=is_unified, n_cells_free=n_cells_free
    )
    assert admitted(state) == expected


def test_a_sequence_can_never_need_more_than_its_context():
    state = state_of(waiting(1, n_prompt=100, n_max=100_000), free_seqs=(0,), is_unified=True, n_cells_free=4096)
    assert admitted(state) == [1]


def test_smaller_requests_pass_one_that_does_not_fit_until_it_has_aged():
    small = waiting(2, n_prompt=50, n_max=50)
    for age, expected in ((S, [2]), (11 * S, [])):
        big = waiting(1, n_prompt=20, n_max=3000, t_queued_ns=NOW - age)
        assert admitted(state_of(big, small, free_seqs=(0, 1), is_unified=True, n_cells_free=500)) == expected


def test_chats_pass_background_requests_that_do_not_fit_however_old():
    big = waiting(1, BACK, n_prompt=20, n_max=3000, t_queued_ns=NOW - 11 * S)
    small, room = {"n_prompt": 50, "n_max": 50}, {"free_seqs": (0, 1), "is_unified": True, "n_cells_free": 500}
    had_more = {waiting(0).client: S, 7: 0}
    views = big._replace(client=7), waiting(2, **small), waiting(3, BACK, **small)
    assert admitted(state_of(*views, **room), had_more) == [2]
    large = waiting(2, n_prompt=50, n_max=900)
    plan = admission.run(state_of(views[0], large, talking(4, BACK), **room), Plan(charged=had_more))
    assert plan.park == (4,) and "parks 4 for 2" in plan.notes[0]


def test_chats_are_looked_at_behind_any_number_of_old_background_requests():
    old = [waiting(i, BACK, client=7, t_queued_ns=NOW - 11 * S) for i in range(30)]
    state = state_of(reading(31, BACK), reading(32, BACK), *old, waiting(33), free_seqs=(0,))
    assert admitted(state, {waiting(0).client: S, 7: 0}) == [33]


def test_background_requests_do_not_take_the_room_that_is_made_for_a_chat():
    room = {"free_seqs": (0, 1), "is_unified": True, "n_cells_free": 500}
    chat, small = waiting(1, n_prompt=20, n_max=3000), {"n_prompt": 50, "n_max": 50}
    parked = waiting(2, BACK, phase=Phase.PARKED, n_past=10, **small)
    assert admitted(state_of(chat, parked, waiting(3, BACK, **small), waiting(4, **small), **room)) == [4]
    assert admitted(state_of(parked, waiting(3, BACK, n_prompt=20, n_max=3000), **room)) == [2]


def test_no_more_than_two_background_prompts_hold_sequences():
    state = state_of(*[waiting(i, BACK) for i in range(5)], free_seqs=(0, 1, 2, 3))
    assert len(admitted(state)) == 2
    state = state_of(reading(8, BACK), *[waiting(i, BACK) for i in range(5)], free_seqs=(0, 1, 2, 3))
    assert len(admitted(state)) == 1


LONG_HELD = {"is_ready": False, "t_held_ns": NOW - S}


@pytest.mark.parametrize(
    ("views", "device", "note"),
    [
        ((talking(0), waiting(1), waiting(2, BACK)), {"free_seqs": ()}, "2 wait: no sequence is free"),
        ((talking(0, BACK), waiting(1)), {"free_seqs": ()}, "1 waits: no sequence is free, parks 0 for 1"),
        ((waiting(1), waiting(2), waiting(3)), {"free_seqs": (0, 1)}, "1 waits: no sequence is free"),
        (
            (waiting(1, n_prompt=900),),
            {"free_seqs": (0,), "is_unified": True, "n_cells_free": 500},
            "1 waits: 1 needs NEED cells, 500 are free",
        ),
        (
            tuple(waiting(i, BACK) for i in range(5)),
            {"free_seqs": (0, 1, 2, 3)},
            "3 wait: at most 2 background prompts hold sequences",
        ),
        ((waiting(1),), {"free_seqs": (0,)}, None),
    ],
)
def test_a_note_says_why_somebody_waits(views, device, note):
    notes = admission.run(state_of(*views, **device), Plan()).notes
    assert [re.sub(r"needs \d+", "needs NEED", said) for said in notes] == ([f"admission: {note}"] if note else [])


class TestHeldReaders:
    @pytest.mark.parametrize("priority", list(Priority))
    @pytest.mark.parametrize("waiter", list(Priority))
    def test_a_session_whose_reader_takes_nothing_makes_room_for_whoever_waits(self, priority, waiter):
        state = state_of(talking(1), talking(2, priority, **LONG_HELD), waiting(9, waiter))
        assert admission.run(state, Plan()).park == (2,)

    def test_it_goes_before_one_that_computes(self):
        state = state_of(talking(1, BACK, n_past=10), talking(2, n_past=900, **LONG_HELD), waiting(9))
        assert admission.run(state, Plan()).park == (2,)

    def test_not_in_the_first_moment(self):
        fresh = {"is_ready": False, "t_held_ns": NOW - S // 20}
        assert admission.run(state_of(talking(2, **fresh), waiting(9)), Plan()).park == ()

    def test_not_while_nobody_waits_or_there_is_room(self):
        assert admission.run(state_of(talking(2, **LONG_HELD), talking(3)), Plan()).park == ()
        assert admission.run(state_of(talking(2, **LONG_HELD), waiting(9), free_seqs=(0,)), Plan()).park == ()

    def test_not_while_its_kv_is_under_way(self):
        assert admission.run(state_of(talking(2, is_transferring=True, **LONG_HELD), waiting(9)), Plan()).park == ()

    def test_the_one_that_frees_enough_cells(self):
        few, many = talking(1, n_past=100, n_cells=150, **LONG_HELD), talking(2, n_past=200, n_cells=900, **LONG_HELD)
        state = state_of(
            few, many, waiting(9, n_prompt=400, n_max=100), is_unified=True, n_cells_free=0, free_seqs=(5,)
        )
        assert admission.run(state, Plan()).park == (2,)

    def test_their_chunks_leave_the_prefill_slots_when_others_have_prompts(self):
        stuck = reading(1, BACK, n_chunk=64, n_prompt=640, **LONG_HELD)
        assert admission.run(state_of(stuck, reading(2, BACK)), Plan()).park == (1,)
        assert admission.run(state_of(stuck, waiting(9), free_seqs=(0,)), Plan()).park == (1,)
        assert admission.run(state_of(stuck, talking(2)), Plan()).park == ()

    def test_their_prompts_do_not_keep_others_from_being_read(self):
        state = state_of(*[reading(i, BACK, **LONG_HELD) for i in (1, 2)], waiting(9, BACK), free_seqs=(0,))
        assert admitted(state) == [9]


class TestParking:
    def test_the_background_session_with_least_to_move_makes_room(self):
        state = state_of(talking(1, BACK, n_past=300), talking(2, BACK, n_past=120), talking(3), waiting(9))
        assert admission.run(state, Plan()).park == (2,)

    def test_one_at_a_time(self):
        moving = talking(1, BACK, is_transferring=True, is_ready=False)
        assert admission.run(state_of(moving, talking(2, BACK), waiting(9)), Plan()).park == ()

    @pytest.mark.parametrize(("t_last_ns", "expected"), [(NOW - 40 * S, ()), (NOW - S, (1,))])
    def test_who_had_to_read_all_again_stays_until_it_has_a_token_more(self, t_last_ns, expected):
        """If it were parked before, sessions could change places for ever, and none would end."""
        back = talking(1, BACK, t_back_ns=NOW - 30 * S, t_last_ns=t_last_ns)
        assert admission.run(state_of(back, waiting(9), can_rollback=False), Plan()).park == expected

    @pytest.mark.parametrize(("t_back_ns", "expected"), [(NOW - S // 3, ()), (NOW - S, (1,))])
    def test_who_just_came_back_stays_for_a_moment(self, t_back_ns, expected):
        back = talking(1, BACK, t_back_ns=t_back_ns)
        assert admission.run(state_of(back, waiting(9)), Plan()).park == expected
        other = talking(2, BACK, n_past=10_000)
        assert admission.run(state_of(back, other, waiting(9)), Plan()).park == (expected or (2,))

    def test_never_for_background_nor_from_interactive(self):
        assert admission.run(state_of(talking(1, BACK), waiting(9, BACK)), Plan()).park == ()
        assert admission.run(state_of(talking(1), waiting(9)), Plan()).park == ()

    def test_not_a_chunk_in_progress(self):
        state = state_of(reading(1, BACK, n_chunk=64, n_prompt=640), waiting(9))
        assert admission.run(state, Plan()).park == ()

    def test_the_one_that_frees_enough_cells(self):
        few, many = talking(1, BACK, n_past=100, n_cells=150), talking(2, BACK, n_past=200, n_cells=900)
        state = state_of(
            few, many, waiting(9, n_prompt=400, n_max=100), is_unified=True, n_cells_free=0, free_seqs=(5,)
        )
        assert admission.run(state, Plan()).park == (2,)

    def test_what_others_hold_too_is_not_freed(self):
        few, many = talking(1, BACK, n_past=100, n_cells=300), talking(2, BACK, n_past=200, n_cells=300)
        wanted = {"is_unified": True, "n_cells_free": 0, "free_seqs": (5,)}
        blocked = waiting(9, n_prompt=200, n_max=50)
        assert admission.run(state_of(few, many, blocked, **wanted), Plan()).park == (1,)
        shared = (0, 64, 0, 64, 0, 0, 0, 0)
        assert admission.run(state_of(few, many, blocked, seq_shared=shared, **wanted), Plan()).park == (2,)

    def test_a_parked_session_comes_back_in_order(self):
        parked = waiting(1, BACK, phase=Phase.PARKED, n_past=100)
        assert admitted(state_of(parked, free_seqs=(0,))) == [1]
