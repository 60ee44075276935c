"""How long the next prompt chunk shall be. Sizes come from the cost model's legal chunks."""

from __future__ import annotations

from uma_core.policy.cost import CostModel

WORTH = 1.04  # pieces that a chat can bear are worth so much prefill time
TAIL = 64  # the end of a prompt may be any size up to the limit; so may a chunk that leaves no tiny rest


def candidates(cost: CostModel, n_left: int, limit: int) -> list[int]:
    """Legal sizes that fit, and the whole rest where that fits."""
    top = min(n_left, limit)
    sizes = [n for n in cost.chunks if n < top]
    sizes.append(top if top == n_left or not sizes else max(sizes[-1], top // TAIL * TAIL) or top)
    return sizes


def fastest(cost: CostModel, n_left: int, n_past: int, limit: int) -> int:
    """The most efficient size; near the end of the prompt, the one that gets the whole rest done soonest."""
    sizes = candidates(cost, n_left, limit)
    if n_left > limit:
        return _least(sizes, [token_ns(cost, n, n_past, limit) for n in sizes])
    rests = [cost.prefill_ns(n_left - n, n_past + n) if n < n_left else 0 for n in sizes]
    return _least(sizes, [cost.prefill_ns(n, n_past) + rest for n, rest in zip(sizes, rests, strict=True)])


def token_ns(cost: CostModel, n: int, n_past: int, span: int) -> float:
    """Time per token where `span` tokens are read in chunks of `n`: later chunks have more context behind them."""
    return cost.prefill_ns(n, n_past + (span - n) // 2) / n


def _least(sizes: list[int], values: list[float]) -> int:
    """The largest size whose value is within 1 % of the least."""
    limit = min(values) * 1.01
    return max(n for n, value in zip(sizes, values, strict=True) if value <= limit)


def pausable(cost: CostModel, n_left: int, n_past: int, limit: int, pause_ns: int) -> int:
    """The fastest size whose pieces are no longer than `pause_ns`, unless that is much slower than the fastest of all."""
    best = fastest(cost, n_left, n_past, limit)
    fits = [n for n in candidates(cost, n_left, limit) if cost.piece_ns(n, n_past) <= pause_ns]
    if not fits or best <= max(fits):
        return best
    size, span = fastest(cost, n_left, n_past, max(fits)), min(n_left, limit)
    return size if token_ns(cost, size, n_past, span) <= WORTH * token_ns(cost, best, n_past, span) else best


def best_in_gaps(cost: CostModel, n_left: int, n_past: int, limit: int, gaps: tuple[int, int, float]) -> int:
    """The size that gets most tokens through gaps of a stream.

    `gaps`: time left in a normal gap, in a long gap, and the share of long gaps. Only whole pieces fit,
    so a larger, more efficient chunk may progress slower than a small one.
    """
    normal_ns, long_ns, long_share = gaps
    best, best_rate = 0, 0.0
    span = min(n_left, limit)
    for n in candidates(cost, n_left, limit):
        piece = max(1, cost.piece_ns(n, n_past))
        used = (1.0 - long_share) * (normal_ns // piece) * piece + long_share * (long_ns // piece) * piece
        rate = used / max(1.0, token_ns(cost, n, n_past, span))
        if rate > best_rate * 1.01:
            best, best_rate = n, rate
    return best or min(candidates(cost, n_left, limit))
