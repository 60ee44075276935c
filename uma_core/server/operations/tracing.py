"""`log.trace`: writes ticks to the file that the configuration names."""

from __future__ import annotations

from uma_core.config.options import LogOptions
from uma_core.server.io.aside import run_aside
from uma_core.server.io.loop import Loop
from uma_core.server.lifecycle.host import Host
from uma_core.trace.file import TraceFile

MIB = 1 << 20
CLOSE_S = 2.0


class Tracing:
    """Runs on the I/O thread."""

    def __init__(self, loop: Loop, host: Host) -> None:
        self._loop = loop
        self._host = host
        self._file: TraceFile | None = None

    def apply(self, options: LogOptions) -> None:
        """Open, change or close the file; one that could not be written is opened again. Never blocks."""
        if self._file is not None and (self._file.has_failed or self._file.path != options.trace):
            old, self._file = self._file, None
            self._host.forget(old, lambda: self._end(old))
        if self._file is not None:
            self._file.max_bytes = options.trace_mb * MIB
        elif options.trace:
            self._file = TraceFile(options.trace, options.trace_mb * MIB)
            self._host.record(self._file)

    def _end(self, file: TraceFile) -> None:
        run_aside(self._loop, "trace", lambda: file.close(CLOSE_S), lambda _: None)

    def close(self) -> None:
        """Close the file when the daemon ends. Blocks for at most CLOSE_S."""
        if self._file is not None:
            self._file.close(CLOSE_S)
