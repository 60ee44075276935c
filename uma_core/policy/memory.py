"""What the policy remembers from tick to tick: one field per stage, immutable, read and written by that stage alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Ledger(NamedTuple):
    """Charges by client, and the clients planned in the last tick: ((client, rows), ...) by phase."""

    counters: Mapping[int, int]
    decoded: tuple[tuple[int, int], ...] = ()
    prefilled: tuple[tuple[int, int], ...] = ()


class TbtMemory(NamedTuple):
    """What was learned about the time between a stream's tokens, and whose turn it is beside the streams."""

    error: float = 0.05  # of planned times, and ...
    credit: float = 0.0  # ... long gaps that may be spent: see tbt/controller.py
    tick: int = 0  # tick of the last plan beside a stream
    t_plan_ns: int = 0  # when that plan was made
    planned_ns: int = 0  # how long its tick was planned to take
    debt_ns: int = 0  # time granted to background rows, less the time granted to prompts: whichever had less goes first
    cursor: int = -1  # background session that the rotation served last
    forced_tick: int = 0  # tick that last forced a background row, less the rounds by which urgent gaps exceeded one


class PolicyMemory(NamedTuple):
    fairness: Ledger | None = None  # None: there is only one client
    decode_first: int = -1  # background session that the rotation served last; -1: all are served
    prefill_budget: int = 0  # prompt tokens per tick where prefill is not resumable; 0: not learned yet
    latency_guard: TbtMemory = TbtMemory()
