"""One answer's way through its grammar: what may follow, going back, and answers beside it."""

from __future__ import annotations

import pytest

from tests.constraint import driving
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import Constraint, Trigger


def matcher(compiler, fake, value, **more):
    return compiler.compile(fake, Constraint("regex", value, **more))


def follow(made, text: str) -> None:
    for character in text:
        assert made.accept(ord(character))


def next_of(made, fake) -> str:
    """Return the characters that may come next; $ stands for the end."""
    return "".join("$" if fake.is_eog(token) else chr(token) for token in driving.allowed(made, fake.n_vocab))


def test_the_mask_has_what_may_come_next(compiler, fake):
    made = matcher(compiler, fake, "[ab]c?")
    assert next_of(made, fake) == "ab" and not made.is_done
    follow(made, "b")
    assert next_of(made, fake) == "c$" and not made.is_done
    follow(made, "c")
    assert made.is_done


def test_a_mask_is_changed_in_place_for_who_holds_it(compiler, fake):
    made = matcher(compiler, fake, "[ab][cd]")
    mask = made.mask
    follow(made, "a")
    assert made.mask is mask and next_of(made, fake) == "cd"


def test_forced_tokens_are_used_up_one_by_one(compiler, fake):
    made = matcher(compiler, fake, "abc[de]")
    assert list(made.forced) == [97, 98, 99]
    follow(made, "ab")
    assert list(made.forced) == [99]
    follow(made, "c")
    assert not made.forced and next_of(made, fake) == "de"


def test_forced_tokens_can_be_dropped_to_draw_the_next_one(compiler, fake):
    made = matcher(compiler, fake, "abc")
    made.choose()
    assert not made.forced and next_of(made, fake) == "a"


def test_whether_tokens_may_come_next_is_asked_without_taking_them(compiler, fake):
    made = matcher(compiler, fake, "ab[cd]")
    assert made.takes([97, 98, 99]) and not made.takes([97, 99]) and made.takes([])
    assert list(made.forced) == [97, 98]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_tokens_can_be_taken_back(compiler, fake, n):
    made = matcher(compiler, fake, "[ab][cd][ef]")
    follow(made, "ace")
    assert made.is_done
    made.rewind(n, None)
    assert not made.is_done and next_of(made, fake) == ["ef", "cd", "ab"][n - 1]


def test_a_wrong_token_is_a_coded_error(compiler, fake):
    made = matcher(compiler, fake, "ab")
    with pytest.raises(UmaError, match="the answer could not follow its grammar") as caught:
        made.accept(ord("x"))
    assert caught.value.error is ErrorCode.CONSTRAINT_FAILED


def test_before_its_trigger_any_token_may_come(compiler, fake):
    made = matcher(compiler, fake, "<[ab]>", triggers=(Trigger("word", "<"),))
    assert made.mask is None and made.takes([1, 2, 3])
    follow(made, "x y")
    assert made.mask is None
    mark = made.mark()
    follow(made, "<")
    assert next_of(made, fake) == "ab" and made.mark() is None
    made.rewind(1, mark)
    assert made.mask is None
    follow(made, "z<b")
    assert next_of(made, fake) == ">"


def test_other_answers_to_the_request_begin_at_the_beginning(compiler, fake):
    for more in ({}, {"triggers": (Trigger("word", "a"),)}):
        made = matcher(compiler, fake, "a[bc]", **more)
        other = made.fork()
        follow(made, "ab")
        assert made.is_done and not other.is_done
        follow(other, "a")
        assert next_of(other, fake) == "bc"
