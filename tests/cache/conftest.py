"""Settings for the tests of this folder."""

from __future__ import annotations

import pytest

from uma_core.cache import disk


@pytest.fixture(autouse=True)
def usual_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk's thread gets its turn as other threads do. With its own low priority, a test that waits for it would
    wait for whatever else a busy machine computes.
    """
    monkeypatch.setattr(disk, "NICE", 0)
