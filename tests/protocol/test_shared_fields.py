"""What `generate`, `embed` and `rerank` share."""

from __future__ import annotations

import pytest

from uma_core.protocol.shared_fields import shared_values, to_ns
from uma_core.types import Priority

ABSENT = dict.fromkeys(("priority", "timeout_ms", "model", "account", "metadata"))


@pytest.mark.parametrize(("ms", "ns"), [(None, 0), (0, 0), (0.0, 0), (1.5, 1_500_000), (1e-9, 1), (5e-324, 1)])
def test_only_no_limit_becomes_zero(ms: float | None, ns: int) -> None:
    assert to_ns(ms) == ns


def test_what_is_absent_has_the_request_s_default() -> None:
    assert shared_values(ABSENT) == {"priority": None, "timeout_ns": 0, "model": "", "account": "", "metadata": {}}


def test_names_become_values() -> None:
    values = shared_values({**ABSENT, "priority": "background", "timeout_ms": 2, "metadata": {"k": 1}})
    assert (values["priority"], values["timeout_ns"], values["metadata"]) == (Priority.BACKGROUND, 2_000_000, {"k": 1})
