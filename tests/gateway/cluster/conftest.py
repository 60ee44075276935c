"""Daemons for the tests of this folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon.fixtures import folder
from tests.daemon.support import DaemonProcess, running
from uma_gateway.cluster import token

token.use(os.environ, Path.home())  # must come before ray's import: a user's clusters may ask for the user's token


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that only `make fuzz` runs: Ray is slow to start, and a lost model is slow to come back."""
    if os.environ.get("UMA_FUZZ") == "full":
        return
    here = Path(__file__).parent
    long = [item for item in items if here in item.path.parents and item.get_closest_marker("fuzz")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture
def fakes(folder: Path) -> Iterator[Callable[..., list[DaemonProcess]]]:
    """Start some daemons on the simulated engine, with levers."""
    with contextlib.ExitStack() as stack:

        def start(n: int, *args: str) -> list[DaemonProcess]:
            found = []
            for i in range(n):
                (folder / str(i)).mkdir()
                found.append(stack.enter_context(running(folder / str(i), "--engine", "fake", *args, has_levers=True)))
            return found

        yield start
