"""Large requests beside streams. They are read in a separate process, or in the daemon if that is switched off."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from tests.daemon.support import eventually, text_of

LONG = "The shell reads commands and runs them. " * 900  # 36 KB


def helpers(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    tasks = Path(f"/proc/{pid}/task")
    listed = [int(word) for task in tasks.iterdir() for word in (task / children.name).read_text().split()]
    return [child for child in listed if b"helper_child" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.parametrize("engine", ["llama", "graph"])
def test_what_a_large_request_gives_does_not_depend_on_who_reads_it(serve_model, engine):
    answers = []
    for switch in ("--read-apart", "--no-read-apart"):
        daemon = serve_model(
            "--engine", engine, "--n-ctx", "16384", "--parallel", "1", "--max-tokens", "64", switch, children=""
        )
        events = daemon.generate(LONG, max_tokens=20, overflow="truncate-middle")
        counted = daemon.ask("count", prompt=LONG)["n_tokens"]
        eventually(lambda daemon=daemon, switch=switch: len(helpers(daemon.process.pid)) == (switch == "--read-apart"))
        usage = events[-1]["usage"]
        answers.append((text_of(events), usage["prompt_tokens"], usage["completion_tokens"], counted))
        daemon.stop()
    assert answers[0] == answers[1]
    assert answers[0][2] == 20


def test_the_end_of_the_process_costs_no_stream(serve):
    daemon = serve(children="")
    daemon.pull(step_ms=5)
    stream = daemon.stream(max_tokens=200).begun()
    for _ in range(3):
        assert daemon.generate("x" * 20_000, overflow="truncate-middle", max_tokens=2)[-1]["reason"] == "length"
        (helper,) = eventually(lambda: helpers(daemon.process.pid))
        os.kill(helper, signal.SIGKILL)
    assert stream.end()["reason"] == "length"


def test_it_ends_with_the_daemon_even_when_that_is_killed(serve):
    daemon = serve(children="")
    (helper,) = eventually(lambda: helpers(daemon.process.pid))
    daemon.signal(signal.SIGKILL)
    daemon.wait()
    eventually(lambda: not Path(f"/proc/{helper}").exists(), "it outlived its daemon")


def test_without_shared_memory_the_daemon_reads_them_itself(serve):
    """Services may be allowed no files (`LimitFSIZE=0`), and shared memory counts as one."""
    daemon = serve(children="", limits={resource.RLIMIT_FSIZE: 0})
    assert daemon.generate("x" * 20_000, overflow="truncate-middle", max_tokens=2)[-1]["reason"] == "length"
    assert not helpers(daemon.process.pid)
