"""Prompts around a gap, in the layout of llama.cpp's server."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from uma_core.engine.api import ModelFacts
from uma_core.errors import ErrorCode, UmaError
from uma_core.server.operations.prompt import encode
from uma_core.types import Infill, Request

PRE, SUF, MID, REP, SEP = 201, 202, 203, 204, 205
FIM = {"fim_pre": (PRE, ""), "fim_suf": (SUF, ""), "fim_mid": (MID, "")}
FACTS = ModelFacts(None, None, {"bos": (1, "[B]"), **FIM}, False, False, 0, 0, "fake", "fake")
PROJECT = {**FIM, "fim_rep": (REP, ""), "fim_sep": (SEP, "")}


@pytest.fixture
def fim_text(fake_text: Any) -> Any:
    fake_text.known = FACTS
    return fake_text


def tokens(text: Any, **fields: Any) -> list[int]:
    return encode(text, Request(id="a", **fields)).tokens


def test_a_suffix_makes_a_gap(fim_text: Any) -> None:
    assert tokens(fim_text, prompt="ab", suffix="z") == [PRE, *b"ab", SUF, *b"z", MID]
    assert tokens(fim_text, tokens=(7, 8), suffix="z") == [PRE, 7, 8, SUF, *b"z", MID]
    fim_text.known = dataclasses.replace(FACTS, add_bos=True)
    assert tokens(fim_text, prompt="ab", suffix="z") == [1, PRE, *b"ab", SUF, *b"z", MID]


def test_other_files_stand_before_the_gap(fim_text: Any) -> None:
    infill = Infill("ab", "z", (("f.py", "x"),))
    gap = [PRE, *b"ab", SUF, *b"z", MID]
    assert tokens(fim_text, infill=infill) == [*b"\n\n--- snippet ---\n\nx", *gap]
    fim_text.known = dataclasses.replace(FACTS, special=PROJECT)
    assert tokens(fim_text, infill=infill) == [REP, *b"myproject\n", SEP, *b"f.py\nx", SEP, *b"filename\n", *gap]
    assert tokens(fim_text, infill=Infill("ab", "z")) == [REP, *b"myproject\n", SEP, *b"filename\n", *gap]


def test_what_does_not_fit_is_left_out_where_it_is_farthest_from_the_gap(fim_text: Any) -> None:
    """A context of 100 leaves 71 tokens beside the answer and the markers."""
    fim_text.n_ctx_seq = 100
    extra = (("old", "o" * 60), ("new", "n" * 30))
    found = bytes(t for t in tokens(fim_text, infill=Infill("p" * 10, "s" * 5, extra)) if t < 200)
    assert found.endswith(b"n" * 30 + b"p" * 10 + b"s" * 5) and len(found) == 71
    far, near = "<far" + "p" * 200, "s" * 200 + "far>"
    found = bytes(t for t in tokens(fim_text, infill=Infill(far, near, extra)) if t < 200)
    assert found == b"p" * 53 + b"s" * 18


@pytest.mark.parametrize(("n_ctx", "left"), [(6, b"s"), (5, b""), (2, b"")])
def test_a_context_without_room_for_the_prefix_gets_none_of_it(fim_text: Any, n_ctx: int, left: bytes) -> None:
    fim_text.n_ctx_seq = n_ctx
    assert bytes(t for t in tokens(fim_text, infill=Infill("p" * 9, "s" * 9, (("f", "e"),))) if t < 200) == left


@pytest.mark.parametrize("fields", [{"prompt": "a", "suffix": "z"}, {"infill": Infill("a", "b")}])
def test_a_model_without_the_tokens_is_not_asked(fake_text: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(UmaError, match="filling in") as caught:
        tokens(fake_text, **fields)
    assert caught.value.error is ErrorCode.UNSUPPORTED
