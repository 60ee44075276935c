"""Server-sent events."""

from __future__ import annotations

import pytest

from uma_gateway import sse


@pytest.mark.parametrize("text", ["a", "a\n\nb", "a\r\n", "\u2028"])
def test_an_event_is_one_line_of_data_whatever_its_text(text: str) -> None:
    for written in (sse.data({"a": text}), sse.event("told", {"a": text})):
        *before, data, end, rest = written.split(b"\n")
        assert data.startswith(b"data: {") and not end and not rest and b"\r" not in written
        assert before in ([], [b"event: told"])
