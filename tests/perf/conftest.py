"""Fake servers on short socket paths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.folders import short_folder


@pytest.fixture
def socket_path() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder / "s"
