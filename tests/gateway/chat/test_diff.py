from __future__ import annotations

import pytest

from uma_gateway.chat.diff import ToolCall


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ('{"city": "Oslo"}', {"city": "Oslo"}),
        ("", {}),
        ('{"city": "Os', {"": '{"city": "Os'}),  # the answer was cut off
        ('["Oslo"]', {"": '["Oslo"]'}),  # clients take an object only
    ],
)
def test_the_values_of_a_call_are_an_object(arguments: str, values: dict[str, str]) -> None:
    assert ToolCall("call_1", "weather", arguments).values == values
