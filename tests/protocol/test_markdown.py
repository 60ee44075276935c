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
    row = next(line for line in ops_markdown().splitlines() if line.startswith(f"| `{name}` |"))
    assert f"≤ {field.high}, each ≤ {field.each_high} characters" in row
