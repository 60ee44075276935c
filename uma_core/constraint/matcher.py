"""Follows one answer through its grammar: takes each token and tells which ones may follow."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from uma_core.constraint.grammar import Grammar, reason_of
from uma_core.constraint.lib import ffi, load
from uma_core.constraint.triggers import Scanner
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import TokenId


class Matcher:
    """Built on the intake's threads, used on the compute thread.

    `mask`: (n_vocab / 32,) uint32, one bit per token, lowest first, set if it may come next; changed in place by
    `accept`. None while a trigger is awaited and any token may come.

    `forced`: the next tokens, if the grammar leaves no choice; the mask is then not kept up to date. A caller that
    can use several at once, as a draft that needs no check, finds them all here.

    `is_done`: the answer is complete, and nothing may follow.
    """

    __slots__ = (
        "_first",
        "_grammar",
        "_handle",
        "_lib",
        "_pointer",
        "_scanner",
        "forced",
        "is_done",
        "mask",
        "spent_ns",
    )

    def __init__(self, grammar: Grammar, scanner: Scanner | None = None) -> None:
        self._lib = load()
        self._grammar = grammar
        self._first = scanner.fork() if scanner is not None else None
        self._scanner = scanner
        self._handle: Any = grammar.copy()
        self._pointer: Any = None
        self.forced: deque[TokenId] = deque()
        self.mask: np.ndarray | None = None
        self.is_done = False
        self.spent_ns = 0  # time of the last `accept`
        if scanner is None:
            self._begin()

    def _begin(self) -> None:
        self.mask = self._grammar.mask.copy()
        self._pointer = ffi.from_buffer("uint32_t *", self.mask)
        self.is_done = self._grammar.is_done
        self.forced.extend(self._grammar.forced)

    def accept(self, token: TokenId) -> bool:
        """Take one more token, which is not an end-of-generation token.

        False: it completes a trigger and contains text that the grammar refuses; nothing has changed.

        Raises: CONSTRAINT_FAILED; then only `close` may follow.
        """
        begun_ns = time.monotonic_ns()
        is_taken = True
        if self._scanner is None:
            self._go_on(token)
        else:
            is_taken = self._await(token, self._scanner)
        self.spent_ns = time.monotonic_ns() - begun_ns
        return is_taken

    def _go_on(self, token: TokenId) -> None:
        if self._lib.llg_matcher_consume_token(self._handle, token):
            raise self._failure()
        if self.forced and self.forced[0] == token:
            self.forced.popleft()
        else:
            self.forced.clear()
        if not self.forced:
            self._look()

    def _look(self) -> None:
        """Find out which tokens may come next."""
        if self._lib.llg_matcher_is_stopped(self._handle):
            self.is_done = True
            return
        self.forced.extend(self._grammar.forced_by(self._handle))
        if not self.forced:
            self.choose()

    def takes(self, tokens: Sequence[TokenId]) -> bool:
        """Whether these tokens may come next, one after the other; true while any token may come."""
        if self._scanner is not None:
            return True
        return int(self._lib.llg_matcher_validate_tokens(self._handle, tokens, len(tokens))) == len(tokens)

    def choose(self) -> None:
        """Drop the forced tokens and compute the mask, to let the next token be drawn. Raises: CONSTRAINT_FAILED."""
        assert self.mask is not None
        self.forced.clear()
        if self._lib.llg_matcher_compute_mask_into(self._handle, self._pointer, self.mask.nbytes):
            raise self._failure()

    def _await(self, token: TokenId, scanner: Scanner) -> bool:
        mark = scanner.mark()
        tokens = scanner.push(token)
        if tokens is None:
            return True
        self._scanner = None
        if tokens and not self.takes(tokens):
            assert self._first is not None
            self._scanner = self._first.fork()
            self._scanner.go_back(mark)
            return False
        self._begin()
        if tokens:
            if self._lib.llg_matcher_consume_tokens(self._handle, tokens, len(tokens)):
                raise self._failure()
            self.forced.clear()
            self._look()
        return True

    def mark(self) -> Any:
        """Return what `rewind` needs to go back to here; None: nothing, because no trigger is awaited."""
        return self._scanner.mark() if self._scanner is not None else None

    def rewind(self, n: int, mark: Any) -> None:
        """Forget the last n tokens; `mark` was taken before the first of them. Raises: CONSTRAINT_FAILED."""
        self.forced.clear()
        self.is_done = False
        if mark is not None:
            if self._scanner is None:  # the trigger is among them
                assert self._first is not None
                self._scanner, self._handle, self.mask = self._first.fork(), self._grammar.copy(), None
            self._scanner.go_back(mark)
            return
        if self._lib.llg_matcher_rollback(self._handle, n):
            raise self._failure()
        self._look()

    def _failure(self) -> UmaError:
        self._grammar.is_spoilt = True
        message = self._lib.llg_matcher_get_error(self._handle)
        reason = reason_of(ffi.string(message)) if message else "the matcher failed"
        return UmaError(ErrorCode.CONSTRAINT_FAILED, f"the answer could not follow its grammar: {reason}")

    def fork(self) -> Matcher:
        """Return a matcher for another answer to the same request, at the beginning. Call it only before the first
        `accept`.
        """
        return Matcher(self._grammar, self._scanner.fork() if self._scanner is not None else None)
