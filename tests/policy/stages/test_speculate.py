"""Draft tokens get rows if these win more than they cost, and never take what a stream or a prompt was promised."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.policy.build import CPU, MIXING, MS, guarded, reading, state_of, talking
from uma_core.policy.config import DEFAULT_STAGES, SchedulerConfig
from uma_core.policy.cost.calibrate import build
from uma_core.policy.cost.curve import Curve
from uma_core.policy.cost.model import CostModel
from uma_core.policy.pipeline import compose
from uma_core.policy.plan import Plan, PrefillMode, TbtDecision, check_plan
from uma_core.policy.stages import speculate
from uma_core.policy.state import SchedulerState
from uma_core.types import Phase, Priority

BACK = Priority.BACKGROUND
POLICY = compose(DEFAULT_STAGES)


def priced(**ms: float) -> CostModel:
    """`n4=16.6`: a call of four rows takes 16.6 ms."""
    rows = Curve(tuple(int(name[1:]) for name in ms), tuple(each * MS for each in ms.values()), (100.0,) * len(ms))
    return build(rows, CPU.prefill, CPU.piece, CPU.transfer, CPU.n_layer, True)


# four rows cost hardly more than one, and each further row costs 0.18 of a step
FLAT = priced(n1=16.0, n2=16.2, n3=16.4, n4=16.6, n8=28.0)
# a fifth row costs seven times as much as the next three together
TILED = priced(n1=16.0, n4=17.0, n5=24.0, n8=25.0, n16=40.0)
LIKELY = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65)
WIDE = SchedulerConfig(guard_cap=1.6)  # room for a few pieces


def state(*views, **more) -> SchedulerState:
    return state_of(*views, **{"cost": FLAT, "n_verify_rows": 16, "can_mix_rows": True, "is_unified": True, **more})


def planned(at: SchedulerState) -> Plan:
    plan = POLICY(at)
    assert check_plan(at, plan) == []
    return plan


def rows(plan: Plan) -> dict[int, int]:
    """Return the number of draft tokens by session."""
    return {i.sid: i.n_tokens - 1 for i in plan.items if i.phase is Phase.DECODE and i.n_tokens > 1}


def gap_ns(at: SchedulerState, plan: Plan) -> int:
    """Return the predicted length of the streams' next gap."""
    items = [i for i in plan.items if i.phase is Phase.DECODE]
    by_sid = {v.sid: v for v in at.sessions}
    n_kv = sum(by_sid[i.sid].n_past * i.n_tokens for i in items)
    own = at.cost.decode_ns(sum(i.n_tokens for i in items), n_kv)
    drafting = sum(n for _, n in plan.drafting) * at.device.draft_token_ns
    return own + plan.run_ns + plan.transfer_ns + max(drafting, plan.drafting_ns)


def test_rows_in_calls_of_their_own_leave_drafts_what_they_do_not_take() -> None:
    """Before, one call of both was counted, which takes 35 ms instead of 32."""
    cost = priced(n1=16.0, n2=35.0, n8=36.0)
    for limit_ms, n_drafts in ((56, 7), (52, 0)):
        config = SchedulerConfig(slo_tbt_ns=limit_ms * MS)
        plan = planned(state(talking(0, survival=LIKELY), talking(1, BACK), cost=cost, config=config))
        assert len({i.call for i in plan.items}) == 2, "the case has rows apart"
        assert sum(rows(plan).values()) == n_drafts


def test_likely_drafts_get_rows_while_these_win_more_than_they_cost() -> None:
    assert rows(planned(state(talking(0, survival=LIKELY)))) == {0: 6}
    assert rows(planned(state(talking(0, survival=LIKELY), talking(1)))) == {0: 2}, "the other stream gets one token"


def test_background_streams_have_no_limit() -> None:
    assert rows(planned(state(talking(0, BACK, survival=LIKELY))))[0] > 3


@pytest.mark.parametrize("survival", [(), (0.004,)])
def test_what_hardly_holds_gets_no_row(survival: tuple[float, ...]) -> None:
    assert not rows(planned(state(talking(0, survival=survival))))


def test_the_likeliest_of_all_streams_go_first() -> None:
    plan = planned(state(talking(0, survival=(0.9, 0.8)), talking(1, survival=(0.5, 0.2))))
    assert rows(plan) == {0: 2}


def test_several_rows_are_worth_it_where_one_is_not() -> None:
    calm = {"cost": TILED, "memory": guarded(error=0.0, tick=999)}
    four = planned(state(*(talking(i, survival=(0.95,)) for i in range(4)), **calm))
    assert rows(four) == dict.fromkeys(range(4), 1)
    assert not rows(planned(state(talking(0, survival=(0.95,)), *(talking(i) for i in range(1, 4)), **calm)))
    waiting = planned(state(*(talking(i) for i in range(4)), **calm))
    assert waiting.n_repeats and waiting.draft_floor < 0.95, "four such drafts end the repeats"


def test_streams_whose_drafts_are_less_likely_get_a_row_rather_than_nobody() -> None:
    """All of the likeliest rows would be the first stream's, and the limit of the other streams forbids a call that
    long.
    """
    sure = tuple(0.99**i for i in range(1, 13))
    unsure = [talking(i, survival=(0.6,), ahead=0.0) for i in range(1, 4)]
    plan = planned(state(talking(0, survival=sure), *unsure, cost=TILED, memory=guarded(error=0.0, tick=999)))
    assert rows(plan).keys() == set(range(4)), "each pays with its own token"


@pytest.mark.parametrize("kind", ["long", "urgent", "forced"])
def test_a_gap_that_is_long_already_gets_no_drafts(kind: str) -> None:
    at = state(talking(0, survival=LIKELY))
    plan = planned(state(talking(0)))
    guard = TbtDecision(False, False, kind, 16 * MS, 19 * MS, 32 * MS, 3 * MS, 16 * MS, 8 * MS, 0.0, 0.0)
    assert not rows(speculate.run(at, plan._replace(guard=guard, min_pieces=kind == "forced")))
    assert rows(speculate.run(at, plan._replace(guard=guard._replace(kind="normal"))))


def test_a_prompt_keeps_a_piece_of_the_gap() -> None:
    views = talking(0, survival=LIKELY), reading(1, BACK, n_chunk=64, n_prompt=64, n_past=0)
    plan = planned(state(*views, config=WIDE, memory=guarded(error=0.0, tick=999)))
    alone = planned(state(views[0]._replace(survival=()), views[1], config=WIDE, memory=guarded(error=0.0, tick=999)))
    assert alone.run_ns > alone.quantum_ns > 0, "the case has a prompt that reads several pieces in the gap"
    assert rows(plan) and plan.quantum_ns <= plan.run_ns < alone.run_ns


def test_a_prompt_in_the_streams_call_gives_up_half_of_its_rows() -> None:
    cost = FLAT._replace(mixed=MIXING.mixed)
    views = talking(0, survival=LIKELY), reading(1, BACK, n_prompt=1200)
    more = {"cost": cost, "mixed_rows": (2, 4, 8), "memory": guarded(error=0.0, tick=999)}
    plan = planned(state(*views, **more))
    alone = planned(state(views[0]._replace(survival=()), views[1], **more))
    (before,) = [i for i in alone.items if i.mode is PrefillMode.MIXED]
    (after,) = [i for i in plan.items if i.mode is PrefillMode.MIXED]
    assert sum(i.n_tokens for i in plan.items) == sum(i.n_tokens for i in alone.items)
    assert before.n_tokens > after.n_tokens >= before.n_tokens / 2 and rows(plan)


@pytest.mark.parametrize(
    ("n_chunk", "more"), [(64, {}), (0, {"cost": FLAT._replace(mixed=MIXING.mixed), "mixed_rows": (2, 4, 8)})]
)
def test_a_prompt_whose_first_token_is_awaited_loses_nothing(n_chunk: int, more: dict[str, Any]) -> None:
    more = {"config": WIDE, "memory": guarded(error=0.0, tick=999), **more}
    chat = reading(1, n_prompt=600, n_chunk=n_chunk, n_past=0, slo_ttft_ns=10**12)  # everyday gaps suffice for it
    with_drafts, without = (planned(state(talking(0, survival=s), chat, **more)) for s in (LIKELY, ()))
    prompts = [[i for i in plan.items if i.mode is not None] for plan in (with_drafts, without)]
    assert with_drafts.guard is not None and with_drafts.guard.kind == "normal"
    assert prompts[0] == prompts[1] and with_drafts.run_ns == without.run_ns


def test_the_draft_model_drafts_what_pays() -> None:
    chat = talking(0, draft_rates=(0.6, 0.4, 0.25, 0.15))
    assert not planned(state(chat)).drafting, "there is none"
    cheap, dear = planned(state(chat, draft_token_ns=MS // 2)), planned(state(chat, draft_token_ns=15 * MS))
    assert cheap.drafting and cheap.drafting[0][0] == 0 and cheap.n_repeats == 0
    assert not dear.drafting
    few, many = ([talking(i, draft_rates=(0.6, 0.4)) for i in range(n)] for n in (1, 3))
    assert planned(state(*few, draft_token_ns=2 * MS)).drafting
    assert not planned(state(*many, draft_token_ns=2 * MS)).drafting, "a token of the draft model delays all three"


def test_a_stream_that_is_not_in_the_step_does_not_make_it_dearer() -> None:
    config = SchedulerConfig(max_background_decoders=1, guard_cap=1.6)
    chat, worker = talking(0, draft_rates=(0.6, 0.4, 0.25, 0.15)), talking(1, BACK)
    for ms, drafting in ((3, ((0, 1),)), (5, ())):  # of the draft model for a token
        for n_past in (100, 90_000):
            left_out = talking(2, BACK, n_past=n_past)
            plan = planned(state(chat, worker, left_out, draft_token_ns=ms * MS, config=config))
            assert [i.sid for i in plan.decodes] == [0, 1] and plan.drafting == drafting


@pytest.mark.parametrize("survival", [(), (0.95, 0.9)])
def test_beside_background_streams_alone_the_draft_model_takes_no_longer_than_a_tick(survival):
    """This also holds in a tick that verifies drafts, because a chat may arrive."""
    worker = talking(0, BACK, survival=survival, draft_rates=(0.9, 0.8, 0.7))
    at = state(worker, draft_token_ns=300_000)
    plan = planned(at)
    assert plan.drafting and plan.drafting_ns <= at.config.tick_budget_ns


def test_a_step_may_take_as_many_limits_as_it_brings_tokens_and_no_pause() -> None:
    """Rows that cost a fifth of a step each exceed the limit of one token, but not the limits of all tokens that they
    bring.
    """
    dear = priced(n1=16.0, n2=19.5, n4=23.0, n8=26.0)
    sure = (0.98, 0.96, 0.94, 0.92, 0.9, 0.88, 0.86)
    calm = {"cost": dear, "memory": guarded(error=0.0, tick=999)}
    assert rows(planned(state(talking(0, survival=sure), **calm))) == {0: 7}
    assert not rows(planned(state(talking(0, survival=sure), talking(1), **calm))), "the other stream gets one token"
    assert rows(planned(state(talking(0, survival=sure), talking(1, ahead=0.8), **calm))), (
        "it is ahead by what its drafts brought"
    )
    short = SchedulerConfig(pause_cap=1.5)
    assert 0 < rows(planned(state(talking(0, survival=sure), config=short, **calm)))[0] < 6


def test_a_stream_without_drafts_is_held_up_for_what_it_is_ahead() -> None:
    """It runs beside a stream that drafts all the time, whose steps exceed the limit of one token: by one token in
    all.
    """
    sure = (0.98, 0.96, 0.94, 0.92, 0.9, 0.88, 0.86)
    ahead, lost = 1.0, 0.0
    for tick in range(60):
        at = state(talking(0, survival=sure, ahead=8.0), talking(1, ahead=ahead), memory=guarded(error=0.0, tick=tick))
        plan = planned(at)
        assert plan.guard is not None
        lost += max(0.0, gap_ns(at, plan) / plan.guard.everyday_ns - 1.0)
        ahead = max(0.0, ahead - plan.stretch)
    assert 0.5 < lost <= 1.01


def most_ns(at: SchedulerState, plan: Plan) -> int:
    """Return the limit of a gap that no other session shares: the limits of all tokens that its drafts should bring."""
    guard = plan.guard
    by_sid = {v.sid: v for v in at.sessions}
    if guard is None or plan.run_ns or plan.transfer_ns or any(i.phase is not Phase.DECODE for i in plan.items):
        return 0
    if any(by_sid[i.sid].priority is BACK for i in plan.items):
        return 0
    tokens = min(1.0 + sum(by_sid[i.sid].survival[: i.n_tokens - 1]) for i in plan.items)
    return min(guard.long_ns, int(tokens * guard.everyday_ns))


def test_gaps_stay_within_the_limits() -> None:
    rng = random.Random(5)
    for _ in range(300):
        views = []
        for sid in range(rng.randint(1, 5)):
            survival = tuple(0.9 ** (i + 1) for i in range(rng.randrange(8)))
            rates = tuple(0.6 ** (i + 1) for i in range(rng.randrange(5)))
            priority = BACK if rng.random() < 0.2 else Priority.INTERACTIVE
            views.append(talking(sid, priority, survival=survival, draft_rates=rates))
        if rng.random() < 0.6:
            views.append(reading(9, rng.choice(list(Priority)), n_prompt=rng.randint(50, 900), n_past=0))
        at = state(
            *views,
            cost=rng.choice((FLAT, CPU)),
            draft_token_ns=rng.choice((0, MS // 2, 3 * MS)),
            memory=guarded(error=rng.random() * 0.2, credit=rng.random() * 1.2, tick=999),
        )
        plan = planned(at)
        plain = POLICY(at._replace(sessions=tuple(v._replace(survival=(), draft_rates=()) for v in at.sessions)))
        if plan.guard is None:
            continue
        limit = plan.guard.everyday_ns if plan.guard.kind in ("nothing", "normal") else 0
        assert gap_ns(at, plan) <= max(limit, most_ns(at, plan), gap_ns(at, plain)) + MS // 100


def test_a_plan_without_drafts_is_repeated_until_one_would_get_a_row() -> None:
    tight = SchedulerConfig(guard_cap=1.0, pause_cap=1.0)
    plan = planned(state(talking(0), config=tight))
    assert plan.n_repeats and plan.draft_floor > 1.0, "no room: no draft ends the repeats"
    assert planned(state(talking(0))).draft_floor == speculate.LEAST_SURVIVAL


@pytest.mark.parametrize(("n_streams", "more"), [(16, {}), (20, {}), (2, {"can_mix_rows": False})])
def test_drafts_that_no_call_has_rows_for_do_not_end_the_repeats(n_streams: int, more: dict[str, Any]) -> None:
    sure = [talking(i, survival=(1.0,)) for i in range(n_streams)]
    plan = planned(state(*sure, **more))
    assert len({item.call for item in plan.items}) == 1 and not rows(plan), "the case has one call, and no drafts"
    assert plan.n_repeats and plan.draft_floor > 1.0


def test_a_short_call_beside_a_full_one_still_takes_drafts() -> None:
    split = FLAT._replace(splits=(*FLAT.splits[:18], (16, 2), *FLAT.splits[19:]))
    views = [talking(i, survival=(1.0,)) for i in range(18)]
    roomy = SchedulerConfig(slo_tbt_ns=10**12)
    assert rows(planned(state(*views, cost=split, config=roomy)))
    waiting = planned(state(*(v._replace(survival=()) for v in views), cost=split, config=roomy))
    assert waiting.n_repeats and waiting.draft_floor < 1.0
