"""Figures of simulations are means over seeds."""

from __future__ import annotations

import pytest

from perf import simulated
from perf.simulated import Point


def test_a_figure_that_some_seeds_lack_is_the_mean_over_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """No background work may be done while the chats of one seed run."""
    by_seed = {1: {"ttft_x": 1.0}, 2: {"ttft_x": 2.0, "background_s": 5.0}, 3: {"ttft_x": 3.0, "background_s": 7.0}}
    monkeypatch.setattr(simulated, "figures", lambda case, profile, machine, seed: by_seed[seed])
    found = simulated.survey(("storm",), ("cpu-graph",), ("calm",), n_seeds=3)
    assert found == {
        Point("storm", "cpu-graph", "calm", "ttft_x"): 2.0,
        Point("storm", "cpu-graph", "calm", "background_s"): 6.0,
    }
