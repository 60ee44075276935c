"""A device and a session with a default for every field: studies and tests of the policy name only the fields that
matter.

Pure.
"""

from __future__ import annotations

from uma_core.policy.state import DeviceView, SessionView
from uma_core.types import Phase, Priority

DEVICE = DeviceView(
    n_batch=2048, n_ubatch=512, n_seq_max=8, n_ctx=32768, n_ctx_seq=4096, n_prefill_slots=2, is_unified=False,
    kv_bytes_per_cell=12288,
    weight_bytes=529_000_000, expert_bytes=0, n_expert=0, n_expert_used=0, can_copy_prefix=True, can_rollback=True,
    free_seqs=(), n_cells_free=32768, n_layer=24,
)  # fmt: skip

WAITING = SessionView(
    sid=0, seq_id=-1, client=1, priority=Priority.INTERACTIVE, phase=Phase.QUEUED,
    n_prompt=100, n_past=0, n_cached=0, n_generated=0, n_max=100, n_cells=0, n_chunk=0, chunk_fraction=0.0,
    is_ready=True, is_transferring=False, t_queued_ns=0, t_first_ns=0, t_last_ns=0, t_progress_ns=0,
    slo_ttft_ns=0, slo_tbt_ns=0, cached_hint=0, restore_ns=0,
)  # fmt: skip
