"""`log.trace` as reloads change it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from perf.simulator import Job, Sim
from uma_core.config.options import LogOptions
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.server.operations.tracing import Tracing
from uma_core.trace.file import TraceFile

WAIT_S = 20.0


class Host:
    """Stands in for the host; it records nothing itself."""

    def __init__(self) -> None:
        self.files: list[TraceFile] = []

    def record(self, file: TraceFile) -> None:
        self.files.append(file)

    def forget(self, file: TraceFile, then) -> None:
        self.files.remove(file)


def test_a_file_that_could_not_be_written_to_is_tried_again_by_a_reload(tmp_path: Path) -> None:
    path, host = tmp_path / "folder" / "ticks", Host()
    tracing, options = Tracing(None, host), dataclasses.replace(LogOptions(), trace=str(path))
    tracing.apply(options)
    (first,) = host.files
    assert first.close(WAIT_S)  # its folder is not there
    path.parent.mkdir()
    tracing.apply(options)
    (second,) = host.files
    sim = Sim(CPU_SHAPE, keep_states=True)
    sim.submit(Job(32, 4))
    sim.run()
    for state, plan in sim.log:
        second(state, plan, state.reports)
    tracing.apply(options)
    assert host.files == [second], "a file that is written to goes on"
    tracing.close()
    assert path.stat().st_size > 0
