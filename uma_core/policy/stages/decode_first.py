"""Decode first: one token for every decoding session, grouped into the cheapest calls.

Rules: interactive sessions are always served, in the first calls. Background sessions are served up to a cap
(`max_background_decoders`; beside a chat on a MoE model `moe_max_decoders`, because every further row reads more
experts). Beyond the cap they rotate: clients that were charged less first, then round robin. While a chat streams, a
starved session goes first: the latency guard lets few background rows into the gaps, and might serve the same sessions
every time.
"""

from __future__ import annotations

from uma_core.policy.index import index_of
from uma_core.policy.order import fair_share, in_turn, starved_first
from uma_core.policy.plan import Plan
from uma_core.policy.rows import decode_items
from uma_core.policy.state import SchedulerState, SessionView


def run(state: SchedulerState, plan: Plan) -> Plan:
    interactive = index_of(state).interactive
    streams = [v for v in index_of(state).background if v.sid not in plan.park]
    if not interactive and not streams:
        return plan
    background = _served(state, plan, streams)
    n, n_all = len(background), len(streams)
    plan = plan._replace(items=plan.items + decode_items(state, interactive, background))
    if n == n_all:
        return plan.remember(decode_first=-1)
    plan = plan.note(f"decode_first: {n} of {n_all} background streams served")
    return plan.remember(decode_first=background[-1].sid)


def _served(state: SchedulerState, plan: Plan, streams: list[SessionView]) -> list[SessionView]:
    """Those of these background sessions that are served in this tick."""
    config = state.config
    cap = config.max_background_decoders or len(streams)
    if index_of(state).interactive and state.device.n_expert:
        cap = min(cap, config.moe_max_decoders)
    if cap >= len(streams):
        return streams
    ordered = sorted(in_turn(streams, state.memory.decode_first), key=fair_share(state, plan.charged))
    return starved_first(state, ordered)[:cap]
