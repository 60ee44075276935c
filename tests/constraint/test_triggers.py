"""The answer is free text until a trigger appears: where the grammar begins, whatever the tokens are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uma_core.constraint.matcher import Matcher
from uma_core.constraint.pattern import N_FOLLOWED_EACH, N_FOLLOWED_MOST, Search
from uma_core.constraint.triggers import Scanner, rules_of
from uma_core.types import Constraint, Trigger

PIECES = ["<", "tool", "<to", "ol>", "x<tool>y", "<tool>", "a", " ", "<|call|>", "", "é"]


def scanner(*triggers: Trigger) -> Scanner:
    rules = rules_of(triggers, lambda name: PIECES.index(name) if name in PIECES else None)
    return Scanner(rules, lambda token: PIECES[token].encode(), lambda data: [1000 + byte for byte in data])


def spelled(tokens: list[int]) -> bytes:
    return b"".join(PIECES[token].encode() if token < 1000 else bytes([token - 1000]) for token in tokens)


def feed(scan: Scanner, *pieces: str) -> bytes | None:
    """Return the text that the grammar gets when the trigger appears, which must happen with the last piece."""
    for piece in pieces[:-1]:
        assert scan.push(PIECES.index(piece)) is None, piece
    tokens = scan.push(PIECES.index(pieces[-1]))
    return None if tokens is None else spelled(tokens)


def test_a_word_over_several_tokens():
    assert feed(scanner(Trigger("word", "<tool>")), "a", "<to", "ol>") == b"<tool>"


def test_a_word_within_a_token_leaves_what_comes_before_it():
    assert feed(scanner(Trigger("word", "<tool>")), "a", "x<tool>y") == b"<tool>y"
    assert feed(scanner(Trigger("word", "<tool>", True)), "a", "x<tool>y") == b"y"
    assert feed(scanner(Trigger("word", "<tool>", True)), "a", "<tool>") == b""


def test_a_token_is_told_as_itself():
    scan = scanner(Trigger("token", "<|call|>"))
    assert feed(scan, "a", "", "<|call|>") == b"<|call|>"
    assert feed(scanner(Trigger("token", "<|call|>", True)), "a", "<|call|>") == b""


def test_a_pattern_begins_at_its_group():
    assert feed(scanner(Trigger("pattern", r"a\s(<tool>)")), "<tool>", "a", " ", "<to", "ol>") == b"<tool>"
    assert feed(scanner(Trigger("pattern", "^a<")), "a", "<to") == b"a<to"
    assert feed(scanner(Trigger("pattern", "^a<")), "x<tool>y", "a", "<") is None


def test_the_first_of_several_counts():
    triggers = Trigger("word", "tool"), Trigger("word", "x<"), Trigger("pattern", "<t")
    assert feed(scanner(*triggers), "a", "x<tool>y") == b"x<tool>y"


@pytest.mark.parametrize(
    "trigger",
    [Trigger("word", "<tool>"), Trigger("word", "tool", True), Trigger("pattern", r"(<tool>)[a-z]*$")],
    ids=["word", "after", "pattern"],
)
def test_going_back_reads_no_token_again(compiler, fake, monkeypatch, trigger):
    """All streams wait meanwhile, and an answer may be long."""
    constraint = Constraint("gbnf", 'root ::= "<tool>"? ">"? [a-z]*', (trigger,))
    said = fake.tokenize("a < b <tool>xyz", False, False)

    def after(n):
        matcher = compiler.compile(fake, constraint)
        for token in said[:n]:
            matcher.accept(token)
        return matcher

    for n_left in range(len(said)):
        matcher = after(n_left)
        mark = matcher.mark()
        for token in said[n_left:]:
            matcher.accept(token)
        with monkeypatch.context() as patch:
            for owner, name in ((Scanner, "push"), (Matcher, "accept")):
                patch.setattr(owner, name, lambda *args: pytest.fail("a token is read again"))
            matcher.rewind(len(said) - n_left, mark)
        alone = after(n_left)
        for token in said[n_left:]:
            assert (matcher.mask is None) == (alone.mask is None) and matcher.forced == alone.forced
            assert matcher.mask is None or (matcher.mask == alone.mask).all()
            matcher.accept(token)
            alone.accept(token)


@pytest.mark.parametrize("kind", ["word", "pattern"])
def test_a_token_that_goes_on_as_the_grammar_refuses_is_refused_and_changes_nothing(compiler, tiny, kind):
    def refused_and_taken(*pieces: str) -> Matcher:
        matcher = compiler.compile(tiny, Constraint("regex", " [0-9]+", (Trigger(kind, "the", True),)))
        assert [matcher.accept(token) for token in tokens_of(*pieces)] == [piece != " their" for piece in pieces]
        return matcher

    def tokens_of(*pieces: str) -> list[int]:
        found = [tiny.tokenize(piece, False, False) for piece in pieces]
        assert all(len(tokens) == 1 for tokens in found)
        return [tokens[0] for tokens in found]

    matcher = refused_and_taken(" and", " their", " th", " their")
    assert matcher.mask is None, "the trigger is still awaited"
    matcher, other = refused_and_taken(" their", " the", " ", "4"), refused_and_taken(" the", " ", "4")
    assert (matcher.mask == other.mask).all()


HOSTILE = [Trigger("pattern", f"((a?){{20}}){{20}}b{i}") for i in range(20)]


def test_patterns_that_cost_too_much_leave_the_others_to_be_found():
    """Their steps run between two decode calls, while all streams wait."""
    assert feed(scanner(*HOSTILE, Trigger("word", "<tool>")), *["a"] * 50, "<to", "ol>") == b"<tool>"


def test_all_patterns_together_follow_no_more_steps_than_the_answers_tokens_may(monkeypatch):
    followed, push = [], Search.push

    def watched(search, data, n_most):
        found = push(search, data, n_most)
        followed.append(n_most - search.n_left)
        return found

    monkeypatch.setattr(Search, "push", watched)
    scan = scanner(*HOSTILE)
    for _ in range(50):
        scan.push(PIECES.index("a"))
    assert sum(followed) < N_FOLLOWED_MOST + 51 * N_FOLLOWED_EACH


def test_a_token_that_the_model_does_not_have_is_an_error():
    with pytest.raises(ValueError, match="not a token"):
        scanner(Trigger("token", "<|none|>"))


@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=30), st.booleans())
def test_it_is_what_a_search_of_the_whole_text_finds(tokens, is_after):
    scan = scanner(Trigger("word", "<tool>", is_after))
    text = b""
    for token in tokens:
        text += PIECES[token].encode()
        told = scan.push(token)
        at = text.find(b"<tool>")
        assert (told is None) == (at < 0)
        if told is not None:
            assert spelled(told) == text[at + len("<tool>") * is_after :]
            return
