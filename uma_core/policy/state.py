"""What the policy sees: an immutable snapshot, cheap to take, replayable for ever.

Views hold counts and timestamps, never token lists. Time arrives as `now_ns`; what stages remember travels in
`plan.memory` and comes back with the next state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from uma_core.policy.config import SchedulerConfig
from uma_core.policy.memory import PolicyMemory
from uma_core.types import AdapterSet, Phase, Priority

if TYPE_CHECKING:
    from uma_core.policy.cost.model import CostModel


class SessionView(NamedTuple):
    sid: int  # session number, unique for the life of the daemon
    seq_id: int  # KV sequence; -1 without one
    client: int  # fairness account
    priority: Priority
    phase: Phase
    n_prompt: int  # prompt tokens
    n_past: int  # prompt and generated tokens whose KV is computed
    n_cached: int  # of n_past: restored, not computed
    n_generated: int
    n_max: int  # max_tokens granted
    n_cells: int  # KV cells reserved at admission
    n_chunk: int  # tokens of the chunk that is paused in a prefill slot; 0: none
    chunk_fraction: float  # part of that chunk that is done
    is_ready: bool  # may run now: not held by a slow reader, no transfer under way
    is_transferring: bool  # a handover, restore or snapshot of it is under way
    t_queued_ns: int
    t_first_ns: int  # first token; 0 before it
    t_last_ns: int  # last token; 0 before the first
    t_progress_ns: int  # last time any work was done for it (queued: t_queued_ns)
    slo_ttft_ns: int
    slo_tbt_ns: int
    cached_hint: int  # prompt tokens that a restore could provide
    restore_ns: int  # predicted cost of that restore
    cached_seq: int = -1  # free sequence that holds the longest part of that in place
    cached_own: int = 0  # tokens of the prompt that it holds
    t_back_ns: int = 0  # when it came back after parking; 0: it was never parked
    t_held_ns: int = 0  # since when its reader takes nothing and it is paused; 0: it is not
    adapters: AdapterSet = ()  # LoRA adapters that it is computed with
    # its prompt has no answer: further inputs follow; never mixed, parked between two inputs only
    is_embedding: bool = False
    # of its draft tokens: probability of each that it, and all before it, will be drawn
    survival: tuple[float, ...] = ()
    # the same of what the draft model would draft for the next step; (): it is not asked
    draft_rates: tuple[float, ...] = ()
    # tokens that its drafts have brought it beyond what longer steps took from it: others' drafts may stretch its steps
    ahead: float = 0.0

    @property
    def n_left(self) -> int:
        """Prompt tokens still to compute."""
        return self.n_prompt - self.n_past if self.n_past < self.n_prompt else 0


class DeviceView(NamedTuple):
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_ctx: int
    n_ctx_seq: int
    # chunks that can be in progress at a time; 0: prompts are read by sized chunks in decode calls
    n_prefill_slots: int
    is_unified: bool
    kv_bytes_per_cell: int
    weight_bytes: int
    expert_bytes: int
    n_expert: int
    n_expert_used: int
    can_copy_prefix: bool
    can_rollback: bool
    free_seqs: tuple[int, ...]  # ascending
    n_cells_free: int  # not reserved, or reserved more than once: pages that running sequences share
    can_mix_rows: bool = False  # one decode call takes rows of any sequences; else only neighbours share one
    # sizes of a decode call, ascending, that may hold prompt tokens beside decode rows
    mixed_rows: tuple[int, ...] = ()
    computes_ahead: bool = False  # while the plan is repeated, the host's time between two decode calls is hidden
    n_verify_rows: int = 0  # most rows of a decode call that holds drafts; 0: none can
    draft_token_ns: int = 0  # of one token of the draft model; 0: there is none
    seq_held: tuple[int, ...] = ()  # by free sequence: cached tokens that it holds; () while nobody waits
    seq_loss_ns: tuple[int, ...] = ()  # by free sequence: what it would cost to do without them
    seq_shared: tuple[int, ...] = ()  # by sequence: cells that other running ones hold too; () while nobody waits
    one_set_per_call: bool = False  # rows with other LoRA adapters need a call of their own
    n_layer: int = 1  # a chunk's attention is spread over as many pieces


class CallReport(NamedTuple):
    """One decode call or prefill run of the previous tick, as measured."""

    phase: Phase
    n_rows: int  # decode: rows; prefill: tokens of the chunk times the fraction done
    n_kv: int  # cells spanned
    predicted_ns: int
    elapsed_ns: int
    longest_ns: int  # prefill: longest piece; decode: 0
    is_full: bool  # the engine had no room (rc 1)
    n_mixed: int = 0  # decode: of n_rows, those that were tokens of a prompt
    mixed_ns: int = 0  # ... and of predicted_ns, what these add
    n_chunk: int = 0  # prefill run: tokens of the chunk of which it computed a part
    n_pieces: int = 0  # prefill run: pieces of the chunk that it computed
    # prefill run: predicted time of the whole chunk; predicted_ns is the share that this run advanced
    whole_ns: int = 0


class SchedulerState(NamedTuple):
    tick: int
    now_ns: int
    sessions: tuple[SessionView, ...]  # in order of arrival; none DONE
    device: DeviceView
    config: SchedulerConfig
    cost: CostModel
    reports: tuple[CallReport, ...]  # since the last plan: of one tick, or of all that repeated it
    memory: PolicyMemory  # what the stages remember
    overhead_ns: int = 0  # typical time of the host between two decode calls, the next of which was not begun ahead


def by_adapters(device: DeviceView, views: list[SessionView]) -> list[list[SessionView]]:
    """The sessions in groups whose rows can share a call, those with the first one's adapters first."""
    if not device.one_set_per_call:
        return [views]
    groups: dict[AdapterSet, list[SessionView]] = {}
    for view in views:
        groups.setdefault(view.adapters, []).append(view)
    return list(groups.values())


def sharing(device: DeviceView, views: list[SessionView]) -> list[list[SessionView]]:
    """The sessions in groups whose rows can share a call, each in the order of their sequences.

    Where sequences have streams of their own, a call spans neighbours only.
    """
    groups: list[list[SessionView]] = []
    for alike in by_adapters(device, views):
        last = None
        for view in sorted(alike, key=lambda v: v.seq_id):
            if last is None or not (device.can_mix_rows or view.seq_id == last + 1):
                groups.append([])
            groups[-1].append(view)
            last = view.seq_id
    return groups
