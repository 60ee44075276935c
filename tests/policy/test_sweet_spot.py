"""Hill climbing over served background streams."""

from __future__ import annotations

import pytest

from tests.policy.build import CPU, GPU, MS, reading, report, sids, state_of, talking
from uma_core.policy.knobs import Knobs
from uma_core.policy.pipeline import compose
from uma_core.policy.stages.sweet_spot import WINDOW
from uma_core.types import Lane, Phase

BACK = Lane.BACKGROUND
POLICY = compose(("decode_first", "sweet_spot"))


def climb(n, row_ns, ticks, cost=GPU, **more):
    """Serve n background streams on a device where r rows take row_ns(r); the served counts, tick by tick."""
    carry, reports, served = {}, (), []
    for tick in range(ticks):
        plan = POLICY(state_of(*[talking(i, BACK) for i in range(n)], cost=cost, tick=tick, carry=carry, reports=reports, **more))
        rows = len(sids(plan, Phase.DECODE))
        served.append(rows)
        carry, reports = dict(plan.carry), (report(Phase.DECODE, rows, row_ns(rows), row_ns(rows)),)
    return served, carry["sweet_spot"]


def test_where_all_together_are_fastest_all_are_served_and_hardly_anything_else_is_tried():
    served, _ = climb(4, lambda r: {1: 16, 2: 39, 3: 47, 4: 52}[r] * MS, 600, cost=CPU)
    assert served.count(4) >= 0.95 * len(served)


def test_it_leaves_a_cliff_that_the_model_did_not_foresee():
    """Six rows fall off a cliff; five are best."""
    served, spot = climb(6, lambda r: (30 if r >= 6 else 4 + r // 4) * MS, 1500)
    assert spot.kept[0] == 5
    assert served[-WINDOW:].count(6) < WINDOW


def test_moe_begins_with_few_and_climbs_only_if_that_pays():
    moe = {"n_expert": 8, "n_expert_used": 2}
    served, _ = climb(4, lambda r: 10 * r * MS, 40, **moe)
    assert served[1] == Knobs().moe_max_decoders
    grown, spot = climb(4, lambda r: (10 + r) * MS, 1500, **moe)
    assert grown[-1] == 4 and spot.kept[0] == 0


@pytest.mark.parametrize("other", [talking(9), reading(9)])
def test_it_learns_nothing_while_somebody_interactive_is_there(other):
    views = [talking(i, BACK) for i in range(4)]
    first = POLICY(state_of(*views))
    reports = (report(Phase.DECODE, 4, MS, MS),)
    quiet = POLICY(state_of(*views, carry=first.carry, reports=reports)).carry["sweet_spot"]
    busy = POLICY(state_of(*views, other, carry=first.carry, reports=reports)).carry["sweet_spot"]
    assert quiet.n_ticks == 1 and busy.n_ticks == 0


def test_noise_does_not_make_it_wander():
    noise = [1.0, 1.015, 0.985, 1.005, 0.99]
    count = iter(range(10**6))
    served, _ = climb(4, lambda r: int((5 + r / 4) * MS * noise[next(count) % 5]), 1500)
    assert served.count(4) > 0.8 * len(served)


def test_a_change_of_streams_begins_again():
    _, spot = climb(6, lambda r: (30 if r >= 6 else 5) * MS, 1500)
    plan = POLICY(state_of(*[talking(i, BACK) for i in range(3)], carry={"sweet_spot": spot}))
    again = plan.carry["sweet_spot"]
    assert again.n_workers == 3 and again.kept == (0, 1)
