"""A Ray that is started here runs its workers at normal priority."""

from __future__ import annotations

import pytest

from uma_gateway.cluster import niceness


@pytest.mark.parametrize(("before", "after"), [({}, "0"), ({niceness.NICENESS: "7"}, "7")])
def test_a_ray_that_is_started_here_is_told_unless_the_user_has_said_something(
    before: dict[str, str], after: str
) -> None:
    niceness.use(before)
    assert before[niceness.NICENESS] == after
