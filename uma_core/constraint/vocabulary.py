"""A model's vocabulary in llguidance's form: built once per model, in 0.2 to 0.4 s and 30 to 50 MB at 152k tokens."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import numpy as np

from uma_core.constraint.lib import ffi, load
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import TokenId

MARK = b"\xff"  # llguidance's prefix of a token that is not text; this byte does not occur in UTF-8
N_BYTES_MOST = 1000  # bytes of a token; llguidance's trie allows up to 1024
NO_EOS = 0xFFFFFFFF
SENTINEL = "\x02"  # put before a text if the tokeniser would otherwise add a space there


class Text(Protocol):
    """The methods of an engine that are needed here. For any thread."""

    @property
    def n_vocab(self) -> int: ...
    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[TokenId]: ...
    def piece(self, token: TokenId, unparse_special: bool = False) -> bytes: ...
    def is_eog(self, token: TokenId) -> bool: ...
    def is_control(self, token: TokenId) -> bool: ...


class Vocabulary:
    """Owns an LlgTokenizer. Every matcher made with it keeps it alive, but no matcher keeps the model alive."""

    def __init__(self, text: Text) -> None:
        """Blocks for as long as the module docstring says, mostly without the GIL.

        Raises: CONSTRAINTS_UNAVAILABLE, INTERNAL.
        """
        lib = load()
        self._text = weakref.ref(text)
        self.n_vocab = text.n_vocab
        self.n_words = -(-self.n_vocab // 32)
        self.eog = [token for token in range(self.n_vocab) if text.is_eog(token)]
        tokens = [_bytes_of(text, token) for token in range(self.n_vocab)]
        self._by_bytes = {data: token for token, data in enumerate(tokens) if data and not data.startswith(MARK)}
        self._by_name = {data[1:]: token for token, data in enumerate(tokens) if data.startswith(MARK)}
        self._n_longest = max(map(len, self._by_bytes), default=1)
        self._lead = text.tokenize(SENTINEL, False, False)
        lens = np.fromiter(map(len, tokens), np.uint32, len(tokens))
        extra = ffi.new("uint32_t[]", self.eog[1:])
        self._callback = ffi.callback("LlgTokenizeFn", self._tokenize)  # lives as long as the tokenizer
        init = ffi.new("LlgTokenizerInitV2 *")
        init.struct_size = ffi.sizeof("LlgTokenizerInitV2")
        init.vocab_size = self.n_vocab
        init.tok_eos = self.eog[0] if self.eog else NO_EOS
        init.tok_eos_extra, init.tok_eos_extra_count = extra, len(extra)
        joined = b"".join(tokens)
        init.token_lens, init.token_bytes = ffi.from_buffer("uint32_t *", lens), ffi.from_buffer("uint8_t *", joined)
        self.is_exact = self._has_all_bytes()
        if self.is_exact:
            init.tokenize_fn, init.tokenize_assumes_string = self._callback, True
        else:  # forced text cannot be tokenised reliably, so the model chooses the tokens
            init.use_approximate_greedy_tokenize_fn = True
        error = ffi.new("char[]", 512)
        handle = lib.llg_new_tokenizer_v2(init, error, len(error))
        if not handle:
            raise UmaError(ErrorCode.INTERNAL, f"llguidance refuses the vocabulary: {ffi.string(error).decode()}")
        self.handle: Any = ffi.gc(handle, lib.llg_free_tokenizer)

    def _has_all_bytes(self) -> bool:
        """Whether any UTF-8 text can be written token by token: its bytes are 00 to F4."""
        return all(bytes([byte]) in self._by_bytes for byte in range(0xF5))

    def tokens_of(self, data: bytes) -> list[TokenId]:
        """Return tokens for exactly these bytes: those of the model's own tokeniser, unless its tokens spell other
        text.

        Raises: CONSTRAINT_FAILED if some byte has no token.
        """
        try:
            string = data.decode()
        except UnicodeDecodeError:
            return self._greedy(data)
        text, n_lead = self.text, len(self._lead)
        tokens = text.tokenize(string, False, False)
        if b"".join(map(text.piece, tokens)) == data:
            return tokens
        tokens = text.tokenize(SENTINEL + string, False, False)
        if tokens[:n_lead] == self._lead and b"".join(map(text.piece, tokens[n_lead:])) == data:
            return tokens[n_lead:]
        return self._greedy(data)

    @property
    def text(self) -> Text:
        """Return the model's text methods. Raises: MODEL_NOT_LOADED if the model is gone."""
        text = self._text()
        if text is None:
            raise UmaError(ErrorCode.MODEL_NOT_LOADED)
        return text

    def id_of(self, name: str | int) -> TokenId | None:
        """Return the one token with this text, control tokens first, or with this id. None: there is none."""
        if isinstance(name, int):
            return name if 0 <= name < self.n_vocab else None
        data = name.encode()
        return self._by_name.get(data, self._by_bytes.get(data))

    def names_in(self, string: str) -> list[str]:
        """Return texts of control tokens that occur in a string, except those that end an answer."""
        data, eog = string.encode(), set(self.eog)
        return [
            name.decode("utf-8", "replace")
            for name, token in self._by_name.items()
            if name in data and token not in eog
        ]

    def spell(self, token: TokenId) -> bytes:
        """Return the token's text, also for control tokens."""
        return self.text.piece(token, True)

    def read(self, string: str) -> list[TokenId]:
        """Return the tokens of a text that may contain control tokens."""
        tokens, data = self.text.tokenize(string, False, True), string.encode()
        return tokens if b"".join(map(self.spell, tokens)) == data else self.tokens_of(data)

    def _greedy(self, data: bytes) -> list[TokenId]:
        """Return tokens for these bytes, always taking the longest one that fits."""
        tokens, at = [], 0
        while at < len(data):
            for n in range(min(self._n_longest, len(data) - at), 0, -1):
                token = self._by_bytes.get(data[at : at + n])
                if token is not None:
                    break
            else:
                raise UmaError(ErrorCode.CONSTRAINT_FAILED, f"no token of this model is the byte {data[at]:#x}")
            tokens.append(token)
            at += n
        return tokens

    def _tokenize(self, _: Any, data: Any, n: int, out: Any, n_out: int) -> int:
        """LlgTokenizeFn. The tokens must cover all the bytes, or the matcher's state would be wrong."""
        tokens = self.tokens_of(bytes(ffi.buffer(data, n)))
        for i, token in enumerate(tokens[:n_out]):
            out[i] = token
        return len(tokens)


def _bytes_of(text: Text, token: TokenId) -> bytes:
    """Return the bytes that llguidance knows the token by; b"": it must never be drawn."""
    if text.is_control(token) or text.is_eog(token):
        name = text.piece(token, True)
        return MARK + name if 0 < len(name) < N_BYTES_MOST else b""
    data = text.piece(token)
    return data if len(data) <= N_BYTES_MOST and not data.startswith(MARK) else b""
