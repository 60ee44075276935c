"""How long a chat may wait for its first token, and which chats therefore begin together.

A prompt's deadline is its TTFT target, else `_patience` after it was queued. Prompts that are waiting when nobody streams are read one
after another before the first of them begins to answer, as far as its deadline allows: a stream that has begun would have to bear
the others' prompts in its gaps, and they would have to wait for gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uma_core.types import Lane

if TYPE_CHECKING:
    from uma_core.policy.state import SchedulerState, SessionView

TTFT_STRETCH = 2.0  # beside streams, a prompt without a TTFT target shall be answered within so many solo prefill times
TTFT_STEPS = 24  # ... or, where that is sooner, within so many steps of one stream: nobody notices a wait that short,
TTFT_MOST = 8.0  # but at most so many times its prefill time
TOGETHER_STEPS = 60  # ... within so many steps where it waits to begin together with others: beginning early would delay them by more


def target_ns(state: SchedulerState, view: SessionView, step_ns: int, n_steps: int = TTFT_STEPS) -> int:
    """From its arrival to its first token; `step_ns`: of one stream alone, of which so many pass unnoticed."""
    return view.slo_ttft_ns or state.knobs.slo_ttft_ns or _patience(state, view, n_steps * step_ns)


def left_to_read_ns(state: SchedulerState, view: SessionView) -> int:
    """Time that the rest of its prompt takes, undisturbed."""
    work = state.cost.prompt_ns(view.n_left, view.n_past)
    return work - int(view.chunk_fraction * state.cost.prefill_ns(view.n_chunk, view.n_past)) if view.n_chunk else work


def begin_together(state: SchedulerState, beginners: list[SessionView], prompts: list[SessionView]) -> bool:
    """Whether chats whose prompts are read wait for the next of these prompts: it can be read before their first token is due."""
    others = [left_to_read_ns(state, v) for v in prompts if is_first_awaited(v)]
    if not others:
        return False
    due = min(v.t_queued_ns + target_ns(state, v, state.cost.solo_step_ns(v.n_past), TOGETHER_STEPS) for v in beginners)
    return state.now_ns + min(others) <= due


def is_first_awaited(view: SessionView) -> bool:
    """Somebody reads along, and has seen nothing yet."""
    return view.lane is Lane.INTERACTIVE and not view.t_first_ns


def _patience(state: SchedulerState, view: SessionView, short_ns: int) -> int:
    """How long a prompt may wait for its first token where nobody said; `short_ns`: what nobody notices."""
    prefill_ns = state.cost.prompt_ns(view.n_prompt, 0)
    return max(int(TTFT_STRETCH * prefill_ns), min(int(TTFT_MOST * prefill_ns), short_ns))
