"""Plans in words."""

from __future__ import annotations

import json

from tests.policy.build import reading, sids, state_of, talking
from uma_core.policy.config import DEFAULT_STAGES
from uma_core.policy.pipeline import compose
from uma_core.trace.words import explain
from uma_core.types import Phase


def test_explain_is_json_and_names_rows_and_prompt():
    plan = compose(DEFAULT_STAGES)(state_of(talking(0), talking(1), reading(2)))
    told = json.loads(json.dumps(explain(plan)))
    assert sum(told["decode_rows_by_call"]) == len(sids(plan, Phase.DECODE)) == 2
    assert [p["sid"] for p in told["prefill"]] == sids(plan, Phase.PREFILL)
