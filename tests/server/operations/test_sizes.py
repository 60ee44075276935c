"""The size of a request's text, which the caps are checked against."""

from __future__ import annotations

from typing import Any

import pytest

from uma_core.server.operations.sizes import input_bytes, text_bytes


@pytest.mark.parametrize(
    ("value", "n_bytes"),
    [
        ("", 0),
        ("\u00e9\U0001f600", 6),
        (7, 4),
        (True, 0),
        (None, 0),
        (1.5, 0),
        ({"names do not count": "ab"}, 2),
        ([("a", [{"x": "bc"}, 1]), "d"], 8),
    ],
)
def test_strings_count_in_bytes_and_token_ids_as_four(value: Any, n_bytes: int) -> None:
    assert text_bytes(value) == n_bytes


def test_deep_values_are_counted_without_recursion() -> None:
    value: Any = "a"
    for _ in range(100_000):
        value = [value]
    assert text_bytes(value) == 1


@pytest.mark.parametrize(
    ("args", "n_bytes"),
    [
        ({}, 0),
        ({"prompt": "abc", "suffix": "de", "tokens": None}, 5),
        ({"tokens": (1, 2, 3)}, 12),
        ({"messages": ({"role": "user", "content": "hi"},)}, 6),
        ({"input": ("ab", (1, 2))}, 10),
        ({"query": "q", "documents": ("ab", "c")}, 4),
        ({"infill": {"extra": [{"text": "ab"}]}}, 2),
        ({"stop": ("abc",), "metadata": {"a": "b"}}, 0),
    ],
)
def test_only_a_request_s_input_counts(args: dict[str, Any], n_bytes: int) -> None:
    assert input_bytes(args) == n_bytes
