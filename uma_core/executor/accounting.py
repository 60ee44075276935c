"""Costs of calls. They are listed between two decode calls, where a cache miss prolongs every gap, and booked later.

Rules: compute thread only. Metrics, client shares and the cost model learn of a call when `Accounting.flush` is
called.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from uma_core.engine.api import DecodeOutcome, DecodeStatus
from uma_core.executor.meters import Meters
from uma_core.policy import traffic
from uma_core.policy.cost.model import CostModel
from uma_core.policy.state import CallReport, DeviceView
from uma_core.session.draft import Draft
from uma_core.session.session import Session
from uma_core.types import Phase

RECENT_NS = 20_000_000_000  # engine time after which earlier time counts half in a client's share
FORGET_NS = 1_000_000
CLIENTS_MOST = 512


# One decode call: sessions, rows, KV cells of its decode rows, prompt rows and the cells before them, ns since the
# previous call returned (0: other work came between them), whether the engine had started it ahead, outcome. A plain
# tuple, because it is made between two calls.
MeasuredCall = tuple[Sequence[Session], int, int, int, int, int, bool, DecodeOutcome]


class Verified(NamedTuple):
    """The drafts of one decode call: each with how many of its tokens had rows, and how many of those were accepted."""

    call: MeasuredCall
    n_kv: int  # KV cells that the streams' own rows read
    drafts: Sequence[tuple[Draft, int, int]]


class Accounting:
    """Owned by Calls. `client_ns`: engine time by fairness account, weighted towards recent time."""

    def __init__(self, meters: Meters) -> None:
        self.client_ns: dict[int, int] = {}
        self.unbooked: list[MeasuredCall] = []
        self.verified: list[Verified] = []
        self._meters = meters
        self._reports: list[CallReport] = []
        self._charged_ns = 0

    def add(self, report: CallReport, session: Session) -> None:
        """Note a prefill run, and book it at once."""
        self._reports.append(report)
        self._meters.piece.observe(report.longest_ns)
        self._charge([session], report.elapsed_ns)

    def flush(self, cost: CostModel) -> tuple[CallReport, ...]:
        """Book all calls. Returns the reports since the last time, each with the prediction of the cost model that
        planned it.
        """
        calls, self.unbooked = self.unbooked, []
        reports = [self._book(call, cost) for call in calls] + self._reports
        verified, self.verified = self.verified, []
        for each in verified:
            self._book_drafts(each, cost)
        self._reports = []
        return tuple(reports)

    def _book(self, call: MeasuredCall, cost: CostModel) -> CallReport:
        sessions, n_rows, n_kv, n_prompt, n_past, since_ns, is_ahead, outcome = call
        meters, call_ns = self._meters, outcome.call_ns
        n_decoded = n_rows - n_prompt
        predicted, mixed_ns = cost.call_ns(n_decoded, n_kv, n_prompt, n_past)
        meters.on_call(n_rows, call_ns, outcome.sample_ns)
        if since_ns:
            meters.on_overhead(since_ns, is_ahead)
        if outcome.status is DecodeStatus.OK:
            meters.on_prediction(predicted, call_ns)
        self._charge(sessions, call_ns)
        phase = Phase.DECODE if n_decoded else Phase.PREFILL
        is_full = outcome.status is DecodeStatus.FULL
        return CallReport(
            phase, n_rows, n_kv + n_past, predicted, call_ns, 0, is_full, n_prompt if n_decoded else 0, mixed_ns
        )

    def _book_drafts(self, verified: Verified, cost: CostModel) -> None:
        """Divide the call's measured time as the cost model does: what it would have taken without drafts, and the rest
        that their rows added. So a call that other programs disturbed costs drafts no more than its own share.
        """
        _, n_rows, n_kv, n_prompt, n_past, _, _, outcome = verified.call
        n_drafts = sum(n for _, n, _ in verified.drafts)
        n_streams = n_rows - n_prompt - n_drafts
        with_drafts_ns, _ = cost.call_ns(n_streams + n_drafts, n_kv, n_prompt, n_past)
        without_ns, _ = cost.call_ns(n_streams, verified.n_kv, n_prompt, n_past)
        own_ns = outcome.call_ns * min(1.0, without_ns / max(1, with_drafts_ns))
        token_ns, row_ns = own_ns / n_streams, (outcome.call_ns - own_ns) / n_drafts
        for draft, n, n_accepted in verified.drafts:
            for source, n_its, n_tokens in draft.by_source(n, n_accepted):
                self._meters.on_saved(source, n_tokens * token_ns - n_its * row_ns)

    def _charge(self, sessions: Sequence[Session], ns: int) -> None:
        share = ns // len(sessions)
        for session in sessions:
            self.client_ns[session.client] = self.client_ns.get(session.client, 0) + share
        self._charged_ns += ns
        if self._charged_ns > RECENT_NS:  # halving makes old time fade, and drops clients that left
            self._charged_ns //= 2
            self.client_ns = {client: half for client, n in self.client_ns.items() if (half := n // 2) >= FORGET_NS}
        if len(self.client_ns) > CLIENTS_MOST:  # each request may be a new process: drop those with the least time
            self.client_ns = dict(heapq.nlargest(CLIENTS_MOST // 2, self.client_ns.items(), key=lambda item: item[1]))


def bytes_moved(device: DeviceView, report: CallReport) -> int:
    """Return the bytes that a call or a run moved. A run has as large a share of its chunk's bytes as of its time."""
    if report.is_full:
        return 0
    if report.phase is Phase.DECODE:
        return traffic.decode_call(device, report.n_rows, report.n_kv)
    if not report.n_chunk:
        return traffic.chunk(device, report.n_rows, report.n_kv)
    whole = traffic.chunk(device, report.n_chunk, report.n_kv)
    return int(whole * report.predicted_ns / report.whole_ns) if report.whole_ns else 0
