"""Daemons for the tests of this folder."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.support import SMALL, TINY, DaemonProcess, running

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.daemon)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, because the path of a Unix socket is."""
    path = Path(tempfile.mkdtemp(prefix="uma-t-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def serve(folder: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Start a daemon on the simulated engine, with levers."""
    with contextlib.ExitStack() as stack:

        def start(*args: str, **spawn: Any) -> DaemonProcess:
            return stack.enter_context(running(folder, "--engine", "fake", *args, **{"has_levers": True, **spawn}))

        yield start


@pytest.fixture
def serve_model(folder: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Start a daemon on the small trained model."""
    with contextlib.ExitStack() as stack:

        def start(*args: str, model: Path = TINY, **spawn: Any) -> DaemonProcess:
            return stack.enter_context(running(folder, "--model", str(model), *SMALL, *args, **spawn))

        yield start
