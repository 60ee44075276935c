"""One accepted request: its tokens, timers and text, and its view for the policy.

Rules: owned by the compute thread; every change that the policy can see goes through a method that drops the cached
view; TRANSITIONS is the whole state machine.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from uma_core.engine.api import Sampler, Transfer
from uma_core.policy.state import SessionView
from uma_core.session.answer import Answer
from uma_core.session.bans import Bans
from uma_core.session.draft import NO_DRAFT
from uma_core.session.embedding import Embedding
from uma_core.session.reasoning import Thinking
from uma_core.session.scoring import Scoring
from uma_core.session.text import TextStream
from uma_core.types import AdapterSet, FinishReason, Phase, Priority, Request, TokenId, TokenLogprob

TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.PREFILL, Phase.DONE}),
    Phase.PREFILL: frozenset({Phase.DECODE, Phase.PARKED, Phase.DONE}),
    Phase.DECODE: frozenset({Phase.PREFILL, Phase.PARKED, Phase.DONE}),  # PREFILL: the context was shifted
    Phase.PARKED: frozenset({Phase.PREFILL, Phase.DECODE, Phase.DONE}),
    Phase.DONE: frozenset(),
}


class Grant(NamedTuple):
    """What was decided about a request when it was accepted."""

    priority: Priority
    n_max: int  # most tokens to generate
    now_ns: int
    echo: str = ""


class Matcher(Protocol):
    """Makes an answer follow its grammar; see `uma_core.constraint.matcher`."""

    mask: np.ndarray | None  # as Sampler.set_mask takes it, changed in place; None: any token may come
    forced: deque[TokenId]  # the next tokens, if there is no choice; the mask is not valid meanwhile
    is_done: bool  # the answer is complete, and nothing may follow
    spent_ns: int  # time of the last `accept`

    def accept(self, token: TokenId) -> bool:
        """Take one more token. False: the grammar refuses it, and nothing has changed. Raises: CONSTRAINT_FAILED."""

    def takes(self, tokens: Sequence[TokenId]) -> bool:
        """Whether these tokens may come next, one after the other; true while any token may come."""

    def choose(self) -> None:
        """Update the mask, because the next token will be drawn although it is forced. Raises: CONSTRAINT_FAILED."""

    def mark(self) -> Any:
        """Return the present state as far as `rewind` needs it."""

    def rewind(self, n: int, mark: Any) -> None:
        """Take back the last n tokens; `mark` was taken before the first of them. Raises: CONSTRAINT_FAILED."""

    def fork(self) -> Matcher:
        """Return a matcher for another answer to the same request, at the beginning."""


# A token reads twenty of these when the processor's caches are empty; slots lie side by side in memory.
ATTRIBUTES = (
    "_view adapters ahead answer asks_model bans cache_version cached_hint cached_own cached_seq chunk_fraction "
    "client conn_id deadline_ns draft draft_rates drafts echo embedding first_sid first_token gaps_ns generated given "
    "group id index is_forced is_kv_good is_plain is_private is_shifting is_silent is_waiting priority logprob_sum "
    "logprobs looks_up matcher message_ends model_drafts n_accepted n_cached n_cells n_chunk n_drafted n_dropped "
    "n_folded n_full n_given n_head n_max n_model_begun n_past n_prompt n_rereads n_rest n_seen "
    "n_counted n_told n_unverified parked parts phase pid preserved_tokens prompt reason request restore_ns sampler "
    "scoring seed seq_id sid speculates stop_tokens t_admitted_ns t_back_ns t_first_ns t_held_ns t_last_ns "
    "t_progress_ns t_queued_ns t_received_ns text thinking transfer uid was_forced"
)


class Session:
    """See the module docstring. Times are monotonic ns; counts are tokens."""

    __slots__ = ATTRIBUTES.split()

    def __init__(
        self, sid: int, conn_id: int, request: Request, tokens: Sequence[TokenId] | np.ndarray, grant: Grant
    ) -> None:
        self.sid = sid
        self.conn_id = conn_id
        self.request = request
        self.id = request.id
        self.prompt = np.array(tokens, np.int32)  # the tokens to read before the next one is drawn: see `reread`
        self.given = self.prompt  # the request's prompt
        self.n_prompt = len(tokens)
        self.n_given = len(tokens)  # length of the request's prompt
        self.generated: list[TokenId] = []
        self.n_folded = 0  # generated tokens that are part of `prompt`
        self.n_rereads = 0  # times that `prompt` became other tokens than the request's: see `reread`
        self.n_max = grant.n_max
        self.n_cells = self.n_prompt + grant.n_max
        self.index = -1  # of this answer, if its request has several
        self.group: Any = None  # links the answers of one request
        self.is_waiting = False  # for another answer to read the prompt: the policy does not see this one
        self.first_sid = sid  # of the sessions that share a prompt
        self.uid = self.pid = -1
        self.adapters: AdapterSet = ()  # LoRA adapters that it uses
        self.priority = grant.priority
        self.client = -1
        self.phase = Phase.QUEUED
        self.seq_id = -1
        self.n_past = 0
        self.n_cached = 0
        self.n_seen = 0  # most positions so far; those restored after parking do not count as cached
        self.cached_hint = 0
        self.restore_ns = 0
        self.cached_seq = -1
        self.cached_own = 0
        self.cache_version = 0  # tree version that these four belong to
        self.is_private = False  # others may not reuse its KV; decided once, whatever a reload changes
        self.parked: Any = None  # what the cache holds for a parked session
        self.is_shifting = False  # generation continues past the end of the context ...
        self.n_head = 0  # ... and keeps this many tokens at the front
        self.n_dropped = 0  # prompt tokens that were dropped because the prompt exceeded the context
        self.n_chunk = 0
        self.chunk_fraction = 0.0
        self.n_full = 0  # consecutive ticks in which a call for it alone found no cells
        self.t_held_ns = 0  # since when its reader has been too slow; 0: it is not
        self.transfer: Transfer | None = None
        self.embedding: Embedding | None = None  # for embed and rerank: `prompt` is the current input
        self.first_token: TokenId | None = None  # delivered when the second one is about to be computed
        self.sampler: Sampler | None = None
        self.scoring: Scoring | None = None  # set while the log probabilities of its prompt are computed
        self.thinking: Thinking | None = None
        self.is_plain = False  # only the text of its tokens is needed: see Output.open_sampler
        self.was_forced = False  # the end of its thought was forced
        self.is_forced = False  # the next token is forced, and its sampler knows it
        self.matcher: Matcher | None = None  # enforces its grammar
        self.speculates = self.looks_up = False  # draft tokens may be used; they may come from lookups
        self.drafts: Any = None  # uma_core.speculation.speculator.DraftSource for lookups
        self.draft = NO_DRAFT
        self.asks_model = False  # the draft model may draft for it
        self.model_drafts: Any = None  # uma_core.speculation.model.ModelSource
        self.n_model_begun = -1  # `n_rereads` when that was opened; -1: it can be opened
        self.draft_rates: tuple[float, ...] = ()  # probability that each token drafted now is drawn
        self.ahead = 0.0  # tokens gained by drafts, less those that longer steps cost
        self.n_counted = 0  # generated tokens that `ahead` includes
        self.n_drafted = self.n_accepted = 0  # draft tokens that were verified, and those of them that were accepted
        self.n_unverified = 0  # positions of its sequence after n_past: drafts not accepted yet
        self.n_told = 0  # generated tokens that the events of its text stand for
        self.n_rest = 0  # ticks to skip because its grammar took long
        self.text = TextStream(request.stop)
        is_ranked = request.best_of > request.n
        sampling = request.sampling
        self.is_silent = request.max_tokens == 0  # only its prompt is read
        banned = request.banned_strings
        is_watched = (
            sampling.logprobs is not None
            or sampling.min_tokens > 0
            or is_ranked
            or request.echo
            or self.is_silent
            or banned
        )
        # used instead of `text` if tokens matter one by one
        self.answer = Answer(request.stop, banned) if is_watched else None
        self.bans = Bans(grant.n_max) if banned else None
        self.logprob_sum = 0.0  # of its tokens, if answers are ranked or report log probabilities
        self.logprobs: list[TokenLogprob] = []  # kept until the end if the request does not stream
        self.preserved_tokens = frozenset(request.preserved_tokens)
        self.stop_tokens = frozenset(request.sampling.stop_token_ids)
        self.echo = grant.echo  # text to send before its first text
        self.parts: list[str] = []  # text kept until the end if the request does not stream
        self.seed = request.sampling.seed if request.sampling.seed is not None else random.getrandbits(32)
        self.message_ends: tuple[int, ...] = ()
        self.t_received_ns = self.t_queued_ns = grant.now_ns
        self.t_admitted_ns = 0
        self.t_back_ns = 0  # when it last came back after parking
        self.t_first_ns = 0
        self.t_last_ns = 0
        self.t_progress_ns = grant.now_ns
        self.deadline_ns = grant.now_ns + request.timeout_ns if request.timeout_ns else 0
        self.gaps_ns: list[int] = []
        self.reason: FinishReason | None = None
        self.is_kv_good = False  # its KV can be reused even after the error that ended it
        self._view: SessionView | None = None

    def touch(self) -> None:
        """Mark the view as stale."""
        self._view = None

    @property
    def is_held(self) -> bool:
        """Whether the session is paused because its reader is slow."""
        return self.t_held_ns > 0

    def hold(self, is_held: bool, now_ns: int) -> None:
        """Pause or resume the session. A session that is already held keeps its start time."""
        self.t_held_ns = (self.t_held_ns or now_ns) if is_held else 0
        self._view = None

    def drop_chunk(self) -> None:
        """Forget the chunk: it is complete, or what it has computed is discarded."""
        self.n_chunk, self.chunk_fraction = 0, 0.0
        self._view = None

    def become(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"session {self.sid}: {self.phase.name} -> {phase.name}"
        self.phase = phase
        self._view = None

    @property
    def next_token(self) -> TokenId:
        """Return the token whose KV the next decode call computes: the last generated one, or the prompt's last."""
        return self.generated[-1] if self.generated else int(self.prompt[-1])

    @property
    def is_at_its_last(self) -> bool:
        """Whether the next token is the last that it may generate."""
        return len(self.generated) + 1 >= self.n_max

    @property
    def n_draft_most(self) -> int:
        """Return how many draft tokens have room. A call draws one token more than it verifies."""
        return max(0, min(self.n_max - len(self.generated) - 1, self.n_cells - self.n_past - 1))

    @property
    def forced(self) -> Sequence[TokenId]:
        """Return the next tokens, if a grammar or the end of a thought leaves no choice."""
        if self.thinking is not None and self.thinking.forced:
            return self.thinking.forced
        return self.matcher.forced if self.matcher is not None else ()

    @property
    def draws_one_by_one(self) -> bool:
        """Whether each token affects how the next one is drawn beyond what its sampler knows. The tokens of drafts are
        then drawn in separate calls.
        """
        return self.matcher is not None or self.answer is not None or self.thinking is not None

    @property
    def may_redraw(self) -> bool:
        """Whether another token may be drawn in the place of the next one."""
        return self.bans is not None or (self.matcher is not None and self.matcher.mask is None)

    @property
    def n_released(self) -> int:
        """Return the number of generated tokens, without those that may be taken back."""
        return len(self.generated) - (self.answer.n_pending if self.answer is not None else 0)

    @property
    def can_decode(self) -> bool:
        """Whether everything before `next_token` is computed. A prompt's last token is then a row like any other."""
        return self.embedding is None and self.n_past >= self.n_prompt - (not self.generated)

    @property
    def is_rereading(self) -> bool:
        """Whether it reads tokens again that it generated: the logits of the last one are already known."""
        return self.phase is Phase.PREFILL and bool(self.generated)

    def token_at(self, start: int, end: int) -> np.ndarray:
        """Return (end - start,) int32: prompt and generated tokens by position."""
        return self.prompt[start:end] if end <= self.n_prompt else self.content(end)[start:]

    def content(self, n: int) -> np.ndarray:
        """Return (n,) int32: the tokens of the first n positions."""
        if n <= self.n_prompt:
            return self.prompt[:n]
        return np.concatenate(
            [self.prompt, np.array(self.generated[self.n_folded : self.n_folded + n - self.n_prompt], np.int32)]
        )

    def score(self, scoring: Scoring) -> None:
        """Read the prompt token by token. Call it only before the session has a sequence."""
        self.scoring = scoring
        self.prompt, self.n_prompt = scoring.tokens[:1], 1
        self._view = None

    def read_on(self, now_ns: int) -> bool:
        """Let one more token of a scored prompt be read. True: it is the last one."""
        assert self.scoring is not None
        self.n_prompt += 1
        self.prompt = self.scoring.tokens[: self.n_prompt]
        self.t_last_ns = self.t_progress_ns = now_ns
        self._view = None
        return self.n_prompt == len(self.scoring.tokens)

    @property
    def n_content(self) -> int:
        """Return the number of positions up to and including the last token, computed or not."""
        return self.n_prompt + len(self.generated) - self.n_folded

    def text_without(self, n: int) -> np.ndarray:
        """Return the request's prompt and the answer without its last n tokens, including what the context dropped."""
        return np.concatenate([self.given, np.array(self.generated[: len(self.generated) - n], np.int32)])

    def take_back(self, n: int, tokens: np.ndarray) -> None:
        """Drop the last n generated tokens. `tokens` are left, and are read again as far as their KV is gone."""
        del self.generated[len(self.generated) - n :]
        self.reread(tokens[:-1] if self.generated else tokens)

    def fold(self) -> None:
        """Make all positions before the next token part of the prompt, so that they can be restored or read again."""
        if self.generated:
            self.reread(self.content(self.n_prompt + len(self.generated) - 1 - self.n_folded))

    def reread(self, tokens: np.ndarray) -> None:
        """Read these tokens, which are everything before the next one."""
        self.prompt, self.n_prompt = tokens, len(tokens)
        self.n_rereads += 1
        self.n_folded = max(0, len(self.generated) - 1)
        self.cache_version = 0
        self._view = None

    def next_input(self) -> None:
        """Start on the current input of an embedding."""
        assert self.embedding is not None
        self.embedding.restart()
        self.prompt = self.embedding.current
        self.n_prompt, self.n_past = len(self.prompt), 0
        self._view = None

    def add_token(self, token: TokenId, now_ns: int) -> None:
        self.generated.append(token)
        if self.t_first_ns:
            self.gaps_ns.append(now_ns - self.t_last_ns)
        else:
            self.t_first_ns = now_ns
        self.t_last_ns = self.t_progress_ns = now_ns
        self._view = None

    def progress(self, n_tokens: int, now_ns: int) -> None:
        """Record that n more positions are computed."""
        self.n_past += n_tokens
        self.t_progress_ns = now_ns
        self._view = None

    def view(self) -> SessionView:
        view = self._view
        if view is None:
            slo = self.request.slo
            view = self._view = SessionView(
                sid=self.sid,
                seq_id=self.seq_id,
                client=self.client,
                priority=self.priority,
                phase=self.phase,
                n_prompt=self.n_prompt if self.embedding is None else self.n_prompt + self.embedding.n_later,
                n_past=self.n_past,
                n_cached=self.n_cached,
                n_generated=len(self.generated),
                n_max=self.n_max,
                n_cells=self.n_cells,
                n_chunk=self.n_chunk,
                chunk_fraction=self.chunk_fraction,
                is_ready=not self.n_rest and not self.t_held_ns and self.transfer is None,
                is_transferring=self.transfer is not None,
                t_queued_ns=self.t_queued_ns,
                t_first_ns=self.t_first_ns,
                t_last_ns=self.t_last_ns,
                t_progress_ns=self.t_progress_ns,
                slo_ttft_ns=slo.ttft_ns,
                slo_tbt_ns=slo.tbt_ns,
                cached_hint=self.cached_hint,
                restore_ns=self.restore_ns,
                cached_seq=self.cached_seq,
                cached_own=self.cached_own,
                t_back_ns=self.t_back_ns,
                t_held_ns=self.t_held_ns,
                adapters=self.adapters,
                is_embedding=self.embedding is not None,
                survival=self.draft.survival,
                draft_rates=self.draft_rates,
                ahead=self.ahead,
            )
        return view

    @property
    def likelihood(self) -> float:
        """Return the mean log probability of the answer's tokens."""
        return self.logprob_sum / len(self.generated) if self.generated else float("-inf")

    def usage(self) -> dict[str, int]:
        usage = {
            "prompt_tokens": self.n_given,
            "cached_tokens": self.n_cached,
            "completion_tokens": len(self.generated),
        }
        if self.n_drafted:
            usage["accepted_prediction_tokens"] = self.n_accepted
            usage["rejected_prediction_tokens"] = self.n_drafted - self.n_accepted
        if self.thinking is not None:
            usage["reasoning_tokens"] = self.thinking.n_tokens
        return {**usage, "dropped_tokens": self.n_dropped} if self.n_dropped else usage

    def timing(self, now_ns: int) -> dict[str, float]:
        gaps = sorted(self.gaps_ns)
        ms = 1e-6
        return {
            "queue_ms": round(((self.t_admitted_ns or now_ns) - self.t_received_ns) * ms, 3),
            "ttft_ms": round((self.t_first_ns - self.t_received_ns) * ms, 3) if self.t_first_ns else 0.0,
            "total_ms": round((now_ns - self.t_received_ns) * ms, 3),
            "itl_p50_ms": round(gaps[len(gaps) // 2] * ms, 3) if gaps else 0.0,
            "itl_max_ms": round(gaps[-1] * ms, 3) if gaps else 0.0,
        }
