"""llama.cpp's own grammar sampler, one token at a time. It defines what GBNF means."""

from __future__ import annotations

from types import TracebackType

import numpy as np

from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.model import LlamaModel

TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # as `llama_token_data`


class LlamaGrammar:
    def __init__(self, model: LlamaModel, source: str) -> None:
        """Raises ValueError if llama.cpp refuses the grammar."""
        self._n_vocab = model.n_vocab
        self._handle = lib.llama_sampler_init_grammar(model.vocab, source.encode(), b"root")
        if not self._handle:
            raise ValueError(source)

    def __enter__(self) -> LlamaGrammar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lib.llama_sampler_free(self._handle)

    def allowed(self, tokens: list[int] | None = None) -> list[int]:
        """Return which of these tokens may come next (None: of all tokens)."""
        rows = np.zeros(self._n_vocab if tokens is None else len(tokens), TOKEN_DATA)
        rows["id"] = np.arange(self._n_vocab) if tokens is None else tokens
        data = ffi.from_buffer("llama_token_data[]", rows)
        candidates = ffi.new("llama_token_data_array *", {"data": data, "size": len(rows), "selected": -1})
        lib.llama_sampler_apply(self._handle, candidates)
        found: list[int] = rows["id"][np.isfinite(rows["logit"])].tolist()
        return found

    def accept(self, token: int) -> None:
        """Accept a token that is allowed: the sampler throws on any other."""
        lib.llama_sampler_accept(self._handle, token)
