"""The tables of docs/PROTOCOL.md."""

from __future__ import annotations

import pytest

from uma_core.protocol.markdown import events_markdown, ops_markdown
from uma_core.protocol.ops import OPS


def test_documents_list_everything():
    text = ops_markdown()
    for op in OPS.values():
        assert f"### `{op.name}`" in text
        assert all(f"`{field.name}`" in text for field in op.fields + op.reply)
    assert all(f"### `{name}`" in events_markdown() for name in ("token", "eos", "error", "reply"))


@pytest.mark.parametrize("name", ["stop", "banned_strings"])
def test_the_length_of_each_text_is_documented(name):
    field = next(field for field in OPS["generate"].fields if field.name == name)
    assert f"≤ {field.high} items, each ≤ {field.each_high} characters" in _row(name)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("id", "≥ 1, ≤ 128 characters of a string"),  # an integer has no such bounds
        ("constraint.triggers[].value", "≥ 1, ≤ 1024 characters of a string"),
        ("prompt", "not empty"),
        ("tokens", "not empty"),
        ("messages", "not empty"),
        ("infill.extra", "≤ 256 items"),
        ("logit_bias", "≥ -1000000, ≤ 1000000, ≤ 20000 items"),
        ("metadata", "≤ 16 entries"),
        ("top_p", "> 0, ≤ 1"),
    ],
)
def test_the_range_of_a_length_is_told_from_that_of_a_value(name, shown):
    assert _row(name).split(" | ")[3] == shown


def _row(name: str) -> str:
    return next(line for line in ops_markdown().splitlines() if line.startswith(f"| `{name}` |"))
