"""A plan in words and numbers, for `status` and traces."""

from __future__ import annotations

from collections import Counter

from uma_core.policy.plan import Plan, PrefillMode, TbtDecision

# 0.x names that clients may still read; the next release removes them
DEPRECATED = {"solo_ms": "round_ms", "cap_ms": "everyday_ms", "pause_ms": "long_ms"}


def explain(plan: Plan) -> dict[str, object]:
    """Return the plan in words and numbers."""
    calls: Counter[int] = Counter()
    for item in plan.decodes:
        calls[item.call] += item.n_tokens
    words: dict[str, object] = {
        "admit": [a.sid for a in plan.admit],
        "park": list(plan.park),
        "decode_rows_by_call": [calls[c] for c in sorted(calls)],
        "prefill": [
            {
                "sid": i.sid,
                "n_tokens": i.n_tokens,
                "mode": i.mode.name.lower(),
                "sliced": i.mode is PrefillMode.SLICED,
                "reason": i.reason,
            }
            for i in plan.items
            if i.mode is not None
        ],
        "run_ms": plan.run_ns / 1e6,
        "quantum_ms": plan.quantum_ns / 1e6,
        "min_pieces": plan.min_pieces,
        "transfer_ms": plan.transfer_ns / 1e6,
        "bmt_mb": plan.bmt_bytes / 1e6,
        "notes": list(plan.notes),
    }
    return words if plan.guard is None else {**words, "guard": guard_words(plan.guard)}


def guard_words(guard: TbtDecision) -> dict[str, object]:
    """Return the numbers that decided in the latency guard, in ms."""
    fields = guard._asdict().items()
    words: dict[str, object] = {
        name.replace("_ns", "_ms"): round(value / 1e6, 4) if name.endswith("_ns") else value for name, value in fields
    }
    return words | {old: words[name] for old, name in DEPRECATED.items()}
