"""Daemons for the tests of this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.fixtures import folder, module_folder, serve
from tests.daemon.forked import Nursery, nursery
from tests.daemon.supervisor import Supervisor
from tests.daemon.support import DRAFT, SMALL, DaemonProcess, running


@pytest.fixture
def serve_model(folder: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Start a daemon on the smallest trained model: what a test costs is mostly computed by the model."""
    with contextlib.ExitStack() as stack:

        def start(*args: str, model: Path = DRAFT, **spawn: Any) -> DaemonProcess:
            return stack.enter_context(running(folder, "--model", str(model), *SMALL, *args, **spawn))

        yield start


@pytest.fixture
def supervisor(folder: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(folder)
    yield supervisor
    supervisor.close()


@pytest.fixture(scope="module")
def daemons() -> Iterator[Nursery]:
    """Starts daemons that end soon, many of them."""
    with nursery() as made:
        yield made
