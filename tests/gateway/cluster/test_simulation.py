"""The router over simulated daemons: what it must gain, and what it may cost."""

from __future__ import annotations

import statistics

import pytest

from perf.routing import Outcome, Setup, agent, quantile, uniform


@pytest.fixture(scope="module")
def agents() -> dict[str, Outcome]:
    return {policy: agent(policy, is_timed=False) for policy in ("prefix-aware", "round-robin", "least-loaded")}


def test_every_request_is_answered_once(agents: dict[str, Outcome]) -> None:
    assert [len(outcome.ttft_ms) for outcome in agents.values()] == [2400] * 3
    assert not any(outcome.n_refused for outcome in agents.values())


def test_agents_prompts_are_cached_half_again_as_often_as_with_round_robin(agents: dict[str, Outcome]) -> None:
    assert agents["prefix-aware"].n_cached >= 1.5 * agents["round-robin"].n_cached
    assert agents["prefix-aware"].n_prompt == agents["round-robin"].n_prompt


def test_agents_wait_less_too(agents: dict[str, Outcome]) -> None:
    for other in ("round-robin", "least-loaded"):
        assert quantile(agents["prefix-aware"].ttft_ms, 0.95) < quantile(agents[other].ttft_ms, 0.95)


@pytest.mark.parametrize("load", [0.5, 0.7, 0.85])
def test_where_nothing_is_shared_nobody_waits_longer_than_with_the_least_loaded(load: float) -> None:
    ours, theirs = (
        statistics.median(
            quantile(uniform(policy, None, 2000, load, seed, is_timed=False).ttft_ms, 0.95) for seed in range(3)
        )
        for policy in ("prefix-aware", "least-loaded")
    )
    assert ours <= theirs


def test_one_popular_beginning_does_not_pile_up() -> None:
    """All agents are of one kind, so every prompt begins alike. The first daemon that has the prompt must not get all
    agents.
    """
    outcome = agent("prefix-aware", Setup(n_nodes=16), n_kinds=1, is_timed=False)
    assert outcome.most_on_one < 3
    assert outcome.cached_share > 0.75
