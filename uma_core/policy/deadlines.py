"""Deadlines of first tokens: when a prompt's first token is due, and what the guard does to be on time.

A first token is due `slo.target_ttft_ms` after its request was queued. Without such a target it is due after twice the
time that its prompt takes alone; a short prompt may take longer, because nobody notices a few steps of a stream.

1. Beside streams, a prompt that would be late with everyday gaps gets long ones. A few long gaps among many short ones
   leave the streams' p95 as it is; gaps of medium length throughout would raise it.
2. Once the first token is overdue, the gap's limit grows by one long limit for every further target time that passes,
   up to OVERDUE rounds.
3. While nothing streams, a chat whose prompt has been read waits for the next chat's prompt, if that can be read before
   the waiting chat's own first token is due. If the chat began at once, that prompt would lengthen its gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uma_core.policy.index import IndexedState, SessionIndex
from uma_core.types import Priority

if TYPE_CHECKING:
    from uma_core.policy.state import SchedulerState, SessionView
    from uma_core.policy.tbt.limits import TbtLimits

# Beside streams, a prompt may take STRETCH times its own prefill time, a short one STEPS steps of one stream (0.5 s on
# the 2-core CPU). Half of either: TBT +6 and +4 %, TTFT -4 and -5 %. Twice: TBT -3 and -2 %, TTFT +5 and +4 %.
STRETCH = 2.0
STEPS = 30
# Longest gap of overdue prompts, in rounds. Without longer gaps a crowd's first tokens come 13 % later, and four
# streams on llama.cpp's kernels take a fifth longer; with 4 a crowd pauses 6 % longer; with 1.5 the longest wait for a
# first token is 3 % longer, with 6 TBT grows by 8 %.
OVERDUE = 3.0


def target_ns(state: SchedulerState, view: SessionView, step_ns: int, n_steps: int) -> int:
    """Time from arrival until the first token is due. Without a target, at least `n_steps` steps of one stream."""
    wanted = view.slo_ttft_ns or state.config.slo_ttft_ns
    if wanted:
        return wanted
    return max(int(STRETCH * state.cost.prompt_ns(view.n_prompt, 0)), n_steps * step_ns)


def left_to_read_ns(state: SchedulerState, view: SessionView) -> int:
    """Time that the rest of the session's prompt takes, undisturbed."""
    work = state.cost.prompt_ns(view.n_left, view.n_past)
    return work - int(view.chunk_fraction * state.cost.prefill_ns(view.n_chunk, view.n_past)) if view.n_chunk else work


def is_first_awaited(view: SessionView) -> bool:
    """Whether the session is interactive and its first token has not come yet."""
    return view.priority is Priority.INTERACTIVE and not view.t_first_ns


def most_ns(limits: TbtLimits) -> int:
    """The highest limit that a gap of an overdue prompt can have."""
    return max(limits.long_ns, int(OVERDUE * limits.round_ns))


def next_limit_ns(state: SchedulerState, view: SessionView, limits: TbtLimits, usual: tuple[int, int]) -> int:
    """Limit of the next gap while this prompt waits for its first token (rules 1 and 2).

    `usual`: the prompt's time in an everyday gap, and the time that chunks would take to read the same tokens.
    """
    target = target_ns(state, view, limits.step_ns, STEPS)
    left = view.t_queued_ns + target - state.now_ns
    if left <= 0:
        return min(limits.long_ns - limits.long_ns * left // max(1, target), most_ns(limits))
    n_gaps = left // max(1, limits.round_ns + usual[0])
    return limits.everyday_ns if left_to_read_ns(state, view) <= n_gaps * usual[1] else limits.long_ns


def begin_together(state: IndexedState) -> IndexedState:
    """Return a state whose index does not count chats that wait to begin together (rule 3) as streams."""
    index = state.index_
    if not index.streams or any(v.t_first_ns for v in index.streams) or not _can_wait(state, index):
        return state
    waiting = IndexedState(*state)
    waiting.index_ = index._replace(interactive=[], arriving=[], round_ns=0)
    return waiting


def _can_wait(state: IndexedState, index: SessionIndex) -> bool:
    others = [left_to_read_ns(state, v) for v in index.prompts if is_first_awaited(v)]
    if not others:
        return False
    steps = ((v, state.cost.solo_step_ns(v.n_past)) for v in index.streams)
    n_steps = int(STRETCH * STEPS)  # longer than STEPS, since beginning early would delay the others by more
    return state.now_ns + min(others) <= min(v.t_queued_ns + target_ns(state, v, ns, n_steps) for v, ns in steps)
