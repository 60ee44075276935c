"""Automata of lexemes, compared with Python's `re` on whole texts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uma_core.constraint import automaton
from uma_core.constraint.automaton import Alphabet, Automata, TooLarge
from uma_core.constraint.gbnf import EMPTY, LAST, Chars, Either, Node, Ref, Repeat, Sequence, Text


def automata(body: Node, **others: Node) -> tuple[Alphabet, Automata]:
    nodes = {"lexeme": body, **others}
    alphabet = Alphabet(nodes.values())
    return alphabet, Automata(alphabet, lambda name: nodes[name])


def takes(body: Node, text: str, **others: Node) -> bool:
    """Whether the whole text is the lexeme."""
    alphabet, made = automata(body, **others)
    at = made.at(made.start("lexeme"))
    for character in text:
        (one,) = alphabet.one(character)
        if one not in at.next:
            return False
        at = made.at(at.next[one])
    return at.is_end


def expression(node: Node) -> str:
    """Write the node for `re`."""
    if isinstance(node, Text):
        return re.escape(node.value)
    if isinstance(node, Chars):
        ranges = "".join(f"{re.escape(chr(low))}-{re.escape(chr(high))}" for low, high in node.ranges)
        return f"[{'^' if node.is_negated else ''}{ranges}]"
    if isinstance(node, Sequence):
        return "".join(map(expression, node.items))
    if isinstance(node, Either):
        return "(?:" + "|".join(map(expression, node.items)) + ")"
    assert isinstance(node, Repeat)
    return f"(?:{expression(node.item)}){{{node.least},{'' if node.most is None else node.most}}}"


CHARS = st.builds(Chars, st.sampled_from([((97, 97),), ((97, 98),), ((98, 99), (101, 101))]), st.booleans())
LEAVES = st.one_of(st.builds(Text, st.text("abc", max_size=3)), CHARS)
NODES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda items: Sequence(tuple(items))),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: Either(tuple(items))),
        st.builds(Repeat, inner, st.integers(0, 2), st.sampled_from([2, 3, None])),
    ),
    max_leaves=6,
)


@given(NODES, st.text("abce", max_size=6))
def test_it_takes_what_re_takes(node: Node, text: str) -> None:
    assert takes(node, text) == bool(re.fullmatch(expression(node), text))


@pytest.mark.parametrize("least", range(5))
@pytest.mark.parametrize("n_more", [0, 1, 3, None])
def test_small_counts_are_exact(least: int, n_more: int | None) -> None:
    body = Repeat(Text("ab"), least, None if n_more is None else least + n_more)
    exact = min(least, automaton.N_REPEATS_MOST)  # only how far it may go on matters, not whether it ends
    assert [takes(body, "ab" * n) for n in range(exact)] == [False] * exact
    assert takes(body, "ab" * (exact + (n_more or 0)))
    assert takes(body, "ab" * (exact + (n_more or 0) + 1)) == (n_more is None)


def test_a_larger_count_is_taken_as_none() -> None:
    assert takes(Repeat(Text("a"), 0, automaton.N_REPEATS_MOST + 1), "a" * 50)


def test_references_stand_for_what_they_name() -> None:
    body = Sequence((Text("<"), Ref("word"), Text(">")))
    word = Repeat(Chars(((97, 122),), False), 1, None)
    assert takes(body, "<ab>", word=word) and not takes(body, "<>", word=word)


def test_characters_that_nothing_tells_apart_are_one_class() -> None:
    alphabet = Alphabet([Chars(((ord("a"), ord("z")),), False), Text("k")])
    assert alphabet.one("b") == alphabet.one("j") != alphabet.one("k") != alphabet.one("l") == alphabet.one("z")
    assert alphabet.of(Chars(((0, LAST),), False)) == alphabet.all
    assert not alphabet.of(Chars(((0, LAST),), True))


@pytest.mark.parametrize(
    "body",
    [
        Repeat(Repeat(Repeat(Repeat(Repeat(Text("abcdefgh"), 3, 3), 3, 3), 3, 3), 3, 3), 3, 3),
        Sequence((Repeat(Either((Text("a"), Text("b"))), 0, None), Text("a"), *[Chars(((97, 98),), False)] * 13)),
    ],
    ids=["many states at once", "many sets of states"],
)
def test_what_has_too_many_states_is_given_up(body: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automaton, "N_STATES_MOST", 400)
    _, made = automata(body)
    with pytest.raises(TooLarge):
        todo, seen = [made.start("lexeme")], set()
        while todo:
            state = todo.pop()
            if state not in seen:
                seen.add(state)
                todo += made.at(state).next.values()


def test_empty_rules_that_refer_to_each_other_are_given_up() -> None:
    """They make no states, so that only their number ends the search."""
    body, others = Ref("r0"), {f"r{i}": Sequence((Ref(f"r{i + 1}"), Ref(f"r{i + 1}"))) for i in range(30)}
    with pytest.raises(TooLarge):
        automata(body, **others, r30=EMPTY)[1].start("lexeme")
