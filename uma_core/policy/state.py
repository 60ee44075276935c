"""The policy's input: an immutable snapshot that is cheap to take and can be replayed at any time.

Views hold counts and timestamps, never token lists. The time comes in as `now_ns`. What the stages remember goes out in
`plan.memory` and comes back in the next state.
"""

from __future__ import annotations

from typing import NamedTuple

from uma_core.policy.config import SchedulerConfig
from uma_core.policy.cost.model import CostModel
from uma_core.policy.memory import PolicyMemory
from uma_core.types import AdapterSet, Phase, Priority


class SessionView(NamedTuple):
    sid: int  # session number, unique for the life of the daemon
    seq_id: int  # KV sequence; -1 without one
    client: int  # fairness account
    priority: Priority
    phase: Phase
    n_prompt: int  # prompt tokens
    n_past: int  # prompt and generated tokens whose KV is computed
    n_cached: int  # those of n_past that were restored, not computed
    n_generated: int
    n_max: int  # max_tokens granted
    n_cells: int  # KV cells reserved at admission
    n_chunk: int  # tokens of the chunk that is paused in a prefill slot; 0: none
    chunk_fraction: float  # part of that chunk that is done
    is_ready: bool  # may run now: not held, and no transfer in progress
    is_transferring: bool  # publication, restore or snapshot of its KV is in progress
    t_queued_ns: int
    t_first_ns: int  # first token; 0 before it
    t_last_ns: int  # last token; 0 before the first
    t_progress_ns: int  # last time any work was done for it (while queued: t_queued_ns)
    slo_ttft_ns: int
    slo_tbt_ns: int
    cached_hint: int  # prompt tokens that a restore could provide
    restore_ns: int  # predicted cost of that restore
    cached_seq: int = -1  # free sequence that holds the longest part of those tokens in place
    cached_own: int = 0  # tokens of the prompt that this sequence holds
    t_back_ns: int = 0  # when it came back after parking; 0: it was never parked
    t_held_ns: int = 0  # since when it is held (its client reads nothing); 0: it is not held
    adapters: AdapterSet = ()  # LoRA adapters that it is computed with
    # its inputs are read one after another and have no answers; never in mixed rows, and parked only between two inputs
    is_embedding: bool = False
    # for each of its draft tokens: the probability that this token and all before it will be drawn
    survival: tuple[float, ...] = ()
    # the same for the tokens that the draft model would draft for the next step; (): it is not asked
    draft_rates: tuple[float, ...] = ()
    # tokens that it gained from its drafts, less those that longer steps cost it: others' drafts may stretch its steps
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
    # chunks that can be in progress at a time; 0: prompts are read in sized chunks, by decode calls
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
    n_cells_free: int  # those not reserved, plus those reserved more than once (pages that running sequences share)
    can_mix_rows: bool = False  # one decode call takes rows of any sequences; else only neighbours share a call
    # sizes of a decode call, ascending, that may hold prompt tokens beside decode rows
    mixed_rows: tuple[int, ...] = ()
    computes_ahead: bool = False  # while the plan is repeated, the host's time between two decode calls is hidden
    n_verify_rows: int = 0  # most rows of a decode call that holds drafts; 0: no call can hold drafts
    draft_token_ns: int = 0  # time of one token of the draft model; 0: there is no draft model
    seq_held: tuple[int, ...] = ()  # by free sequence: cached tokens that it holds; () while no session waits
    seq_loss_ns: tuple[int, ...] = ()  # by free sequence: time that losing these tokens would cost
    seq_shared: tuple[int, ...] = ()  # by sequence: cells that other running ones hold too; () while no session waits
    one_set_per_call: bool = False  # rows with other LoRA adapters need a call of their own
    n_layer: int = 1  # number of pieces over which a chunk's attention is spread


class CallReport(NamedTuple):
    """One decode call or prefill run of the previous tick, as measured."""

    phase: Phase
    n_rows: int  # decode: rows; prefill: tokens of the chunk times the fraction done
    n_kv: int  # cells spanned
    predicted_ns: int
    elapsed_ns: int
    longest_ns: int  # prefill: longest piece; decode: 0
    is_full: bool  # the engine had no room (rc 1)
    n_mixed: int = 0  # decode: those of n_rows that were tokens of a prompt
    mixed_ns: int = 0  # ... and the part of predicted_ns that these tokens add
    n_chunk: int = 0  # prefill run: tokens of the whole chunk, of which this run computed a part
    n_pieces: int = 0  # prefill run: pieces of the chunk that this run computed
    # prefill run: predicted time of the whole chunk; predicted_ns is the share of it that this run computed
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
    overhead_ns: int = 0  # typical host time between two decode calls, if the second one was not started ahead


def by_adapters(device: DeviceView, views: list[SessionView]) -> list[list[SessionView]]:
    """Group the sessions by adapters: rows of one group can share a call. The first session's group comes first."""
    if not device.one_set_per_call:
        return [views]
    groups: dict[AdapterSet, list[SessionView]] = {}
    for view in views:
        groups.setdefault(view.adapters, []).append(view)
    return list(groups.values())


def sharing(device: DeviceView, views: list[SessionView]) -> list[list[SessionView]]:
    """Group the sessions so that rows of one group can share a call. Each group is in the order of its sequences.

    If each sequence has a KV stream of its own, a call spans neighbours only.
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
