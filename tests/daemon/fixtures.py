"""Fixtures for every folder whose tests start daemons. Each folder's conftest.py imports them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.support import DaemonProcess, running
from tests.folders import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture(scope="module")
def module_folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture
def serve(folder: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Start a daemon on the simulated engine, with levers."""
    with contextlib.ExitStack() as stack:

        def start(*args: str, **spawn: Any) -> DaemonProcess:
            return stack.enter_context(running(folder, "--engine", "fake", *args, **{"has_levers": True, **spawn}))

        yield start
