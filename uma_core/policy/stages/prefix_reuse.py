"""Prefix reuse: prompts begin with KV that is already there, if a restore is faster than computing it.

Rules: an admitted session gets the free sequence that is cheapest for it. The price is the time to bring its cached
beginning there, plus the value of what the sequence holds now, plus the cost per step of a hole between running
sequences. Sessions with the most to gain choose first. Admission alone decides which sessions come in, so cold requests
wait no longer. A prompt between two chunks skips tokens that another session has read meanwhile.
"""

from __future__ import annotations

from uma_core.policy.index import index_of
from uma_core.policy.plan import Admission, Plan
from uma_core.policy.state import SchedulerState, SessionView

# The most decode steps for which a hole between running sequences is charged, if only neighbours share a call
# (llama.cpp's engine): longer answers are rare. The simulator shows no effect: it has no cache.
STEPS_MOST = 256


def run(state: SchedulerState, plan: Plan) -> Plan:
    index = index_of(state)
    resident = [v for v in index.prompts if not v.n_chunk and v.sid not in plan.park]
    restore = tuple(v.sid for v in resident if _gain_ns(state, v) > 0)
    admit = plan.admit
    if admit:
        views = {v.sid: v for v in index.waiting}
        gains = {a.sid: _gain_ns(state, views[a.sid]) for a in admit}
        restore += tuple(sid for sid, gain in gains.items() if gain > 0)
        admit = _placed(state, admit, views, gains)
    plan = plan._replace(admit=admit, restore=plan.restore + restore)
    return plan.note(f"prefix_reuse: restores {', '.join(map(str, restore))}") if restore else plan


def _gain_ns(state: SchedulerState, view: SessionView) -> int:
    """Prefill time that a restore would save, less the time that it takes; <= 0: not worth it."""
    if view.cached_hint <= view.n_past:
        return 0
    return state.cost.prompt_ns(view.cached_hint - view.n_past, view.n_past) - view.restore_ns


def _placed(
    state: SchedulerState, admit: tuple[Admission, ...], views: dict[int, SessionView], gains: dict[int, int]
) -> tuple[Admission, ...]:
    """Return the same admissions with the best sequence for each."""
    device = state.device
    if len(device.seq_held) != len(device.free_seqs):
        return admit
    left = dict(zip(device.free_seqs, zip(device.seq_held, device.seq_loss_ns, strict=True), strict=True))
    busy = {v.seq_id for v in state.sessions if v.seq_id >= 0}
    hole_ns = 0 if device.can_mix_rows else max(0, 2 * state.cost.decode_ns(1, 0) - state.cost.decode_ns(2, 0))
    seq_of: dict[int, int] = {}
    for sid in sorted(gains, key=lambda sid: -gains[sid]):
        view, gain = views[sid], gains[sid]
        prices = [(_price(state, view, seq, left[seq], gain) + _hole(view, seq, busy, hole_ns), seq) for seq in left]
        _, seq_id = min(prices)
        seq_of[sid] = seq_id
        busy.add(seq_id)
        del left[seq_id]
    return tuple(a._replace(seq_id=seq_of[a.sid]) for a in admit)


def _price(state: SchedulerState, view: SessionView, seq_id: int, content: tuple[int, int], gain: int) -> int:
    """Cost of putting the session there: the restore, and the loss of what the sequence holds now."""
    n_held, loss = content
    if gain <= 0:
        return loss
    if seq_id == view.cached_seq and n_held:
        n_bytes = min(view.cached_own, view.cached_hint) * state.device.kv_bytes_per_cell
        rest = loss * (n_held - min(n_held, view.cached_own)) // n_held
        return max(0, view.restore_ns - state.cost.transfer_ns(n_bytes)) + rest
    if not state.device.can_copy_prefix:
        return loss + gain
    return loss + max(1, view.restore_ns)


def _hole(view: SessionView, seq_id: int, busy: set[int], hole_ns: int) -> int:
    """Cost of a hole between running sequences: if each has a KV stream of its own, only neighbours share a call."""
    if not busy or not hole_ns or {seq_id - 1, seq_id + 1} & busy:
        return 0
    return hole_ns * min(STEPS_MOST, max(1, view.n_max - view.n_generated))
