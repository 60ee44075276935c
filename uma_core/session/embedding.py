"""An embed or rerank request in progress: which input is next, and the results so far.

Rules: owned by the compute thread. Inputs are computed in order. If the engine cuts them into chunks, they are computed
one by one, and the parts of each chunk that pooling needs are kept here. If it computes whole inputs, a call takes as
many as fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uma_core.engine.api import ROWS_OF, EmbeddingInfo, Rows
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import Embed

BASE64_BYTES, TEXT_BYTES = 16 / 3, 16  # upper bound per number in a reply
SCORE_BYTES = 64  # per result of a rerank


class Pool:
    """Collects the hidden states of one input, chunk by chunk, and pools them into one vector."""

    def __init__(self, pooling: str) -> None:
        self.pooling = pooling
        self.n_tokens = 0  # tokens of the chunks added so far
        self._sum: np.ndarray | None = None
        self._rows: list[np.ndarray] = []

    def wants(self, start: int, n_left: int) -> Rows:
        """Return which rows are needed of the chunk that begins at `start` and leaves `n_left` tokens of the input."""
        rows = ROWS_OF[self.pooling]
        if (rows is Rows.FIRST and start) or (rows is Rows.LAST and n_left):
            return Rows.NONE
        return rows

    def add(self, n_tokens: int, rows: np.ndarray) -> None:
        self.n_tokens += n_tokens
        if self.pooling == "mean":
            part = rows.sum(0, dtype=np.float64)
            self._sum = part if self._sum is None else self._sum + part
        elif len(rows):
            self._rows.append(rows)

    def take(self) -> np.ndarray:
        """Return (1, n_embd) float32, or without pooling one row per token."""
        if self._sum is not None:
            return (self._sum / self.n_tokens).astype(np.float32)[None]
        return np.concatenate(self._rows)


class Embedding:
    """`vectors`: the results so far, in the order of the inputs."""

    def __init__(self, wanted: Embed, tokens: np.ndarray, ends: Sequence[int], info: EmbeddingInfo) -> None:
        """`tokens`: all inputs concatenated, (n,) int32; `ends`: where each input ends. Arrays, so that even thousands
        of inputs do not delay a tick.

        Raises: UNSUPPORTED, BAD_REQUEST, PROMPT_TOO_LARGE.
        """
        self.wanted = wanted
        self.info = info
        self.pooling = "rank" if wanted.op == "rerank" else wanted.pooling or info.pooling
        if self.pooling not in info.poolings:
            why = "it has no classifier" if self.pooling == "rank" else "its pooling is fixed"
            raise UmaError(
                ErrorCode.UNSUPPORTED,
                f"this model cannot do pooling {self.pooling}: {why}",
                pooling=self.pooling,
                known=list(info.poolings),
            )
        self.n_width = info.n_scores if self.pooling == "rank" else info.n_embd
        if wanted.dimensions > self.n_width:
            raise UmaError(
                ErrorCode.BAD_REQUEST,
                f"`dimensions`: this model's vectors have {self.n_width}",
                field="dimensions",
                limit=self.n_width,
            )
        self._tokens = tokens
        given = np.diff(np.array(ends, np.int64), prepend=0)
        self._check_lengths(given)
        self._starts, self._given = (np.array(ends, np.int64) - given).tolist(), given.tolist()
        fitted = np.minimum(given, info.n_input)
        self.longest = int(fitted.max())
        self._ends: list[int] = np.cumsum(fitted).tolist()
        self.n_inputs, self.n_tokens = len(ends), self._ends[-1]
        self._check_size()
        self.vectors: list[np.ndarray] = []
        self.pool = self._new_pool()

    def _check_lengths(self, lengths: np.ndarray) -> None:
        limit = self.info.n_input
        if lengths.min() < 1:
            index = int(lengths.argmin())
            raise UmaError(ErrorCode.BAD_REQUEST, f"input {index} has no tokens", field=self._field, index=index)
        if lengths.max() > limit and not self.wanted.truncate:
            index = int((lengths > limit).argmax())
            message = f"input {index} has {lengths[index]} tokens, the model takes {limit}"
            raise UmaError(ErrorCode.PROMPT_TOO_LARGE, message, index=index, n_tokens=int(lengths[index]), limit=limit)

    def input(self, index: int) -> np.ndarray:
        """Return an input's tokens, (n,) int32. A truncated input keeps its last token, because models end their inputs
        with a special token.
        """
        start, n = self._starts[index], self._given[index]
        tokens, limit = self._tokens[start : start + n], self.info.n_input
        return tokens if n <= limit else np.concatenate([tokens[: limit - 1], tokens[-1:]])

    @property
    def _field(self) -> str:
        return "documents" if self.wanted.op == "rerank" else "input"

    def _check_size(self) -> None:
        """Check the size of the reply, which is known before anything is computed."""
        wanted = self.wanted
        n_rows = self.n_tokens if self.pooling == "none" else self.n_inputs
        n_bytes = int(n_rows * (wanted.dimensions or self.n_width) * (BASE64_BYTES if wanted.is_base64 else TEXT_BYTES))
        if wanted.op == "rerank":
            n_bytes = self.n_inputs * SCORE_BYTES
        if wanted.reply_bytes and n_bytes > wanted.reply_bytes:
            message = f"the answer may have {n_bytes} bytes, the cap is {wanted.reply_bytes}: split the request"
            raise UmaError(ErrorCode.PROMPT_TOO_LARGE, message, n_bytes=n_bytes, limit=wanted.reply_bytes)

    def _new_pool(self) -> Pool:
        return Pool("last" if self.info.is_whole else self.pooling)  # the engine itself pools whole inputs

    @property
    def is_done(self) -> bool:
        return len(self.vectors) == self.n_inputs

    @property
    def current(self) -> np.ndarray:
        """Return the input that is being computed."""
        return self.input(len(self.vectors))

    @property
    def n_later(self) -> int:
        """Return the number of tokens in the inputs after the current one."""
        return 0 if self.is_done else self.n_tokens - self._ends[len(self.vectors)]

    @property
    def n_done(self) -> int:
        """Return the number of tokens in the inputs before the current one."""
        return self._ends[len(self.vectors) - 1] if self.vectors else 0

    # inputs in chunks

    def chunk(self, n_past: int, n_most: int) -> tuple[np.ndarray, Rows]:
        """Return the current input's next tokens, at most this many, and which of their hidden states are needed."""
        left = self.current[n_past:]
        rows = self.pool.wants(n_past, max(0, len(left) - n_most))
        n = min(n_most, len(left), self.info.n_rows if rows is Rows.ALL else n_most)
        return left[:n], rows

    def restart(self) -> None:
        """Compute the current input from its beginning again."""
        self.pool = self._new_pool()

    def add(self, n_tokens: int, rows: np.ndarray) -> bool:
        """Take a computed chunk. True: it was the last one of its input. Raises: DECODE_FAILED."""
        self.pool.add(n_tokens, rows)
        if self.pool.n_tokens < len(self.current):
            return False
        self._keep(self.pool.take())
        self.restart()
        return True

    # whole inputs

    def call(self, n_most: int, n_batch: int) -> list[np.ndarray]:
        """Return the next inputs: at least one, and more while they have at most `n_most` tokens together; never more
        than `n_batch` tokens.
        """
        chosen: list[np.ndarray] = []
        n = 0
        for index in range(len(self.vectors), min(self.n_inputs, len(self.vectors) + self.info.n_inputs)):
            tokens = self.input(index)
            if chosen and n + len(tokens) > min(n_most, n_batch):
                break
            chosen.append(tokens)
            n += len(tokens)
        return chosen

    def add_whole(self, results: Sequence[np.ndarray]) -> None:
        """Take the results of a computed call. Raises: DECODE_FAILED."""
        for rows in results:
            self._keep(rows)

    def _keep(self, rows: np.ndarray) -> None:
        wanted = self.wanted
        if not np.isfinite(rows).all():
            raise UmaError(ErrorCode.DECODE_FAILED, f"the vector of input {len(self.vectors)} is not finite")
        if wanted.dimensions:
            rows = rows[:, : wanted.dimensions]
        is_normal = self.pooling not in ("none", "rank") if wanted.normalize is None else wanted.normalize
        self.vectors.append(normalized(rows) if is_normal and wanted.op == "embed" else rows)


def normalized(rows: np.ndarray) -> np.ndarray:
    """Scale each row to the Euclidean length 1; a row of zeros stays as it is."""
    length = np.sqrt((rows.astype(np.float64) ** 2).sum(1, keepdims=True))
    scaled: np.ndarray = (rows / np.where(length > 0, length, 1.0)).astype(np.float32)
    return scaled
