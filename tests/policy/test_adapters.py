"""Sessions with different LoRA adapters, on an engine that computes one set of them in a call."""

from __future__ import annotations

import pytest

from perf.simulator import MS, Job, Sim, percentile
from tests.policy.build import GPU, MIX_ROWS, MIXING, planned, prefill_item, reading, state_of, talking
from uma_core.engine.fake.cost import GPU_SHAPE
from uma_core.engine.fake.engine import FakeModel
from uma_core.policy.index import index_of, rows_time
from uma_core.policy.plan import Plan
from uma_core.policy.stages import decode_first
from uma_core.types import Priority

BACK = Priority.BACKGROUND
TONE, TOPIC = (("tone", 1.0),), (("topic", 0.5),)
APART = FakeModel(n_ctx=65536, n_seq_max=8, kv_bytes_per_cell=131072, weight_bytes=8_500_000_000, is_unified=True,
                  adapters=(("tone", 0.0), ("topic", 0.0)),
                  can_mix_adapters=False)  # fmt: skip


def apart(*views, **more):
    return state_of(*views, **{"cost": GPU, "can_mix_rows": True, "one_set_per_call": True, **more})


def calls_of(plan):
    return {i.sid: i.call for i in plan.items}


def test_sessions_with_the_same_set_share_a_call_and_others_do_not():
    views = [talking(0), talking(1, adapters=TONE), talking(2), talking(3, adapters=TOPIC), talking(4, adapters=TONE)]
    calls = calls_of(decode_first.run(apart(*views), Plan()))
    assert calls[0] == calls[2] and calls[1] == calls[4]
    assert len(set(calls.values())) == 3
    assert len(set(calls_of(decode_first.run(apart(*views, one_set_per_call=False), Plan())).values())) == 1


def test_a_chat_is_served_before_background_streams_of_other_sets_however_cheap_a_shared_call_is():
    views = [talking(0, BACK), talking(1, BACK, adapters=TONE), talking(2, adapters=TONE)]
    calls = calls_of(decode_first.run(apart(*views), Plan()))
    assert calls[2] == 0 and calls[0] > 0


def test_the_price_of_a_second_set_is_that_of_a_second_call():
    alike = apart(talking(0), talking(1))
    mixed = apart(talking(0), talking(1, adapters=TONE))
    assert rows_time(mixed, index_of(mixed).interactive) == 2 * rows_time(mixed, index_of(mixed).interactive[:1])
    assert rows_time(alike, index_of(alike).interactive) < 1.5 * rows_time(alike, index_of(alike).interactive[:1])


@pytest.mark.parametrize(("adapters", "rides"), [(TONE, True), (TOPIC, False), ((), False)])
def test_a_prompt_rides_in_a_call_of_its_own_set_only(adapters, rides):
    views = talking(0, adapters=TONE), reading(1, n_prompt=1200, adapters=adapters)
    state = apart(*views, cost=MIXING, mixed_rows=MIX_ROWS)
    plan = planned(("decode_first", "prefill_order", "prefill_budget", "latency_guard"), state)
    item = prefill_item(plan)
    assert (item is not None and item.call >= 0) == rides


def served(adapters, n_max=60):
    """Serve background streams, each with its own set, beside one chat. Return the chat and the streams."""
    sim = Sim(GPU_SHAPE, APART)
    chat = sim.submit(Job(32, 1200))
    streams = [
        sim.submit(Job(32, n_max, BACK, client=10 + i, at_ns=100 * MS, adapters=each))
        for i, each in enumerate(adapters)
    ]
    sim.run()
    return chat, streams


def test_streams_of_many_sets_take_no_more_of_a_chats_gaps_than_those_of_one():
    alike, _ = served([()] * 4)
    mixed, streams = served([TONE, TOPIC, (("tone", 0.5),), (("topic", 1.0),)])
    alone = percentile(served([])[0].gaps, 0.5)
    assert percentile(mixed.gaps, 0.95) <= max(1.25 * alone, 1.05 * percentile(alike.gaps, 0.95))
    assert all(len(stream.times) == 60 for stream in streams)


def test_no_set_starves_another():
    _, streams = served([TONE, TOPIC, (("tone", 0.5),), (("topic", 1.0),)])
    ends = [stream.times[-1] for stream in streams]
    longest = [max(stream.gaps) for stream in streams]
    assert max(ends) - min(ends) < 0.2 * max(ends)
    assert max(longest) < 5 * min(longest)
