"""The operations as they are declared."""

from __future__ import annotations

import pytest

from uma_core.protocol.fields import Field
from uma_core.protocol.ops import DEFAULT_OP, OPS


def test_operations_are_declared_consistently():
    for name, op in OPS.items():
        assert op.name == name
        assert op.help.endswith(".")
        assert not {"id", "event", "type"} & {field.name for field in op.reply}, "these belong to the envelope"


def test_an_operation_is_found_if_a_request_names_none() -> None:
    assert DEFAULT_OP in OPS


@pytest.mark.parametrize("name", OPS)
def test_every_field_has_one_meaning_and_allows_its_default(name: str) -> None:
    def walk(fields: tuple[Field, ...]) -> None:
        names = [field.name for field in fields]
        assert len(set(names)) == len(names)
        for field in fields:
            if isinstance(field.default, int | float) and not isinstance(field.default, bool):
                low, high = field.low, field.high
                assert (low is None or low <= field.default) and (high is None or field.default <= high), field.name
            if field.choices and field.default is not None:
                values = [field.default] if isinstance(field.default, str) else field.default
                assert set(values) <= set(field.choices), field.name
            walk(field.fields)

    walk(OPS[name].fields)
