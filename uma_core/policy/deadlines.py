"""Deadlines of first tokens: when a prompt's first token is due, and what the guard does to be on time.

A first token is due `slo.target_ttft_ms` after its request was queued. Without such a target it is due after twice the
time that its prompt takes alone; a short prompt may take longer, because nobody notices a few steps of a stream.

1. Beside streams, a prompt that would be late with everyday gaps gets long ones. A few long gaps among many short ones
   leave the streams' p95 as it is; gaps of medium length throughout would raise it. Once the first token is overdue,
   its gaps are filled up to the long limit, without RESERVE: with it, a late chat beside three streams on a GPU with
   llama.cpp's kernels waits a third longer; without it they pause a tenth longer.
2. While nothing streams, a chat whose prompt has been read waits for the next chat's prompt, if that can be read within
   TOGETHER times the waiting chat's usual target. If the chat began at once, that prompt would lengthen its gaps.
"""

from __future__ import annotations

from uma_core.policy.index import IndexedState, SessionIndex
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.policy.tbt.limits import TbtLimits
from uma_core.types import Priority

# Beside streams, a prompt may take STRETCH times its own prefill time, a short one STEPS steps of one stream (0.5 s on
# the 2-core CPU). Half of either: TBT +2 and +1 %, TTFT -1 and -4 %. Twice STRETCH: TTFT +4 %.
STRETCH = 2.0
STEPS = 30
# With 1, four chats that arrive at once on llama.cpp's kernels take 17 % longer, and the last one's first token comes
# after twice as long; with 4, first tokens of chats that arrive together come 40 % later, and all is done 10 % sooner.
TOGETHER = 2.0
# Limit of an urgent gap, in rounds, where chunks cannot pause: one takes a step or more, so the long limit holds none.
OWN_CALL_ROUNDS = 3.0


def target_ns(state: SchedulerState, view: SessionView, step_ns: int, times: float = 1.0) -> int:
    """Time from arrival until the first token is due: the client's target, else `times` the usual one.

    `step_ns`: a step of one stream.
    """
    wanted = view.slo_ttft_ns or state.config.slo_ttft_ns
    return wanted or int(times * max(STRETCH * state.cost.prompt_ns(view.n_prompt, 0), STEPS * step_ns))


def left_to_read_ns(state: SchedulerState, view: SessionView) -> int:
    """Time that the rest of the session's prompt takes, undisturbed."""
    work = state.cost.prompt_ns(view.n_left, view.n_past)
    return work - int(view.chunk_fraction * state.cost.prefill_ns(view.n_chunk, view.n_past)) if view.n_chunk else work


def is_first_awaited(view: SessionView) -> bool:
    """Whether the session is interactive and its first token has not come yet."""
    return view.priority is Priority.INTERACTIVE and not view.t_first_ns


def urgent_limit_ns(state: SchedulerState, limits: TbtLimits) -> int:
    """The limit of an urgent gap."""
    if state.device.n_prefill_slots:
        return limits.long_ns
    return max(limits.long_ns, int(OWN_CALL_ROUNDS * limits.round_ns))


def is_late(due_ns: int, left_ns: int, gap_ns: int, read_ns: int) -> bool:
    """Whether a first token that is due in `due_ns` would be late if everyday gaps of `gap_ns` each read `read_ns` of
    the `left_ns` that its prompt still takes (rule 1).
    """
    return left_ns > max(0, due_ns) // max(1, gap_ns) * read_ns


def begin_together(state: IndexedState) -> IndexedState:
    """Return a state whose index does not count chats that wait to begin together (rule 2) as streams."""
    index = state.index_
    if not index.streams or any(v.t_first_ns for v in index.streams) or not _can_wait(state, index):
        return state
    waiting = IndexedState(*state)
    waiting.index_ = index._replace(interactive=[], arriving=[], round_ns=0)
    return waiting


def _can_wait(state: SchedulerState, index: SessionIndex) -> bool:
    others = [left_to_read_ns(state, v) for v in index.prompts if is_first_awaited(v)]
    if not others:
        return False
    steps = ((v, state.cost.solo_step_ns(v.n_past)) for v in index.streams)
    return state.now_ns + min(others) <= min(v.t_queued_ns + target_ns(state, v, ns, TOGETHER) for v, ns in steps)
