"""The FakeEngine's language: one token per byte, texts that depend on everything before them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from uma_core.engine.api import Logprobs
from uma_core.types import SamplingParams, TokenId

BOS, EOG = 256, 257
CONTROL = {BOS: b"<bos>", EOG: b"<eog>"}
N_VOCAB = 258
MASK = (1 << 64) - 1
START = 0x9E3779B97F4A7C15
ALPHABET = b"etaoin shrdlu cmfwyp vbgkqjxz"
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}{% if add_generation_prompt "
    "%}<|assistant|>{% endif %}"
)
_SPECIAL = re.compile(r"(<bos>|<eog>)")


def encode(text: str, add_special: bool, parse_special: bool) -> list[TokenId]:
    """One token per UTF-8 byte; also `<bos>` and `<eog>` if special tokens are parsed."""
    out: list[TokenId] = [BOS] if add_special else []
    for part in _SPECIAL.split(text) if parse_special else [text]:
        if parse_special and part in ("<bos>", "<eog>"):
            out.append(BOS if part == "<bos>" else EOG)
        else:
            out.extend(part.encode("utf-8"))
    return out


def piece_of(token: TokenId) -> bytes:
    return bytes([token]) if 0 <= token < 256 else b""


def advance(state: int, token: TokenId) -> int:
    """Hash of a sequence after one more token."""
    mixed = ((state ^ (token + 1)) * 0xBF58476D1CE4E5B9) & MASK
    return mixed ^ (mixed >> 29)


def next_token(state: int, eog_every: int) -> TokenId:
    """The greedy continuation of a sequence with this hash."""
    if eog_every and (state >> 40) % eog_every == 0:
        return EOG
    return ALPHABET[(state >> 16) % len(ALPHABET)]


def row_logits(token: TokenId) -> np.ndarray:
    """(N_VOCAB,) float32 whose argmax is `token`."""
    row = np.linspace(-1.0, 0.0, N_VOCAB, dtype=np.float32)
    row[token] = 10.0
    return row


class FakeSampler:
    """Greedy, or a choice that depends on seed and content alone. If that token is not allowed, an allowed one."""

    def __init__(self, params: SamplingParams, seed: int) -> None:
        self.params = params
        self.seed = seed
        self.accepted: list[TokenId] = []
        self.is_closed = False
        self._mask: np.ndarray | None = None
        self._early = (EOG, *params.stop_token_ids)
        self._is_early = params.min_tokens > 0
        self._forced: TokenId | None = None
        self.n_drawn = 0
        self.n_forced = 0
        self._here: tuple[TokenId, ...] = ()
        self._logprobs: Logprobs | None = None

    def accept(self, tokens: np.ndarray) -> None:
        self.accepted += [int(token) for token in tokens]

    def set_mask(self, mask: np.ndarray | None) -> None:
        if mask is not None and mask.nbytes != 4 * -(-N_VOCAB // 32):
            raise ValueError(f"a mask of {mask.nbytes} bytes")
        self._mask = mask

    def allow_end(self, is_allowed: bool = True) -> None:
        self._is_early = not is_allowed and self.params.min_tokens > 0

    def ban(self, tokens: Sequence[TokenId]) -> None:
        self._here = tuple(tokens)

    def force(self, token: TokenId | None) -> bool:
        if token is not None and self._bias()[token] == -np.inf:
            return False
        self._forced = token
        return True

    def recount(self, tokens: np.ndarray) -> None:
        self.accepted = [int(token) for token in tokens]

    def logprobs(self) -> Logprobs | None:
        return self._logprobs

    def choose(self, state: int, greedy: TokenId) -> TokenId:
        self.n_drawn += self._forced is None
        self.n_forced += self._forced is not None
        token = self._allowed(state, self._wanted(state, greedy)) if self._forced is None else self._forced
        if token >= 0 and self.params.logprobs is not None:
            self._logprobs = self._weigh(row_logits(greedy), token, self.params.logprobs)
        return token

    def _wanted(self, state: int, greedy: TokenId) -> TokenId:
        if self.params.temperature <= 0.0 or greedy == EOG:
            return greedy
        return ALPHABET[(advance(state, self.seed & 0xFFFF) >> 20) % len(ALPHABET)]

    def _allowed(self, state: int, wanted: TokenId) -> TokenId:
        """The wanted token, or one that a bias puts above it, or another by the content alone; -1: there is none."""
        params, bias = self.params, self._bias()
        if self._mask is not None:
            bias[np.unpackbits(self._mask.view(np.uint8), bitorder="little")[:N_VOCAB] == 0] = -np.inf
        best = int((row_logits(wanted) + bias).argmax())
        if np.isfinite(bias[wanted]) or bias[best] > 0:
            return best
        others = np.flatnonzero(np.isfinite(bias))
        seed = self.seed & 0xFFFF if params.temperature > 0.0 else 0
        return int(others[(advance(state, seed) >> 20) % len(others)]) if len(others) else -1

    def _bias(self) -> np.ndarray:
        bias = np.zeros(N_VOCAB)
        for token, value in self.params.logit_bias:
            bias[int(token)] += value
        bias[[*(self._early if self._is_early else ()), *self._here, *([EOG] if self.params.ban_eog else [])]] = -np.inf
        return bias

    def _weigh(self, row: np.ndarray, token: TokenId, n_top: int) -> Logprobs:
        if self.params.post_sampling_probs:
            return Logprobs(0.0, ((token, 0.0),)[:n_top])
        logs = row - np.log(np.exp(row.astype(np.float64)).sum())
        top = np.argsort(-logs, kind="stable")[:n_top]
        return Logprobs(float(logs[token]), tuple((int(i), float(logs[i])) for i in top))

    def close(self) -> None:
        self.is_closed = True
