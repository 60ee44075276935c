"""What a stage remembers from tick to tick."""

from __future__ import annotations

from uma_core.policy.plan import Plan

_CARRY = Plan._fields.index("carry")


def remember(plan: Plan, name: str, value: object) -> Plan:
    """The plan with `value` as the stage's memory. Values must be immutable; see trace.CARRIED for recording them."""
    fields = list(plan)
    fields[_CARRY] = {**plan.carry, name: value}
    return Plan._make(fields)
