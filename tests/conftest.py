"""Settings that every test run needs, however busy the machine is."""

from __future__ import annotations

import gc
import os
import pwd
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine makes tests slow, not wrong.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# OpenMP threads that spin at barriers make every step ten times slower beside other work. Daemons that tests start
# inherit this.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# A shell's background jobs ignore Ctrl-C, and their children inherit that. Some tests check how commands react to
# Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

NO_SKIPS = bool(os.environ.get("UMA_NO_SKIPS"))  # set where all tools of the tests are installed: a skip is a failure


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory of a user who has no home folder."""
    for name in ("HOME", "XDG_CACHE_HOME", "UMA_BUILD_CACHE"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


STARTS_DAEMONS = {Path(__file__).parent / name for name in ("daemon", "gateway")}
SAY_SO_THEMSELVES = {Path(__file__).parent / name for name in ("gateway/chat", "gateway/cluster")}  # most start none


# The longest files, longest first. Each runs in one process: one that began late would run on alone.
LONGEST = [
    Path(__file__).parent / name
    for name in (
        "native/test_install.py",
        "gateway/cluster/test_ray.py",
        "kernels/test_llama.py",
        "perf/test_harness.py",
    )
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path) if item.path in LONGEST else len(LONGEST))
    for item in items:
        folders = set(item.path.parents)
        if folders & STARTS_DAEMONS and not folders & SAY_SO_THEMSELVES:
            item.add_marker(pytest.mark.daemon)


# Nothing that test files define is garbage before the run ends. Collecting it while they are imported finds nothing,
# and every later collection would go through millions of objects.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def n_skipped(config: pytest.Config) -> int:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return len(reporter.stats.get("skipped", ())) if reporter is not None else 0


def pytest_sessionfinish(session: pytest.Session) -> None:
    if NO_SKIPS and session.exitstatus == pytest.ExitCode.OK and n_skipped(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if NO_SKIPS and n_skipped(config):
        terminalreporter.write_line(f"{n_skipped(config)} skipped: a failure, because UMA_NO_SKIPS is set", red=True)
