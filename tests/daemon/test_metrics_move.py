"""Every declared metric moves in one of these runs, because a figure that never changes is useless.

Each run makes a daemon do what some of the metrics count. `seen` collects the names of the metrics that left zero.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator

import pytest

from tests.daemon.support import DRAFT, DaemonProcess, Wire, eventually, text_of
from uma_core.metrics.catalog import METRICS
from uma_core.metrics.export import PREFIX

PROMPT = "Once upon a time there was a kernel that had many tasks to run, and it ran them one after another. "
SAMPLE = re.compile(r"(\w+?)(?:_bucket|_sum|_count)?(?:\{.*\})? (\S+)")
NAMES = {PREFIX + metric.name for metric in METRICS}


def moved(daemon: DaemonProcess) -> set[str]:
    """Return the names of the metrics that are not zero now."""
    samples = (SAMPLE.fullmatch(line) for line in daemon.ask("metrics", format="prometheus")["text"].splitlines())
    found = {match[1] for match in samples if match and float(match[2])}
    return {name for name in NAMES if name in found}


@pytest.fixture(scope="module")
def seen() -> set[str]:
    return set()


@pytest.fixture
def watch(seen: set[str]):
    """Read the metrics until these have moved. Any other metric that moves meanwhile counts too."""

    def look(daemon: DaemonProcess, *names: str) -> None:
        def all_there() -> bool:
            seen.update(moved(daemon))
            return {PREFIX + name for name in names} <= seen

        eventually(all_there, f"{[name for name in names if PREFIX + name not in seen]} never moved")

    return look


@contextlib.contextmanager
def unread(path: str) -> Iterator[Wire]:
    """A client that reads almost nothing from its socket."""
    with Wire(path) as wire:
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        yield wire


def test_a_chat_and_what_it_costs(serve_model, watch):
    daemon = serve_model("--bmt-budget", "auto", model=DRAFT)
    daemon.generate(PROMPT, max_tokens=12, temperature=0.8, slo={"target_ttft_ms": 0.001, "target_tbt_ms": 0.001})
    daemon.generate(PROMPT, max_tokens=12, constraint={"regex": "[a-z ]+"})
    daemon.generate(PROMPT, max_tokens=12, constraint={"json_schema": {"const": "forced"}})
    daemon.generate(PROMPT, max_tokens=12, banned_strings=[" ", "e"])
    chat = daemon.stream(PROMPT, max_tokens=400).begun()
    watch(daemon, "constraint_cache_total", "constraint_compile_seconds", "constraint_step_seconds")
    watch(daemon, "forced_tokens_total", "taken_back_tokens_total")
    watch(
        daemon,
        "overlap_active",
        "solo_step_seconds",
        "bmt_budget_bytes",
        "bmt_seconds",
        "slo_violations_total",
        "sampling_last_seconds",
    )
    chat.cancel()


def test_a_prompt_that_is_held_back(serve, watch):
    daemon = serve("--guard-cap", "1", "--pause-cap", "1", "--long-tick-share", "0", "--starvation-ticks", "100000")
    chat = daemon.stream("The shell is", max_tokens=100_000).begun()
    paste = daemon.stream(PROMPT * 40, max_tokens=1, priority="background")
    watch(daemon, "prefill_guard_active", "tokens_per_tick", "served_decoders")
    chat.cancel()
    paste.cancel()


def test_more_requests_than_sequences(serve, watch):
    daemon = serve("--parallel", "2", "--n-ctx", "1024")
    daemon.pull(step_ms=5)
    back = [daemon.stream(PROMPT, max_tokens=300, priority="background") for _ in range(3)]
    eventually(lambda: daemon.status()["sessions"]["decode"] >= 2)
    watch(daemon, "queue_depth", "kv_cells_shared", "sessions_by_phase")
    chat = daemon.stream("Hello", max_tokens=20, priority="interactive")
    watch(daemon, "preemptions_total")
    daemon.pull(step_ms=0)
    assert chat.end()["event"] == "eos"
    for stream in back:
        stream.cancel()


def test_what_outlives_a_request(serve, folder, watch):
    daemon = serve("--parallel", "2", "--cache-ram-mb", "3", "--cache-dir", str(folder / "kv"), "--park-idle-ms", "0")
    for n in range(6):
        daemon.generate(f"{n} {PROMPT}", max_tokens=2)
    daemon.generate(f"0 {PROMPT} and then", max_tokens=2)
    watch(
        daemon,
        "cache_hits_total",
        "cache_misses_total",
        "cache_bytes",
        "cache_evictions_total",
        "cache_restore_seconds",
    )

    def relieve() -> bool:
        daemon.pull(pressure=1)
        return bool(daemon.ask("metrics")["metrics"]["relieved_bytes_total"])

    eventually(relieve)
    watch(daemon, "relieved_bytes_total")
    daemon.stop()
    next((folder / "kv").rglob("*.umakv")).write_bytes(b"damaged")
    watch(serve("--cache-dir", str(folder / "kv")), "cache_files_removed_total")


def test_readers_that_do_not_read(serve, watch):
    daemon = serve("--tx-soft-bytes", "1024", "--tx-hard-bytes", "4096", "--write-timeout-ms", "500")
    with unread(daemon.path) as wire:
        wire.send(id="s", prompt="x", max_tokens=100_000, ignore_eos=True)
        watch(daemon, "tx_buffered_bytes", "slow_clients_total")


def test_what_goes_wrong(serve, watch):
    daemon = serve()
    daemon.pull(bad_plans=3)
    assert daemon.generate("Hello", max_tokens=4)[-1]["reason"] == "length"
    with daemon.connect() as wire:
        assert wire.ask("generate", prompt=3)["event"] == "error"
    daemon.ask("reload")
    watch(daemon, "plan_violations_total", "errors_total", "reloads_total")


def test_drafts_that_hold(serve, watch):
    daemon = serve("--speculate", "lookup")
    said = text_of(daemon.generate("Hello", max_tokens=40, priority="background"))
    daemon.generate("Hello", max_tokens=40, priority="background", prediction=said)
    watch(daemon, "draft_tokens_total", "accepted_draft_tokens_total")


def test_a_log_that_nobody_takes(serve, watch):
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        daemon = serve("--log-level", "debug", log=write_end)
        watch(daemon, "log_lines_dropped_total")
    finally:
        os.close(write_end)


def test_cells_that_are_not_there(serve, watch):
    daemon = serve()
    daemon.pull(n_full=3)
    daemon.generate("Hello", max_tokens=4)
    watch(daemon, "alloc_warnings_total")


def test_every_declared_metric_has_moved(seen):
    """Runs last. A new metric needs a run above in which it moves. A metric that cannot move should be removed."""
    assert seen, "the runs of this file come first"
    still = sorted(NAMES - seen)
    assert not still, f"declared, exported, and always 0: {', '.join(still)}"
