"""Composition by name, switches, and the plan contract of the composed policy."""

from __future__ import annotations

import pytest

from perf.simulator import Job, Sim
from tests.policy.build import reading, state_of, talking, waiting
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.engine.fake.engine import FakeModel
from uma_core.policy.config import DEFAULT_STAGES, SchedulerConfig
from uma_core.policy.pipeline import NEEDED_STAGES, REGISTRY, check_serving, compose
from uma_core.policy.plan import check_plan
from uma_core.types import Priority

FULL_HOUSE = (
    talking(0), talking(1, Priority.BACKGROUND), reading(2), reading(3, Priority.BACKGROUND), waiting(4), waiting(5,
    Priority.BACKGROUND),
)  # fmt: skip


def test_default_stages_are_all_known():
    assert set(DEFAULT_STAGES) <= set(REGISTRY)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("admission", "turbo"), "turbo"),
        (("admission", "admission"), "twice"),
        (("latency_guard", "decode_first"), "before"),
    ],
)
def test_bad_names_are_refused(names, text):
    with pytest.raises(ValueError, match=text):
        compose(names)


def test_a_retired_stage_may_still_be_listed_and_does_nothing():
    assert compose((*DEFAULT_STAGES, "sweet_spot")).names == DEFAULT_STAGES


def test_no_stages_plan_nothing():
    plan = compose(())(state_of(*FULL_HOUSE))
    assert plan.items == () and plan.admit == ()


@pytest.mark.parametrize("left_out", DEFAULT_STAGES)
def test_every_stage_can_be_left_out(left_out):
    names = tuple(n for n in DEFAULT_STAGES if n != left_out)
    state = state_of(*FULL_HOUSE, config=SchedulerConfig(stages=names), free_seqs=(4, 5))
    assert check_plan(state, compose(names)(state)) == []


def test_planning_leaves_the_state_alone_and_repeats_exactly():
    state = state_of(*FULL_HOUSE, free_seqs=(4, 5))
    before = repr(state)
    policy = compose(DEFAULT_STAGES)
    assert policy(state) == policy(state)
    assert repr(state) == before


def serves(names, model):
    """Whether a chat and a background request get all their tokens, alone and beside others."""
    for priorities in ((Priority.INTERACTIVE,), (Priority.BACKGROUND,), tuple(Priority)):
        sim = Sim(CPU_SHAPE, model, SchedulerConfig(stages=names))
        for i, priority in enumerate(priorities):
            sim.submit(Job(700, 20, priority, i))
            sim.submit(Job(700, 20, priority, i, at_ns=10_000_000))
        try:
            sim.run(500)
        except AssertionError:  # the request is stuck
            return False
    return True


def is_refused(names):
    try:
        check_serving(names)
    except ValueError:
        return True
    return False


def test_stages_without_which_somebody_waits_for_ever_are_refused_and_no_others():
    optional = set(DEFAULT_STAGES) - set(NEEDED_STAGES)
    assert not is_refused(NEEDED_STAGES) and serves(NEEDED_STAGES, FakeModel())
    for name in DEFAULT_STAGES:
        names = tuple(n for n in DEFAULT_STAGES if n != name)
        assert is_refused(names) != (name in optional)
        assert serves(names, FakeModel()) == (name in optional)


def test_no_stages_at_all_are_refused():
    assert is_refused(())
