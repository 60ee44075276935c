"""What the policy remembers from tick to tick: one field per stage, immutable, written by that stage alone.

Rules: a stage reads no other's field. What others need of it, it puts into the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Ledger(NamedTuple):
    """Virtual times by client, and who was planned in the last tick: ((client, rows), ...) by phase."""

    counters: Mapping[int, int]
    decoded: tuple[tuple[int, int], ...] = ()
    prefilled: tuple[tuple[int, int], ...] = ()


class TbtMemory(NamedTuple):
    """What was learnt of the time between a stream's tokens, and whose turn it is beside the stream."""

    error: float = 0.05  # 98th percentile of (a tick's time / its planned time), less 1
    n_long: float = 0.0  # the token bucket: long gaps that may be spent
    tick: int = 0  # tick of the last plan beside a stream
    t_plan_ns: int = 0  # when that plan was made
    planned_ns: int = 0  # how long its tick was planned to take
    debt_ns: int = 0  # time granted to background rows, less that granted to prompts: whichever had less goes first
    cursor: int = -1  # background session that was served last in turn
    forced_tick: int = 0  # when a background row was last forced


class PolicyMemory(NamedTuple):
    """By stage."""

    fairness: Ledger | None = None  # None: one client is alone
    decode_first: int = -1  # background session that was served last in turn; -1: everybody is served
    prefill_budget: int = 0  # prompt tokens per tick where prefill is not resumable; 0: not learnt yet
    latency_guard: TbtMemory = TbtMemory()
