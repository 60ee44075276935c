"""A model's tokens as llguidance knows them: text and control tokens are told apart, and text has exact tokens."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uma_core.constraint.vocabulary import N_BYTES_MOST, SENTINEL, Vocabulary
from uma_core.engine.fake.engine import FakeEngine
from uma_core.errors import ErrorCode, UmaError


class Words:
    """A small vocabulary. Tokens whose name is in <> are control tokens; the last one ends an answer."""

    def __init__(self, *words: bytes) -> None:
        self.words = (*words, b"<end>")
        self.n_vocab = len(self.words)

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """Split as a tokeniser that is wrong about every text but one word."""
        data = text.encode()
        return [self.words.index(data)] if data in self.words else [0]

    def piece(self, token: int, unparse_special: bool = False) -> bytes:
        return self.words[token] if unparse_special or not self.is_control(token) else b""

    def is_eog(self, token: int) -> bool:
        return token == self.n_vocab - 1

    def is_control(self, token: int) -> bool:
        return self.words[token].startswith(b"<")


def test_names_are_looked_up_among_control_tokens_first() -> None:
    words = Words(b"think", b"<think>", b"x")
    found = Vocabulary(words)
    assert [found.id_of(name) for name in ("think", "<think>", "none", 2, 3, 4, -1)] == [0, 1, None, 2, 3, None, None]
    assert found.spell(1) == b"<think>"


def test_names_in_a_text_leave_out_what_ends_an_answer() -> None:
    words = Words(b"x", b"<a>", b"<b>")
    assert Vocabulary(words).names_in("x<b> and <end>") == ["<b>"]


def test_a_tokeniser_that_spells_other_text_is_not_used() -> None:
    words = Words(b"a", b"ab", b"abc", b"c")
    found = Vocabulary(words)
    assert found.tokens_of(b"ab") == [1]
    assert found.tokens_of(b"abcab") == [2, 1], "the longest token that fits"
    assert not found.is_exact
    with pytest.raises(UmaError, match="0x7a") as caught:
        found.tokens_of(b"abz")
    assert caught.value.error is ErrorCode.CONSTRAINT_FAILED


class Spaced(Words):
    """Its tokeniser puts a space before a text, as SentencePiece does, unless something stands there."""

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        return [self.words.index(each.encode()) for each in (text if text.startswith(SENTINEL) else " " + text)]


def test_a_space_that_the_tokeniser_adds_is_not_in_the_tokens() -> None:
    words = Spaced(b" ", SENTINEL.encode(), b"a", b"b", b"ab")
    assert Vocabulary(words).tokens_of(b"ab") == [2, 3], "the tokeniser's own, without the space"


def test_tokens_that_llguidance_cannot_hold_are_never_drawn() -> None:
    words = Words(b"a", b"b" * N_BYTES_MOST, b"c" * (N_BYTES_MOST + 1), b"\xffd")
    found = Vocabulary(words)
    assert found.id_of("b" * N_BYTES_MOST) == 1
    assert found.id_of("c" * (N_BYTES_MOST + 1)) is None
    with pytest.raises(UmaError):
        found.tokens_of(b"\xffd")


@pytest.fixture(scope="module")
def known(tiny) -> Vocabulary:
    return Vocabulary(tiny)


@given(st.text(max_size=20), st.integers(0, 3), st.integers(0, 3))
def test_parts_of_a_text_that_cut_characters_have_exact_tokens(known, tiny, text, n_before, n_after):
    data = text.encode()
    data = data[n_before : len(data) - n_after]
    assert b"".join(map(tiny.piece, known.tokens_of(data))) == data


@given(st.text(max_size=20))
def test_texts_with_control_tokens_are_read_back(known, text):
    assert b"".join(map(known.spell, known.read(text))) == text.encode()


def test_no_vocabulary_keeps_a_model_alive() -> None:
    model = FakeEngine()
    found = Vocabulary(model)
    assert found.is_exact and found.text is model
    del model
    gc.collect()
    with pytest.raises(UmaError) as caught:
        found.tokens_of(b"a")
    assert caught.value.error is ErrorCode.MODEL_NOT_LOADED
