"""Who goes first: one order for admission and prompts, rotation, and starvation.

Sessions are ordered by, in turn:

1. priority;
2. what their client was charged, less first;
3. while they wait: the number of sequences that their client holds, fewer first. A client that sends one request at a
   time has no account between two requests, so its charge says nothing. It passes another client's queue by this rule;
4. the time that their prompt still takes, less AGE_RATE of the time waited: a request that arrives more than
   work / AGE_RATE after a session does not overtake it;
5. arrival.

Whoever made no progress for `aging_ns` is aged:

- An aged background session ranks as interactive. If it waits for a sequence, it does so only if no other background
  session made progress for as long: the chats that it passes have it parked, and a queue of aged sessions would take
  turns without getting anything done.
- An aged request is not passed over for what its client was charged. Otherwise new processes that each ask once, one
  after another, would pass it forever. This holds in the queue, while its prompt is read, and while background streams
  take turns, for one request of a client and priority at a time: the first that has a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from uma_core.policy.index import index_of
from uma_core.policy.state import SchedulerState, SessionView
from uma_core.types import Phase, Priority

# Share of the time waited that is subtracted: a session is not overtaken by one that arrives ten times its prefill time
# later. This bound is the only gain: 0 and 0.4 change no figure by 1 %.
AGE_RATE = 0.1
# Clients whose charges differ by less than this rank equally, and the least work goes first. A session that came back
# from parking keeps its sequence for at least this long. A tenth: TBT +1 %, TTFT +1 %; ten times: background +2 %.
FAIR_QUANTUM_NS = 500_000_000

Rank = tuple[int, int, int, float, int]
Key = Callable[[SessionView], Rank]


def urgency_key(state: SchedulerState, charged: Mapping[int, int]) -> Key:
    """Sort key of waiting sessions and prompts.

    `charged`: measured ns by client (`Plan.charged`); empty while there is only one client.
    """
    now, aging, token_ns = state.now_ns, state.config.aging_ns, state.cost.token_ns
    share_of = fair_share(state, charged)
    t_background = _last_background_ns(state)
    held: dict[int, int] = {}
    if charged:
        for s in state.sessions:
            held[s.client] = held.get(s.client, 0) + (s.seq_id >= 0)

    def key(v: SessionView) -> Rank:
        is_aged, waits = now - v.t_progress_ns > aging, v.seq_id < 0
        n_held = held.get(v.client, 0) if waits and not is_aged else 0
        counts_as_chat = is_aged and (not waits or now - t_background > aging)
        priority = Priority.INTERACTIVE if counts_as_chat else v.priority
        n_left = v.n_prompt - max(v.n_past, v.cached_hint)
        work = (n_left - v.chunk_fraction * v.n_chunk) * token_ns if n_left > 0 else 0.0
        return priority, share_of(v), n_held, work + v.restore_ns - AGE_RATE * (now - v.t_queued_ns), v.sid

    return key


def _last_background_ns(state: SchedulerState) -> int:
    """When background work was done last, or a session came back for it, for sessions that are present; 0: never."""
    begun = (s for s in state.sessions if s.priority is Priority.BACKGROUND and s.phase is not Phase.QUEUED)
    return max((max(s.t_progress_ns, s.t_back_ns) for s in begun), default=0)


def why_first(first: Rank, second: Rank) -> str:
    """Why the first of two keys sorts before the second, with the numbers that decided."""
    reasons = (
        " by priority",
        f", its client was charged less ({first[1]} < {second[1]} times {FAIR_QUANTUM_NS // 1_000_000} ms)",
        f", its client holds fewer sequences ({first[2]} < {second[2]})",
        f", less is left to read ({first[3] / 1e6:.1f} < {second[3] / 1e6:.1f} ms, less a tenth of the wait)",
        ", it arrived first",
    )
    return next(why for why, a, b in zip(reasons, first, second, strict=True) if a < b)


def fair_share(state: SchedulerState, charged: Mapping[int, int]) -> Callable[[SessionView], int]:
    """How many quanta more a session's client was charged than the client that was charged least.

    0 for a client's first request of each priority that has a sequence (or for all, if none has) once it has waited for
    `aging_ns`.
    """
    least = min(charged.values(), default=0)
    first: dict[tuple[int, Priority], int] = {}
    if charged:
        for s in state.sessions:
            if s.seq_id >= 0:
                first.setdefault((s.client, s.priority), s.sid)

    def share(v: SessionView) -> int:
        is_away = v.t_first_ns and v.phase is not Phase.DECODE  # parked, or back and not read again yet
        has_waited = state.now_ns - (v.t_progress_ns if is_away else v.t_queued_ns) > state.config.aging_ns
        if has_waited and first.get((v.client, v.priority), v.sid) == v.sid:
            return 0
        return (charged.get(v.client, least) - least) // FAIR_QUANTUM_NS

    return share


def in_turn(views: list[SessionView], cursor: int) -> list[SessionView]:
    """Round robin by session number, beginning after `cursor`.

    (The sessions of one call got their last tokens at the same time, so that time gives no order.)
    """
    return sorted(views, key=lambda v: (v.sid <= cursor, v.sid))


def is_starved(state: SchedulerState, view: SessionView, times: int = 1) -> bool:
    """True if a chat streams and the session made no progress for `starvation_ticks` x `times` predicted rounds.

    It compares time, not ticks: if rounds take longer than predicted, fewer of them pass.
    """
    round_ns = index_of(state).round_ns
    return round_ns > 0 and state.now_ns - view.t_progress_ns >= state.config.starvation_ticks * times * round_ns


def starved_first(
    state: SchedulerState,
    views: list[SessionView],
    is_due: Callable[[SchedulerState, SessionView], bool] = is_starved,
) -> list[SessionView]:
    """The same order, except that the starved session that has waited longest goes first."""
    starved = min((v for v in views if is_due(state, v)), key=lambda v: (v.t_progress_ns, v.sid), default=None)
    return views if starved is None else [starved, *(v for v in views if v is not starved)]


def n_rounds_without(state: SchedulerState, streams: list[SessionView], forced_tick: int) -> int:
    """Rounds since the oldest last token of these background streams, or since any of them was forced, whichever is
    less.
    """
    since_ns = min(v.t_last_ns or v.t_progress_ns for v in streams)
    return int(min((state.now_ns - since_ns) // max(1, index_of(state).round_ns), state.tick - forced_tick))
