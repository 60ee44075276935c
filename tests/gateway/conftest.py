"""Gateways and daemons for the tests of this folder. The tests of a file share one pair, or a test starts its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.fixtures import folder, module_folder, serve
from tests.daemon.support import ENDLESS, ROOT, SMALL, TINY, DaemonProcess, running
from tests.gateway.support import GatewayProcess, gateway_before


@pytest.fixture(scope="module")
def fake(module_folder: Path) -> Iterator[DaemonProcess]:
    """A daemon on the simulated engine, with levers."""
    with running(module_folder, "--engine", "fake", has_levers=True, **ENDLESS) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def gateway(module_folder: Path, fake: DaemonProcess) -> Iterator[GatewayProcess]:
    """A gateway before `fake`."""
    with gateway_before(module_folder, fake) as gateway:
        yield gateway


@pytest.fixture
def levers(fake: DaemonProcess) -> Iterator[Callable[..., None]]:
    """Slow `fake` down, or make it fail, until the test ends."""

    def pull(**levers: Any) -> None:
        fake.pull(**levers)

    yield pull
    fake.pull(step_ms=0)


@pytest.fixture
def before(folder: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """Start a gateway before a daemon."""
    with contextlib.ExitStack() as stack:

        def start(daemon: DaemonProcess | str, *args: str, **spawn: Any) -> GatewayProcess:
            return stack.enter_context(gateway_before(folder, daemon, *args, **spawn))

        yield start


@pytest.fixture(scope="module")
def tiny(module_folder: Path) -> Iterator[DaemonProcess]:
    """A daemon on the embedded model."""
    with running(module_folder, "--model", str(TINY), *SMALL, path=str(module_folder / "tiny.sock")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def tiny_gateway(module_folder: Path, tiny: DaemonProcess) -> Iterator[GatewayProcess]:
    with gateway_before(module_folder, tiny) as gateway:
        yield gateway


WORK = (
    ROOT.parent / "shared" / "models" / "uma-work-cpu-q8_0.gguf"
)  # calls tools, thinks, writes JSON; it lies beside the checkout, if it is there


@pytest.fixture(scope="module")
def work(module_folder: Path) -> Iterator[DaemonProcess]:
    """A daemon on a small model that follows instructions."""
    if not WORK.exists():
        pytest.skip(f"needs {WORK}")
    with running(
        module_folder, "--model", str(WORK), *SMALL, "--n-ctx", "8192", path=str(module_folder / "work.sock")
    ) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def work_gateway(module_folder: Path, work: DaemonProcess) -> Iterator[GatewayProcess]:
    with gateway_before(module_folder, work) as gateway:
        yield gateway
