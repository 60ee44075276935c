"""One token for every decoding session, in the cheapest calls."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.policy.build import GPU, NOW, S, reading, sids, state_of, talking
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.memory import PolicyMemory
from uma_core.policy.plan import Plan, check_plan
from uma_core.policy.stages import decode_first
from uma_core.types import Phase, Priority

BACK = Priority.BACKGROUND


def run(state):
    plan = decode_first.run(state, Plan(memory=state.memory))
    assert check_plan(state, plan) == []
    return plan


def test_everybody_ready_gets_one_token_and_nobody_else():
    state = state_of(talking(0), talking(1, BACK), talking(2, is_ready=False), reading(3))
    assert sorted(sids(run(state), Phase.DECODE)) == [0, 1]


def test_interactive_rows_come_in_the_first_call_unless_sharing_is_cheaper():
    views = (talking(0, BACK), talking(1))
    calls = {i.sid: i.call for i in run(state_of(*views)).items}
    assert calls[1] < calls[0]
    shared = {i.call for i in run(state_of(*views, cost=GPU)).items}
    assert shared == {0}


def test_four_rows_share_a_call_and_two_do_not_on_the_measured_cpu():
    assert len({i.call for i in run(state_of(*[talking(i) for i in range(4)])).items}) == 1
    assert len({i.call for i in run(state_of(talking(0), talking(1))).items}) == 2


def test_rows_of_distant_sequences_share_a_call_where_the_engine_mixes_them():
    views = (talking(0), talking(1, BACK, seq_id=3), talking(2, seq_id=7))
    assert len({i.call for i in run(state_of(*views, cost=GPU)).items}) == 3
    assert len({i.call for i in run(state_of(*views, cost=GPU, can_mix_rows=True)).items}) == 1


@pytest.mark.parametrize(
    ("config", "more", "n"),
    [
        (SchedulerConfig(max_background_decoders=2), {}, 2),
        (SchedulerConfig(moe_max_decoders=1), {"n_expert": 8}, 5),  # the MoE cap protects chats only
        (SchedulerConfig(), {}, 5),
    ],
)
def test_background_rows_are_capped(config, more, n):
    state = state_of(*[talking(i, BACK) for i in range(5)], config=config, **more)
    assert len(run(state).items) == n


def test_moe_serves_few_background_rows_beside_a_chat():
    state = state_of(talking(0), *[talking(i, BACK) for i in range(1, 5)], n_expert=8, n_expert_used=2)
    assert len(run(state).items) == 1 + SchedulerConfig().moe_max_decoders


def simulate(n, ticks, config):
    """Serve n background sessions for some ticks. Return how many tokens each got."""
    last = [NOW - S + i for i in range(n)]
    served: Counter = Counter()
    memory = PolicyMemory()
    for tick in range(ticks):
        views = [talking(i, BACK, t_last_ns=last[i], client=i) for i in range(n)]
        plan = run(state_of(*views, now_ns=NOW + tick, memory=memory, config=config))
        memory = plan.memory
        for sid in sids(plan, Phase.DECODE):
            last[sid] = NOW + tick
            served[sid] += 1
    return served


def test_rotation_serves_everybody_equally():
    served = simulate(5, 50, config=SchedulerConfig(max_background_decoders=2))
    assert set(served.values()) == {20}


def test_clients_with_less_virtual_time_rotate_in_first():
    views = [talking(i, BACK, client=i, t_last_ns=NOW - 5 + i) for i in range(3)]
    state = state_of(*views, config=SchedulerConfig(max_background_decoders=1))
    plan = decode_first.run(state, Plan(charged={0: 4 * S, 1: 0, 2: 2 * S}))
    assert sids(plan, Phase.DECODE) == [1]


def test_a_parked_session_is_not_served():
    plan = decode_first.run(state_of(talking(0, BACK), talking(1, BACK)), Plan(park=(0,)))
    assert sids(plan, Phase.DECODE) == [1]


def test_calls_respect_n_batch():
    plan = run(state_of(*[talking(i) for i in range(8)], n_batch=3))
    assert max(Counter(i.call for i in plan.items).values()) <= 3
