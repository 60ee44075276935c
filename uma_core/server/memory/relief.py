"""The reaction to memory pressure, one step at a time: cached KV, then idle sequences. Streams lose nothing."""

from __future__ import annotations

import logging
import os

import uma_core.metrics.catalog as m
from uma_core.config.options import Config
from uma_core.executor.thread import ComputeThread
from uma_core.server.io.aside import run_aside
from uma_core.server.io.loop import Loop
from uma_core.server.memory import budget
from uma_core.server.memory.pressure import Watcher, watch
from uma_core.session.events import Call

log = logging.getLogger(__name__)


class Relief:
    """Runs on the I/O thread. `apply` starts or stops watching, as the configuration says."""

    def __init__(self, loop: Loop, compute: ComputeThread, registry: m.Registry) -> None:
        self._loop = loop
        self._compute = compute
        self._bytes = registry.counter(m.RELIEVED_BYTES)
        self._watcher: Watcher | None = None
        self._mode = "off"
        self._is_under_way = False

    def apply(self, config: Config) -> None:
        if config.cache.pressure == self._mode:
            return
        self._mode = config.cache.pressure
        self.close()
        if self._mode != "off":
            self._watcher = watch(self._loop, self.on_pressure, os.environ)

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def on_pressure(self) -> None:
        """Take one step; the next signal triggers the next one."""
        if self._is_under_way:
            return
        self._is_under_way = True
        self._compute.submit(
            Call(self._relieve, lambda n_bytes, failure: self._loop.call_soon(lambda: self._done(n_bytes, failure)))
        )

    def _relieve(self) -> int:
        return sum(executor.relieve() for executor in self._compute.executors)

    def _done(self, n_bytes: int | None, failure: BaseException | None) -> None:
        self._is_under_way = False
        if failure is not None:
            log.error("giving memory back failed", exc_info=failure)
            return
        run_aside(self._loop, "give-back", budget.give_back, lambda _: None)
        self._bytes.add(n_bytes or 0)
        level = logging.WARNING if n_bytes else logging.DEBUG
        log.log(level, "memory is short: dropped %d MiB of cached KV", (n_bytes or 0) // budget.MIB)
