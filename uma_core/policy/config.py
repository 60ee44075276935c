"""What `scheduler.*` in the configuration becomes: the policy's settings, in ns and counts.

Config declares the options (names, help, ranges); this is the frozen value that stages read.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_STAGES = (
    "admission",
    "prefix_reuse",
    "decode_first",
    "fairness",
    "prefill_order",
    "prefill_budget",
    "latency_guard",
    "bmt_guard",
    "speculate",
)
# still accepted where stages are listed; the cost model chooses how many rows share a call
RETIRED_STAGES = frozenset({"sweet_spot"})


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    stages: tuple[str, ...] = DEFAULT_STAGES
    tick_budget_ns: int = 50_000_000  # wanted length of a tick when nobody interactive waits
    start_target_tokens: int = 32  # first chunk of the adaptive token budget, where prefill is not resumable
    prefill_burst: int = 512  # most prompt tokens of one session in one tick
    guard_cap: float = 1.2  # everyday gap of one stream <= cap x its step alone ...
    guard_floor_ns: int = 0  # ... or this, whichever is longer
    pause_cap: float = 2.0  # the same of a long gap ...
    # ... and at most this share of gaps longer than guard_cap. The 95th percentile leaves 0.05, of which a shared
    # machine takes 0.02 to 0.03 itself. Beside background streams of a mixture of experts that percentile was 1.34
    # steps with 0.04, 1.28 with 0.02 (five repeats each; in turn 1.30, 1.67, 1.28 and 1.11, 1.19, 1.06), at the same
    # makespans (2 cores, AVX-512).
    long_tick_share: float = 0.02
    starvation_ticks: int = 64  # rounds after which a prompt without progress is forced one piece
    slo_ttft_ns: int = 0  # default targets of requests that give none; 0: none
    slo_tbt_ns: int = 0
    interactive_share: float = 0.9  # of the time, for an interactive prompt beside background streams
    max_background_decoders: int = 0  # served per tick; 0: all
    aging_ns: int = 10_000_000_000  # without progress for this long, background sessions are ordered as interactive
    bmt_budget: float = 0.0  # GB/s; 0: off; -1: the bandwidth that calibration measured
    moe_max_decoders: int = 2  # served background decoders per tick for MoE models
