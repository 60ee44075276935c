"""One accepted request: its tokens, timers, text and its view for the policy.

Rules: owned by the compute thread; every change that the policy can see goes through a method that drops the
cached view; the state machine is TRANSITIONS and nothing else.
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
    """The decisions that acceptance made about a request."""

    priority: Priority
    n_max: int  # most tokens to generate
    now_ns: int
    echo: str = ""


class Matcher(Protocol):
    """Holds an answer to its grammar: `uma_core.constraint.matcher`."""

    mask: np.ndarray | None  # as Sampler.set_mask takes it, changed in place; None while everything may come
    forced: deque[TokenId]  # what comes next, where there is no choice; meanwhile the mask means nothing
    is_done: bool  # the answer is complete, and nothing may follow
    spent_ns: int  # by the last `accept`

    def accept(self, token: TokenId) -> None:
        """Go on by a token. Raises: CONSTRAINT_FAILED."""

    def takes(self, tokens: Sequence[TokenId]) -> bool:
        """Whether these may come next, one after the other; true while everything may."""

    def choose(self) -> None:
        """The next token is to be drawn though it is forced: bring the mask up to date. Raises: CONSTRAINT_FAILED."""

    def mark(self) -> Any:
        """Return the present state as far as `rewind` needs it."""

    def rewind(self, n: int, mark: Any) -> None:
        """The last n tokens were taken back; `mark` was taken before the first. Raises: CONSTRAINT_FAILED."""

    def fork(self) -> Matcher:
        """Another answer to the same request, from the beginning."""


# A token reads twenty of them with nothing in the processor's caches: as slots they lie side by side.
ATTRIBUTES = (
    "_view adapters ahead answer asks_model bans cache_version cached_hint cached_own cached_seq chunk_fraction "
    "client conn_id deadline_ns draft draft_rates drafts echo embedding first_sid first_token gaps_ns generated given "
    "group id index is_forced is_kv_good is_plain is_private is_shifting is_silent is_waiting priority logprob_sum "
    "logprobs looks_up matcher message_ends model_drafts n_accepted n_cached n_cells n_chunk n_drafted n_dropped "
    "n_folded n_full n_given n_head n_max n_past n_prompt n_rest n_seen n_settled n_unverified parked parts phase pid "
    "preserved_tokens prompt reason request restore_ns sampler scoring seed seq_id sid speculates stop_tokens "
    "t_admitted_ns t_back_ns t_first_ns t_held_ns t_last_ns t_progress_ns t_queued_ns t_received_ns text thinking "
    "transfer uid was_forced"
)


class Session:
    """See the module head. Times are monotonic ns; counts are tokens."""

    __slots__ = ATTRIBUTES.split()

    def __init__(
        self, sid: int, conn_id: int, request: Request, tokens: Sequence[TokenId] | np.ndarray, grant: Grant
    ) -> None:
        self.sid = sid
        self.conn_id = conn_id
        self.request = request
        self.id = request.id
        self.prompt = np.array(tokens, np.int32)  # what has to be read before the next token: see `reread`
        self.given = self.prompt  # of the request
        self.n_prompt = len(tokens)
        self.n_given = len(tokens)  # of the request
        self.generated: list[TokenId] = []
        self.n_folded = 0  # generated tokens that are part of `prompt`
        self.n_max = grant.n_max
        self.n_cells = self.n_prompt + grant.n_max
        self.index = -1  # of several answers to its request
        self.group: Any = None  # which hold together in this
        self.is_waiting = False  # for another one to have read the prompt: the policy does not see it
        self.first_sid = sid  # of those that share a prompt
        self.uid = self.pid = -1
        self.adapters: AdapterSet = ()  # LoRA adapters that it is computed with
        self.priority = grant.priority
        self.client = -1
        self.phase = Phase.QUEUED
        self.seq_id = -1
        self.n_past = 0
        self.n_cached = 0
        self.n_seen = 0  # most positions so far: what comes back after parking was not cached
        self.cached_hint = 0
        self.restore_ns = 0
        self.cached_seq = -1
        self.cached_own = 0
        self.cache_version = 0  # of the tree that the four were read from
        self.is_private = False  # nothing of it is cached for others: decided once, whatever a reload changes meanwhile
        self.parked: Any = None  # the cache's hold on a parked session's content
        self.is_shifting = False  # generation goes on past the context's end ...
        self.n_head = 0  # ... keeping this many tokens in front
        self.n_dropped = 0  # tokens of the request that were left out, for its prompt exceeded the context
        self.n_chunk = 0
        self.chunk_fraction = 0.0
        self.n_full = 0  # decode calls in a row that found no cells for it
        self.t_held_ns = 0  # since when its reader has fallen behind; 0: it has not
        self.transfer: Transfer | None = None
        self.embedding: Embedding | None = None  # an embed or rerank request: `prompt` is the present input
        self.first_token: TokenId | None = None  # handed out when the second one is about to be computed
        self.sampler: Sampler | None = None
        self.scoring: Scoring | None = None  # while the log probabilities of its prompt are found
        self.thinking: Thinking | None = None
        self.is_plain = False  # nothing but the text of its tokens is wanted: Output.open_sampler
        self.was_forced = False  # the end of its thought
        self.is_forced = False  # the next token, which its sampler has been told
        self.matcher: Matcher | None = None  # what holds it to a grammar
        self.speculates = self.looks_up = False  # draft tokens may be used; they may be looked for in texts
        self.drafts: Any = None  # where they come from: a uma_core.speculation.speculator.DraftSource
        self.draft = NO_DRAFT
        self.asks_model = False  # the draft model may draft for it
        self.model_drafts: Any = None  # what it drafts with: a uma_core.speculation.model.ModelSource
        self.draft_rates: tuple[float, ...] = ()  # how likely what it would draft now is to be drawn
        self.ahead = 0.0  # tokens that drafts have brought it beyond what longer steps took from it
        self.n_settled = 0  # tokens that are in this
        self.n_drafted = self.n_accepted = 0  # draft tokens that were verified, and of them those that held
        self.n_unverified = 0  # positions of its sequence after n_past: drafts that are not accepted yet
        self.n_rest = 0  # ticks to skip, for its grammar took long
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
        # instead of `text`, where tokens matter one by one
        self.answer = Answer(request.stop, banned) if is_watched else None
        self.bans = Bans(grant.n_max) if banned else None
        self.logprob_sum = 0.0  # of its tokens, where answers are ranked or report their log probabilities
        self.logprobs: list[TokenLogprob] = []  # those kept for a request that does not stream
        self.preserved_tokens = frozenset(request.preserved_tokens)
        self.stop_tokens = frozenset(request.sampling.stop_token_ids)
        self.echo = grant.echo  # what is to be sent before its first text
        self.parts: list[str] = []  # text kept for a request that does not stream
        self.seed = request.sampling.seed if request.sampling.seed is not None else random.getrandbits(32)
        self.message_ends: tuple[int, ...] = ()
        self.t_received_ns = self.t_queued_ns = grant.now_ns
        self.t_admitted_ns = 0
        self.t_back_ns = 0  # when it came back after parking
        self.t_first_ns = 0
        self.t_last_ns = 0
        self.t_progress_ns = grant.now_ns
        self.deadline_ns = grant.now_ns + request.timeout_ns if request.timeout_ns else 0
        self.gaps_ns: list[int] = []
        self.reason: FinishReason | None = None
        self.is_kv_good = False  # also after the error that ended it
        self._view: SessionView | None = None

    def touch(self) -> None:
        """The view is stale."""
        self._view = None

    @property
    def is_held(self) -> bool:
        """Whether its slow reader pauses the session."""
        return self.t_held_ns > 0

    def hold(self, is_held: bool, now_ns: int) -> None:
        """Pause the session, or let it go on. The time since which it is held does not change if it is already held."""
        self.t_held_ns = (self.t_held_ns or now_ns) if is_held else 0
        self._view = None

    def drop_chunk(self) -> None:
        """Give up what a paused chunk has computed."""
        self.n_chunk, self.chunk_fraction = 0, 0.0
        self._view = None

    def become(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"session {self.sid}: {self.phase.name} -> {phase.name}"
        self.phase = phase
        self._view = None

    @property
    def next_token(self) -> TokenId:
        """The token whose KV the next decode call computes: the last one that was generated, or the prompt's last."""
        return self.generated[-1] if self.generated else int(self.prompt[-1])

    @property
    def is_at_its_last(self) -> bool:
        """The next token is the last one that it may have."""
        return len(self.generated) + 1 >= self.n_max

    @property
    def n_draft_most(self) -> int:
        """Draft tokens for which there is room: the call draws one more token than it verifies."""
        return max(0, min(self.n_max - len(self.generated) - 1, self.n_cells - self.n_past - 1))

    @property
    def forced(self) -> Sequence[TokenId]:
        """What comes next, where a grammar or the end of a thought leaves no choice."""
        if self.thinking is not None and self.thinking.forced:
            return self.thinking.forced
        return self.matcher.forced if self.matcher is not None else ()

    @property
    def draws_one_by_one(self) -> bool:
        """Every token decides how the next one is drawn, by more than its sampler knows: drafts' tokens are drawn by
        calls of their own.
        """
        return self.matcher is not None or self.answer is not None or self.thinking is not None

    @property
    def can_decode(self) -> bool:
        """All is computed up to `next_token`: the rest of the prompt, if it is a token, is a row like any other."""
        return self.embedding is None and self.n_past >= self.n_prompt - (not self.generated)

    @property
    def is_rereading(self) -> bool:
        """Its prompt ends with tokens that it generated: the last logits are known already."""
        return self.phase is Phase.PREFILL and bool(self.generated)

    def token_at(self, start: int, end: int) -> np.ndarray:
        """(end - start,) int32 of prompt and generated tokens by position."""
        return self.prompt[start:end] if end <= self.n_prompt else self.content(end)[start:]

    def content(self, n: int) -> np.ndarray:
        """Return (n,) int32: the tokens of the first n positions."""
        if n <= self.n_prompt:
            return self.prompt[:n]
        return np.concatenate(
            [self.prompt, np.array(self.generated[self.n_folded : self.n_folded + n - self.n_prompt], np.int32)]
        )

    def score(self, scoring: Scoring) -> None:
        """Read the prompt token by token from now on. Only before the session has a sequence."""
        self.scoring = scoring
        self.prompt, self.n_prompt = scoring.tokens[:1], 1
        self._view = None

    def read_on(self, now_ns: int) -> bool:
        """One more token of a prompt that is scored may be read. True: it is the last one."""
        assert self.scoring is not None
        self.n_prompt += 1
        self.prompt = self.scoring.tokens[: self.n_prompt]
        self.t_last_ns = self.t_progress_ns = now_ns
        self._view = None
        return self.n_prompt == len(self.scoring.tokens)

    @property
    def n_content(self) -> int:
        """Positions up to and with the last token that there is, computed or not."""
        return self.n_prompt + len(self.generated) - self.n_folded

    def text_without(self, n: int) -> np.ndarray:
        """Return the prompt as it was given and the answer, without the last n tokens, whatever the context dropped."""
        return np.concatenate([self.given, np.array(self.generated[: len(self.generated) - n], np.int32)])

    def take_back(self, n: int, tokens: np.ndarray) -> None:
        """Forget the last n generated tokens: `tokens` are left, to be read again as far as their KV is gone."""
        del self.generated[len(self.generated) - n :]
        self.reread(tokens[:-1] if self.generated else tokens)

    def fold(self) -> None:
        """Make all positions that the next token needs part of the prompt, so that they can be restored or read
        again.
        """
        if self.generated:
            self.reread(self.content(self.n_prompt + len(self.generated) - 1 - self.n_folded))

    def reread(self, tokens: np.ndarray) -> None:
        """Read these tokens before the next one: they stand for everything up to it."""
        self.prompt, self.n_prompt = tokens, len(tokens)
        self.n_folded = max(0, len(self.generated) - 1)
        self.cache_version = 0
        self._view = None

    def next_input(self) -> None:
        """Compute the present input of an embedding, from its beginning."""
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
        """Note that n more positions are computed."""
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
        """The mean log probability of the answer's tokens."""
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
