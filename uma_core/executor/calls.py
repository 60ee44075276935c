"""The three ways in which a plan's items reach the engine: decode calls, prefill runs, transfers.

Rules: nothing here chooses. Every outcome is reported to the policy as measured. A failed call either leaves its
sessions as they were, so that a later plan retries it (FULL, ABORTED), or ends exactly the sessions that it concerns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from uma_core.cache.manager import PrefixCache
from uma_core.clock import Clock
from uma_core.engine.api import (
    NOT_DRAWN,
    WANT_IF_ACCEPTED,
    WANT_LOGITS,
    Batch,
    DecodeOutcome,
    DecodeStatus,
    Engine,
    PrefillStatus,
    Rows,
    Sampler,
)
from uma_core.errors import ErrorCode, UmaError
from uma_core.executor.accounting import Accounting, Verified
from uma_core.executor.meters import Meters
from uma_core.executor.output import Output
from uma_core.executor.ports import Ports
from uma_core.executor.prompt_progress import PromptProgress
from uma_core.policy.cost.model import CostModel
from uma_core.policy.plan import Plan, PlanItem
from uma_core.policy.state import CallReport
from uma_core.session.draft import Draft
from uma_core.session.embedding import Embedding
from uma_core.session.scoring import Scoring
from uma_core.session.session import Session
from uma_core.speculation.speculator import Speculator
from uma_core.types import FinishReason, Phase, Priority, TokenId

N_FULL_MOST = 1000  # ticks that a session waits for cells that were reserved for it, before it fails
NO_ROWS = np.zeros((0, 0), np.float32)
OK = DecodeStatus.OK  # a constant, because looking up an enum member runs Python code
Items = Sequence[tuple[PlanItem, Session]]


class Calls:
    def __init__(
        self,
        engine: Engine,
        output: Output,
        meters: Meters,
        clock: Clock,
        cache: PrefixCache,
        prompt_progress: PromptProgress,
        speculator: Speculator | None,
        ports: Ports,
    ) -> None:
        self._engine = engine
        self._cache = cache
        self._prompt_progress = prompt_progress
        self._output = output
        self._meters = meters
        self._clock = clock
        self.accounting = Accounting(meters)
        self.t_returned_ns = 0
        self.is_in_call = False  # other threads may read it
        # when the last decode call's logits were ready; 0 once the I/O thread has been told of their tokens
        self._t_logits_ns = 0
        self._computes_ahead = engine.info.capabilities.computes_ahead
        self._batch = Batch(engine.info.n_batch)
        self._last: Items | None = None  # what the batch holds, one token each; below, its rows and their outcome
        self._rows: list[Session] = []
        self._samplers: list[Sampler | None] = []
        self._tokens: Sequence[TokenId] = ()
        self._n_kv = 0
        self._t_run_end_ns = 0  # planned end of this tick's prefill run
        self._t_now_ns = 0  # when the last call returned
        self.announce = ports.announce
        self.wake_fd = ports.wake_fd
        # takes the hidden states of a session from a position on; None: no prediction heads read them
        self._see_hidden: Callable[[Session, int, np.ndarray], None] | None = None
        if speculator is not None and speculator.reads_states and engine.info.capabilities.keeps_hidden:
            self._see_hidden = speculator.see

    # decode calls

    def decode(self, items: Items, starts_next: bool = False) -> None:
        """One decode call for all items, in ascending sequence order so that KV streams stay neighbours.

        `starts_next`: unless something happens, the next call will be for the same items, each one token further.
        """
        ordered = sorted(items, key=lambda pair: pair[0].seq_id)
        status = self._call(ordered, starts_next)
        if status is DecodeStatus.FULL and len(items) > 1:
            for pair in ordered:  # one by one: those that fit continue, the others wait
                self._call([pair])
        elif status is OK and self._batch.n_rows == len(items) == self._batch.n:
            self._last = items

    def again(self, items: Items, starts_next: bool) -> None:
        """`decode` for the same items, each one token further. If it still holds them, the batch is advanced, not
        rebuilt.
        """
        if items is not self._last:
            self.decode(items, starts_next)
            return
        self._batch.advance(self._tokens)
        self._batch.starts_next = starts_next
        self._n_kv += len(items)
        rows = self._rows
        outcome = self._compute(rows, 0, 0)
        now, deliver = self._t_now_ns, self._output.deliver
        if outcome.status is OK:
            if self._see_hidden is not None:
                self._tell_hidden(rows, self._see_hidden)
            for session, token in zip(rows, outcome.tokens):  # noqa: B905 -- equal lengths
                session.n_past += 1
                deliver(session, token, now)
            self._begin_next(rows)
        else:
            self._last = None
            self._recover(items, outcome.status, now)

    def _call(self, items: Items, starts_next: bool = False) -> DecodeStatus:
        self._last = None
        n_prompt, n_read = self._fill(items, starts_next)
        outcome = self._compute([session for _, session in items], n_prompt, n_read)
        rows, now = self._rows, self._t_now_ns
        if outcome.status is OK:
            if self._see_hidden is not None:
                self._tell_hidden(rows, self._see_hidden)
            self._advance(items, rows, outcome.tokens, now)
            self._begin_next(rows)
        else:
            self._recover(items, outcome.status, now)
        return outcome.status

    def _fill(self, items: Items, starts_next: bool) -> tuple[int, int]:
        """Put the items into the batch. Returns how many of its rows are prompt tokens, and the cells before these."""
        batch = self._batch
        batch.clear()
        batch.starts_next = starts_next
        rows: list[Session] = []
        samplers: list[Sampler | None] = []
        n_kv = n_prompt = n_read = 0
        n_tokens, n_outputs = sum(item.n_tokens for item, _ in items), sum(item.want_logits for item, _ in items)
        for item, session in items:
            if item.phase is Phase.DECODE and session.scoring is not None:
                n_more = self._output.scores.n_more(session, n_tokens, n_outputs)
                n_tokens, n_outputs = n_tokens + n_more, n_outputs + n_more
                n_kv += self._add_known(session, session.scoring, 1 + n_more)
                samplers += session.scoring.rows(session.n_past, 1 + n_more)
                rows += [session] * (1 + n_more)
                batch.starts_next = False
                continue
            if item.phase is Phase.DECODE:
                batch.add(session.next_token, session.n_past, session.seq_id, True)
                n_kv += session.n_past + 1
                if item.n_tokens > 1:
                    n_drafts = item.n_tokens - 1
                    want = WANT_LOGITS if session.draws_one_by_one else WANT_IF_ACCEPTED
                    batch.verify(session.draft.tokens[:n_drafts], session.n_past + 1, session.seq_id, want)
                    n_kv += n_drafts * (session.n_past + 1)
                    rows += [session] * n_drafts
                    samplers += [session.sampler] * n_drafts
            else:
                tokens = session.token_at(session.n_past, session.n_past + item.n_tokens)
                batch.extend(tokens, session.n_past, session.seq_id, item.want_logits)
                n_prompt += item.n_tokens
                n_read += session.n_past
            if item.want_logits:
                rows.append(session)
                samplers.append(None if session.is_rereading else self._sampler(session))
        self._rows, self._n_kv, self._samplers = rows, n_kv, samplers
        return n_prompt, n_read

    def _begin_next(self, rows: Sequence[Session]) -> None:
        """If the batch goes on, have the device start its next step while this thread does other work.

        The tokens are announced first, because starting takes half a step of a large model on a GPU.
        """
        if self._computes_ahead and self._batch.starts_next and all(session.phase is Phase.DECODE for session in rows):
            self._engine.begin_next(self.wake_fd())

    def _add_known(self, session: Session, scoring: Scoring, n: int) -> int:
        """Add rows of a prompt whose log probabilities are wanted. Returns the number of cells that they read."""
        end = session.n_past + n
        self._batch.extend(scoring.tokens[session.n_past : end], session.n_past, session.seq_id, True, True)
        return sum(range(session.n_past + 1, end + 1))

    def _sampler(self, session: Session) -> Sampler | None:
        return session.sampler if session.scoring is None else session.scoring.rows(session.n_prompt - 1, 1)[0]

    def _compute(self, sessions: Sequence[Session], n_prompt: int, n_read: int) -> DecodeOutcome:
        """Have the engine compute the batch, and note the time it took.

        `n_prompt` of the rows are prompt tokens, with `n_read` cells before them.
        """
        self._batch.wake_fd = self.wake_fd()
        self._t_logits_ns = 0
        t_asked = self._clock.now_ns()
        self.is_in_call = True
        try:
            outcome = self._engine.decode(self._batch, self._samplers)
        finally:
            self.is_in_call = False
        self._t_now_ns = self._clock.now_ns()
        t0 = outcome.begun_ns or t_asked
        t_before, self.t_returned_ns = self.t_returned_ns, t0 + outcome.call_ns
        self._t_logits_ns = self.t_returned_ns
        since_ns = t0 - t_before if t_before else 0
        self.accounting.unbooked.append(
            (sessions, self._batch.n, self._n_kv, n_prompt, n_read, since_ns, t0 < t_asked, outcome)
        )
        self._tokens = outcome.tokens
        return outcome

    def _tell_hidden(self, rows: list[Session], tell: Callable[[Session, int, np.ndarray], None]) -> None:
        """Pass on the hidden states of the call's rows with logits, drafts included: those of wrong drafts are
        overwritten later.

        A prompt's last row comes after rows without logits, so positions are taken from the batch.
        """
        if not any(session.asks_model for session in rows):
            return
        batch, hidden = self._batch, self._engine.hidden()
        positions = batch.pos[: batch.n][batch.want_logits[: batch.n] != 0]
        begin = 0
        for i, session in enumerate(rows):
            if i + 1 == len(rows) or rows[i + 1] is not session:
                if session.asks_model:
                    tell(session, int(positions[begin]), hidden[begin : i + 1])
                begin = i + 1

    def on_announced(self) -> None:
        """Called when the I/O thread is told that events wait."""
        if self._t_logits_ns:
            self._meters.to_chunk.set(self._clock.now_ns() - self._t_logits_ns)
            self._t_logits_ns = 0

    def _advance(self, items: Items, rows: list[Session], tokens: Sequence[int], now: int) -> None:
        known = {session.sid for session in rows if session.is_rereading}  # their next token was sent before
        drafted = [pair for pair in items if pair[0].phase is Phase.DECODE and pair[0].n_tokens > 1]
        n_draft_kv = sum((item.n_tokens - 1) * (session.n_past + 1) for item, session in drafted)
        for item, session in items:
            session.n_full = 0
            if drafted and (item, session) in drafted:
                continue
            was_reading = session.n_past < session.n_prompt
            is_scored = item.phase is Phase.DECODE and session.scoring is not None
            n_tokens = rows.count(session) if is_scored else item.n_tokens
            session.progress(n_tokens, now)
            if was_reading:
                self._count_read(n_tokens)
                if item.phase is Phase.PREFILL and session.can_decode:
                    session.become(Phase.DECODE)
                if session.scoring is None:
                    self._cache.grew(session)
                self._prompt_progress.on_progress(session)
        if drafted:
            drafts = self._verify(rows, tokens, {session.sid: item.n_tokens for item, session in drafted}, known, now)
            accounting = self.accounting
            accounting.verified.append(Verified(accounting.unbooked[-1], self._n_kv - n_draft_kv, drafts))
            return
        for session, token in zip(rows, tokens, strict=True):
            if session.sid not in known:
                self._output.deliver(session, token, now)

    def _verify(
        self, rows: list[Session], tokens: Sequence[TokenId], n_rows: dict[int, int], known: set[int], now: int
    ) -> list[tuple[Draft, int, int]]:
        """Hand out the tokens that were drawn, those of drafts up to the first wrong one. Returns each draft with the
        numbers of its verified and accepted tokens.

        `n_rows`: the number of rows of each session with drafts.
        """
        row = 0
        drafts: list[tuple[Draft, int, int]] = []
        while row < len(rows):
            session = rows[row]
            n = n_rows.get(session.sid, 0)
            if n:
                n_accepted = self._accept(session, tokens[row : row + n], row, now)
                drafts.append((session.draft, n - 1, n_accepted))
                self._meters.on_drafts(*drafts[-1])
            elif session.sid not in known:
                self._output.deliver(session, tokens[row], now)
            row += n or 1
        return drafts

    def _accept(self, session: Session, tokens: Sequence[TokenId], first_row: int, now: int) -> int:
        """Hand out one session's tokens up to its first wrong draft. Returns how many drafts were accepted.

        `tokens`: drawn for the session's own row and its drafts' rows; NOT_DRAWN for rows after a wrong draft, and for
        rows whose token is drawn here.
        """
        drafts = session.draft.tokens[: len(tokens) - 1]
        n_accepted, session.n_drafted = 0, session.n_drafted + len(drafts)
        for i, token in enumerate(tokens):
            session.n_unverified = len(drafts) - i
            session.progress(1, now)
            drawn = self._engine.draw(first_row + i, session.sampler) if token == NOT_DRAWN else token
            is_accepted = i < len(drafts) and drawn == drafts[i]
            n_accepted += is_accepted
            session.n_accepted += is_accepted  # before `deliver`, which may end the session: its usage counts them all
            n_generated = len(session.generated)
            self._output.deliver(session, drawn, now)
            is_refused = session.phase is not Phase.DONE and len(session.generated) == n_generated  # by its grammar
            if is_refused and is_accepted:
                n_accepted, session.n_accepted = n_accepted - 1, session.n_accepted - 1
            if session.phase is not Phase.DECODE or not is_accepted or is_refused:
                break
        if session.phase is not Phase.DONE and session.n_unverified:
            self._engine.kv_truncate(session.seq_id, session.n_past)
            session.n_unverified = 0
        return n_accepted

    def _recover(self, items: Items, status: DecodeStatus, now: int) -> None:
        """Restore a known state after a call that failed. After FULL nothing changed. Otherwise some ubatches may have
        been computed: roll every sequence back to the positions that we know.
        """
        for _, session in items:
            error, seq_id, n_past = None, session.seq_id, session.n_past
            if status is DecodeStatus.FULL:
                session.n_full += len(items) == 1  # a call for several sessions is repeated for each: see `decode`
                if session.n_full > N_FULL_MOST:
                    error = UmaError(ErrorCode.KV_FULL)
            elif status is DecodeStatus.FATAL:
                error = UmaError(ErrorCode.DECODE_FAILED)
            elif status is DecodeStatus.BAD_BATCH:
                error = UmaError(ErrorCode.BAD_BATCH)
            elif self._engine.kv_len(seq_id) > n_past and not self._engine.kv_truncate(seq_id, n_past):
                error = UmaError(ErrorCode.DECODE_FAILED, "the call was stopped and this model cannot roll back")
            if error is not None:
                self._output.fail(session, error, now)

    # resumable prefill

    def prefill(self, item: PlanItem, session: Session, plan: Plan, cost: CostModel) -> None:
        """Open the chunk if it is new, then compute pieces of it, all in the planned time."""
        engine = self._engine
        self.t_returned_ns = 0  # what follows is not overhead between two decode calls
        self.announce()
        self._t_run_end_ns = self._clock.now_ns() + plan.run_ns
        if not session.n_chunk:
            try:
                n_tokens = self._open_chunk(item, session)
            except UmaError as error:  # no memory for its graph
                self._output.fail(session, error, self._clock.now_ns())
                return
            if not n_tokens:
                return
            session.n_chunk, session.chunk_fraction = n_tokens, 0.0
            session.touch()
            if self._clock.now_ns() + plan.quantum_ns > self._t_run_end_ns and not plan.min_pieces:
                return  # opening took too long: the first piece runs in the next tick
        outcome = engine.prefill_run(session.seq_id, self._t_run_end_ns, plan.quantum_ns, plan.min_pieces)
        now, n_chunk = self._clock.now_ns(), session.n_chunk
        share = outcome.fraction - session.chunk_fraction
        # otherwise the run says nothing about a chunk's time
        is_sound = outcome.n_pieces > 0 and outcome.status is not PrefillStatus.FAILED
        whole = cost.prefill_ns(n_chunk, session.n_past) if is_sound else 0
        self.accounting.add(
            CallReport(
                Phase.PREFILL,
                n_rows=round(n_chunk * share),
                n_kv=session.n_past,
                predicted_ns=round(whole * share),
                elapsed_ns=outcome.elapsed_ns,
                longest_ns=outcome.longest_ns,
                is_full=False,
                n_chunk=n_chunk,
                n_pieces=outcome.n_pieces,
                whole_ns=whole,
            ),
            session,
        )
        session.chunk_fraction = outcome.fraction
        session.touch()
        if outcome.n_pieces:  # a prefill slot that only fills must not hide that its prompt starves
            session.progress(0, now)
        if outcome.status is PrefillStatus.DONE and session.embedding is not None:
            self._end_embedded(session, session.embedding, now)
        elif outcome.status is PrefillStatus.DONE:
            self._end_chunk(item, session, now)
        elif outcome.status is PrefillStatus.FAILED:
            self._output.fail(session, UmaError(ErrorCode.DECODE_FAILED, "reading the prompt failed"), now)

    def _open_chunk(self, item: PlanItem, session: Session) -> int:
        """Open a chunk, or whole inputs of an embedding request. Returns their tokens; 0: all prefill slots are taken.

        A chunk of an embedding request never extends past the end of its input.
        """
        engine, embedding, seq_id = self._engine, session.embedding, session.seq_id
        if embedding is None:
            tokens = session.token_at(session.n_past, session.n_past + item.n_tokens)
            return item.n_tokens if engine.prefill_open(seq_id, tokens, item.want_logits) else 0
        if embedding.info.is_whole:
            inputs = embedding.call(item.n_tokens, engine.info.n_ubatch)
            return sum(map(len, inputs)) if engine.encode_open(seq_id, inputs, embedding.pooling) else 0
        tokens, rows = embedding.chunk(session.n_past, item.n_tokens)
        return len(tokens) if engine.prefill_open(seq_id, tokens, False, rows) else 0

    # inputs that become vectors

    def embed(self, item: PlanItem, session: Session) -> None:
        """Compute a chunk of an input where no chunk can pause: a decode call of its own, no longer than planned."""
        embedding, batch = session.embedding, self._batch
        assert embedding is not None
        if session.phase is Phase.DONE:
            return
        tokens, rows = embedding.chunk(session.n_past, item.n_tokens)
        self._last = None
        batch.clear()
        batch.starts_next = False
        batch.extend(tokens, session.n_past, session.seq_id, False)
        batch.want(rows)
        batch.want_hidden = rows is not Rows.NONE
        self._rows, self._samplers, self._n_kv = [], [], 0
        try:
            outcome = self._compute([session], len(tokens), session.n_past)
        finally:
            batch.want_hidden = False
        if outcome.status is not OK:
            self._recover([(item, session)], outcome.status, self._t_now_ns)
            return
        session.n_full = 0
        self._take_rows(
            session, embedding, len(tokens), lambda: self._engine.hidden() if rows is not Rows.NONE else NO_ROWS
        )

    def _end_embedded(self, session: Session, embedding: Embedding, now: int) -> None:
        n, seq_id = session.n_chunk, session.seq_id
        session.drop_chunk()
        if not embedding.info.is_whole:
            if not self._take_rows(session, embedding, n, lambda: self._engine.prefill_hidden(seq_id)):
                session.transfer = self._engine.publish_kv(seq_id)
                self._meters.kv_copied.add(session.transfer.n_bytes)
                session.touch()
            return
        self._meters.prefill_tokens.add(n)
        try:
            embedding.add_whole(self._engine.encode_result(seq_id))
        except UmaError as error:
            self._output.fail(session, error, now)
            return
        self._end_input(session, embedding)

    def _take_rows(self, session: Session, embedding: Embedding, n_tokens: int, rows: Callable[[], np.ndarray]) -> bool:
        """Take the hidden states of a computed chunk. True: its input, or the request, is finished."""
        now = self._clock.now_ns()
        session.progress(n_tokens, now)
        self._count_read(n_tokens)
        try:
            if not embedding.add(n_tokens, rows()):
                return False
        except UmaError as error:
            self._output.fail(session, error, now)
            return True
        self._end_input(session, embedding)
        return True

    def _end_input(self, session: Session, embedding: Embedding) -> None:
        self._engine.prefill_close(session.seq_id)
        self._engine.kv_truncate(session.seq_id, 0)
        now = self._clock.now_ns()
        session.t_progress_ns = now
        if embedding.is_done:
            self._output.finish(session, FinishReason.STOP, now)
        else:
            session.next_input()

    def _end_chunk(self, item: PlanItem, session: Session, now: int) -> None:
        session.drop_chunk()
        if self._see_hidden is not None and session.asks_model:
            states = self._engine.prefill_hidden(session.seq_id)
            self._see_hidden(session, session.n_past + item.n_tokens - len(states), states)
        session.progress(item.n_tokens, now)
        self._count_read(item.n_tokens)
        self._prompt_progress.on_progress(session)
        is_first = item.want_logits and not session.generated
        token = self._engine.prefill_sample(session.seq_id, self._sampler(session)) if is_first else -1
        # even if the session ends: the cache wants the chunk
        session.transfer = self._engine.publish_kv(session.seq_id)
        self._meters.kv_copied.add(session.transfer.n_bytes)
        session.touch()
        if session.can_decode:
            session.become(Phase.DECODE)
        can_wait = session.n_max > 1 and session.n_past < self._engine.info.n_ctx_seq  # else the context shifts first
        is_late = session.may_redraw or (session.priority is Priority.INTERACTIVE and can_wait)
        if is_first and is_late:  # a token that may be taken back has to wait for its prompt's KV
            session.first_token = token
        elif is_first:
            self._output.deliver(session, token, self._clock.now_ns())

    def _count_read(self, n_tokens: int) -> None:
        self._meters.prefill_tokens.add(n_tokens)
        self._meters.kv_bytes.add(n_tokens * self._engine.info.kv_bytes_per_cell)

    # transfers

    def transfers(self, sessions: Sequence[Session], budget_ns: int) -> None:
        """Move KV for the planned time, or until the planned end of a prefill run that ended early if that is later.

        The oldest session goes first. At least one slice is moved.
        """
        self.announce()
        until = max(self._clock.now_ns() + budget_ns, self._t_run_end_ns)
        self._t_run_end_ns = 0
        for session in sessions:
            if session.transfer is None:
                continue
            try:
                is_done = session.transfer.step(until)
            except UmaError as error:
                self._output.fail(session, error, self._clock.now_ns())
                continue
            if is_done:
                session.transfer.close()
                session.transfer = None
                session.progress(0, self._clock.now_ns())
                self._cache.grew(session)
            if self._clock.now_ns() >= until:
                return
