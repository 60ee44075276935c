"""Which tokens a piece of text consists of, even if text is held back, cut or taken back."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from uma_core.session.answer import Answer
from uma_core.session.text import TextStream
from uma_core.types import TokenLogprob

Pieces = list[bytes]
PIECES = st.lists(
    st.sampled_from([b"a", b"b", b"ab", b"", b"ba", "é".encode(), b"\xc3", b"\xa9", "€".encode()[:2], b"\xac", b"bab"]),
    max_size=14,
)
STRINGS = st.lists(st.text("abé", min_size=1, max_size=3), max_size=3).map(tuple)


def one(i: int, piece: bytes) -> TokenLogprob:
    return TokenLogprob(i, piece, -0.5)


def run(pieces: Pieces, stops: tuple[str, ...]) -> tuple[Answer, list[str], list[list[int]], str]:
    """Return the answer, its texts, the tokens that came with each, and the text that was released last."""
    answer = Answer(stops)
    texts, tokens = [], []
    for i, piece in enumerate(pieces):
        text = answer.push(i, piece, one(i, piece))
        if text:
            texts.append(text)
            tokens.append([c.token_id for c in answer.take()])
        if answer.is_stopped:
            break
    rest = answer.finish()
    texts.append(rest)
    tokens.append([c.token_id for c in answer.take()])
    return answer, texts, tokens, rest


@given(PIECES, STRINGS)
def test_the_text_is_that_of_a_plain_answer(pieces: Pieces, stops: tuple[str, ...]) -> None:
    answer, texts, _, _ = run(pieces, stops)
    plain, expected = TextStream(stops), ""
    for piece in pieces:
        expected += plain.push(piece)
        if plain.is_stopped:
            break
    assert "".join(texts) == expected + plain.finish()
    assert answer.stopped_by == plain.stopped_by


@given(PIECES, STRINGS)
def test_each_token_comes_once_with_the_text_that_it_completes(pieces: Pieces, stops: tuple[str, ...]) -> None:
    answer, texts, tokens, _ = run(pieces, stops)
    came = list(itertools.chain.from_iterable(tokens))
    assert came == list(range(len(came)))
    if not answer.is_stopped:
        assert len(came) == len(pieces)
    done = 0
    for n_chars, ids in zip(itertools.accumulate(map(len, texts)), tokens, strict=True):
        done += len(ids)
        whole = b"".join(pieces[:done]).decode("utf-8", "replace").rstrip("\ufffd")
        assert len(whole) <= n_chars or answer.is_stopped, "no token comes before its text"


def test_text_that_is_held_back_brings_its_tokens_when_it_is_released() -> None:
    answer = Answer(("STOP",))
    assert answer.push(1, b"one", one(1, b"")) == "one" and len(answer.take()) == 1
    assert answer.push(2, b" ST", one(2, b"")) == " " and answer.take() == ()
    assert answer.push(3, b"O", one(3, b"")) == "" and answer.take() == ()
    assert answer.push(4, b"A", one(4, b"")) == "STOA"
    assert [c.token_id for c in answer.take()] == [2, 3, 4]


def test_a_stop_string_keeps_its_own_tokens() -> None:
    answer = Answer(("\n\n",))
    answer.push(1, b"one", one(1, b""))
    assert len(answer.take()) == 1
    assert answer.push(2, b".\n", one(2, b"")) == "."
    assert answer.push(3, b"\nmore", one(3, b"")) == ""
    assert answer.stopped_by == "\n\n" and [c.token_id for c in answer.take()] == [2], "a part of its text came"
    assert answer.finish() == "" and answer.push(4, b"x") == ""


@given(PIECES, STRINGS.filter(bool))
def test_no_banned_text_is_released_and_taking_back_leaves_no_trace(pieces: Pieces, banned: tuple[str, ...]) -> None:
    """A token that was taken back is never tried again at its place: the text is that of the tokens that stayed."""
    answer = Answer((), banned)
    kept: Pieces = []
    out = ""
    for i, piece in enumerate(pieces):
        kept.append(piece)
        out += answer.push(i, piece, one(i, piece))
        if answer.must_rewind:
            n, _, _ = answer.rewind()
            assert n >= 1
            del kept[-n:]
        assert not any(b in out for b in banned)
    out += answer.finish()
    assert out == b"".join(kept).decode("utf-8", "replace")


def test_taking_back_begins_with_the_token_in_which_the_banned_text_begins() -> None:
    answer = Answer((), ("bad word",))
    assert answer.push(1, b"a ") == "a "
    assert answer.push(2, b"so ba") == "" and answer.n_pending == 1, "whole tokens wait"
    assert answer.push(3, b"d w") == ""
    assert answer.push(4, b"ord") == "" and answer.must_rewind
    assert answer.rewind()[:2] == (3, 2)
    assert answer.push(5, b"good") == "good" and answer.n_pending == 0


def test_a_stop_before_a_banned_text_ends_the_answer() -> None:
    answer = Answer(("<end>",), ("xy",))
    assert answer.push(1, b"a<e") == "" and answer.push(2, b"nd>xy") == "a"
    assert answer.stopped_by == "<end>" and not answer.must_rewind


def test_a_banned_string_that_begins_in_released_text_is_never_completed() -> None:
    answer = Answer((), ("hello world", "X yz"))
    assert answer.push(1, b"hello") == "" and answer.push(2, b"X") == "hello"
    assert answer.push(3, b" yz") == "" and answer.must_rewind
    assert answer.rewind()[:2] == (2, 2)
    assert answer.push(4, b" wor") == "" and answer.push(5, b"ld") == "" and answer.must_rewind
    assert answer.rewind()[:2] == (2, 4)
    assert answer.push(6, b"!") == "!" and answer.finish() == ""


def test_a_stop_string_that_begins_in_released_text_ends_the_answer() -> None:
    answer = Answer(("hello world",), ("X yz",))
    assert answer.push(1, b"hello") == "" and answer.push(2, b"X") == "hello" and answer.push(3, b" yz") == ""
    assert answer.rewind()[:2] == (2, 2)
    assert answer.push(4, b" world") == "" and answer.stopped_by == "hello world"
