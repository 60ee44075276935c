"""Decode first: one token for every decoding session, grouped into the cheapest calls.

Rules: interactive sessions are always served, in the first calls. Background sessions are served up to a cap
(`max_background_decoders`; beside a chat on a MoE model `moe_max_decoders`, because every further row reads more
experts). Beyond the cap they rotate: clients that were charged less first, then round robin. While a chat streams, a
session that got no token for `starvation_ticks` decode rounds goes first: the latency guard lets few background rows
into the gaps, and might serve the same sessions every time.
"""

from __future__ import annotations

from uma_core.policy.index import SessionIndex, index_of
from uma_core.policy.order import fair_share, in_turn, starved_first
from uma_core.policy.plan import Plan
from uma_core.policy.rows import decode_items
from uma_core.policy.state import SchedulerState, SessionView


def run(state: SchedulerState, plan: Plan) -> Plan:
    index = index_of(state)
    if plan.park:
        index = index._replace(background=[v for v in index.background if v.sid not in plan.park])
    if not index.interactive and not index.background:
        return plan
    background = _served(state, plan, index)
    n, n_all = len(background), len(index.background)
    plan = plan._replace(items=plan.items + decode_items(state, index.interactive, background))
    if n == n_all:
        return plan.remember(decode_first=-1)
    plan = plan.note(f"decode_first: {n} of {n_all} background streams served")
    return plan.remember(decode_first=background[-1].sid)


def _served(state: SchedulerState, plan: Plan, index: SessionIndex) -> list[SessionView]:
    """Background sessions that are served in this tick."""
    config, streams = state.config, index.background
    cap = config.max_background_decoders or len(streams)
    if index.interactive and state.device.n_expert:
        cap = min(cap, config.moe_max_decoders)
    if cap >= len(streams):
        return streams
    ordered = sorted(in_turn(streams, state.memory.decode_first), key=fair_share(state, plan.charged))
    return starved_first(state, ordered)[:cap]
