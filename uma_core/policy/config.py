"""The policy's settings, in ns and counts, made from `scheduler.*` of the configuration.

`config/options.py` declares the options (names, help, ranges). This is the frozen value that stages read.
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
# accepted in lists of stages but ignored: the cost model now chooses how many rows share a call
RETIRED_STAGES = frozenset({"sweet_spot"})


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    stages: tuple[str, ...] = DEFAULT_STAGES
    tick_budget_ns: int = 50_000_000  # target length of a tick while no interactive session waits
    start_target_tokens: int = 32  # initial value of the adaptive token budget, where prefill is not resumable
    prefill_burst: int = 512  # most prompt tokens of one session in one tick
    guard_cap: float = 1.2  # an everyday gap of a lone stream is at most this many of its steps ...
    guard_floor_ns: int = 0  # ... or this, whichever is longer
    pause_cap: float = 2.0  # the same limit for a long gap ...
    # ... and at most this share of gaps may be longer than guard_cap. A 95th percentile allows 0.05, of which a shared
    # machine takes 0.02 to 0.03 itself. Beside background streams of a mixture of experts, the 95th percentile was 1.34
    # steps with 0.04 and 1.28 with 0.02 (five repeats each). In alternating runs it was 1.30, 1.67 and 1.28 with 0.04,
    # and 1.11, 1.19 and 1.06 with 0.02, at the same makespans (2 cores, AVX-512).
    long_tick_share: float = 0.02
    starvation_ticks: int = 64  # after this many rounds without progress, one piece of a prompt is forced
    slo_ttft_ns: int = 0  # default targets for requests without their own; 0: none
    slo_tbt_ns: int = 0
    interactive_share: float = 0.9  # share of the time that an interactive prompt gets beside background streams
    max_background_decoders: int = 0  # background streams served per tick; 0: all
    aging_ns: int = 10_000_000_000  # after this long without progress, a background session ranks as interactive
    bmt_budget: float = 0.0  # GB/s; 0: off; -1: the bandwidth that calibration measured
    moe_max_decoders: int = 2  # background streams served per tick on a MoE model, beside a chat
