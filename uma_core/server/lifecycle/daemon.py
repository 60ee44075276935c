"""The composition root: builds the parts of the daemon, connects them, runs the loop and shuts them down.

Threads: this one runs the I/O loop and gets the signals; `compute` owns the engines; `intake` reads prompts;
`loader` and `closer` live while a model is loaded or closed. The socket answers from the first moment; `status` reports
the progress of the load.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable

from uma_core import __version__, descriptors, endpoint
from uma_core.allocator import tame_allocator
from uma_core.clock import MonotonicClock
from uma_core.config import presets
from uma_core.config.load import Sources
from uma_core.config.options import Config, loopback, ns
from uma_core.errors import ErrorCode, UmaError
from uma_core.executor.thread import ComputeThread
from uma_core.log import installed
from uma_core.metrics.catalog import new_registry
from uma_core.models import DEMO_NOTICE
from uma_core.server.io.app import IoApp
from uma_core.server.io.listener import bind_unix, passed_sockets
from uma_core.server.io.loop import Loop
from uma_core.server.io.ports import Services
from uma_core.server.io.scrape import Scraper
from uma_core.server.lifecycle import signals, stdin
from uma_core.server.lifecycle.gateway import STOP_S, Gateway
from uma_core.server.lifecycle.host import Host
from uma_core.server.lifecycle.http_options import check_http
from uma_core.server.lifecycle.lifecycle import EXIT, Lifecycle
from uma_core.server.lifecycle.notify import Notifier
from uma_core.server.lifecycle.reload import Reloader
from uma_core.server.lifecycle.supervise import Supervision
from uma_core.server.memory.relief import Relief
from uma_core.server.memory.tidy import Tidy
from uma_core.server.operations.admin import Admin
from uma_core.server.operations.helper import Helper
from uma_core.server.operations.props import props
from uma_core.server.operations.status import Status
from uma_core.server.operations.tracing import Tracing
from uma_core.types import n_extra

log = logging.getLogger(__name__)

# the compute thread waits this long for the GIL when another thread is busy (Python's default: 5 ms)
SWITCH_INTERVAL_S = 0.0005
STOP_TIMEOUT_S = 5.0
OTHER_FILES = 256  # descriptors besides connections: the files of the model and the cache, listeners, refused clients


class Daemon:
    """The daemon's one process. `run` returns the exit status."""

    def __init__(self, config: Config, sources: Sources) -> None:
        self.clock = MonotonicClock()
        self.registry = new_registry()
        self.loop = Loop(self.clock)
        self.compute = ComputeThread(self.loop.wake, self.clock, self.loop.wake_fd)
        self.host = Host(config, self.loop, self.compute, self.registry, self.clock)
        self.lifecycle = Lifecycle(self._config, self.loop, self.compute, self.host, self.clock)
        self.reloader = Reloader(config, sources, self.loop, self.host, self.lifecycle, self.registry)
        self.status = Status(self.host, self.lifecycle, self.reloader, self.registry, self.clock)
        self.helper = _helper() if config.ipc.read_apart else None
        self.admin = Admin(self.loop, self.host, self.lifecycle, self.reloader)
        self.app = IoApp(self.loop, self.compute, self._services(), self.registry, self.helper)
        self.notifier = Notifier(os.environ, os.getpid())
        self.supervision = Supervision(self.notifier, self.loop, self.compute, self.host, self.lifecycle)
        self.relief = Relief(self.loop, self.compute, self.registry)
        self.tracing = Tracing(self.loop, self.host)
        self.tidy = Tidy(self.registry, lambda: self.reloader.generation)
        self.gateway = Gateway(self.loop, self._path())
        self.scraper: Scraper | None = None
        self.exit_status = 0
        self._join()

    def _config(self) -> Config:
        return self.reloader.config

    def _path(self) -> str:
        return self._config().ipc.uds_path or endpoint.places(os.environ)[0]

    def _services(self) -> Services:
        return Services(
            config=self._config,
            text=lambda: self.host.engine,
            gate=self.lifecycle.gate,
            status=self.status.status,
            health=self.status.health,
            metrics=self.status.metrics,
            prometheus=self.status.prometheus,
            sessions=lambda: self.host.rows,
            props=lambda is_trusted: props(
                self.host.engine, self.host.is_demo, self._config(), self.reloader.generation, is_trusted
            ),
            admin=self.admin,
        )

    def _join(self) -> None:
        """Connect the parts: decide which part gets which events."""
        self.host.is_in_use = self.app.intake.is_using
        self.host.on_doing = self.supervision.on_doing
        self.status.gateway = self.gateway.report
        if self.helper is not None:
            self.host.on_crowded = self.helper.is_crowded.set
        self.status.n_connections = lambda: len(self.app.clients)
        self.lifecycle.n_in_flight = lambda: len(self.app.ledger)
        self.lifecycle.has_unsent = self.app.has_unsent
        self.lifecycle.on_change = self.supervision.on_state
        self.lifecycle.on_reload = self._reload
        self.reloader.on_begin = self.supervision.on_reload
        self.reloader.on_end = self.supervision.on_reloaded
        self.reloader.on_applied = self._applied

    def run(self) -> int:
        config = self._config()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        tame_allocator()
        _make_room(config.ipc.max_connections)
        signals.install(self.loop, self.lifecycle, self._reload)
        if config.ipc.stop_at_eof:
            stdin.watch(lambda: self.loop.call_soon(self._let_go))
        passed = passed_sockets(os.environ, os.getpid())
        sockets = passed or [bind_unix(self._path(), config.ipc.backlog, config.ipc.check_folder)]
        path = next((bound.path for bound in sockets if bound.path), "")
        try:
            # before the ports: whoever starts a second daemon must read about the first, not about a port that it has
            self.app.start(sockets)
            check_http(config.http, STOP_S)
            address = loopback(config.metrics.listen)
            if address is not None:
                self.scraper = Scraper(self.loop, address, self.status.prometheus)
            self.compute.start()
            self.supervision.start()
            self.relief.apply(config)
            self.tracing.apply(config.log)
            self.gateway.path = path or self.gateway.path
            self.gateway.apply(config.http)
            self._housekeep()
            # imported objects stay: a full collection then looks only at the rest, and takes 1 ms instead of 25
            gc.freeze()
            preset = "" if config.engine.preset == presets.NONE else f", with the preset {config.engine.preset}"
            where = ", ".join(word for word in ("a passed socket" if passed else "", path) if word)
            log.info("uma-core %s listens on %s%s", __version__, where, preset)
            if not config.engine.model:
                log.warning(DEMO_NOTICE)
            self.host.load(config, self._loaded, is_start=True)
            self.loop.run()
        finally:
            self._take_down()
        return self.exit_status

    def _loaded(self, error: UmaError | None) -> None:
        if error is not None:
            if error.error is ErrorCode.SHUTTING_DOWN and self.lifecycle.is_leaving:
                return  # the load was abandoned because the daemon stops: that is no failure
            log.error("%s", error)
            self.exit_status = error.error.spec.exit_status
            self.lifecycle.stop()
            return
        engine = self.host.engine
        assert engine is not None
        info = engine.info
        self.status.on_ready()
        self.lifecycle.loaded()
        self.app.intake.prepare()
        self.reloader.go_on()
        what = (
            f"{info.model_name} ({info.engine}) on {info.backend}, {info.n_seq_max} sequences of {info.n_ctx_seq} cells"
        )
        log.info("ready after %.1f s: %s", self.status.start_ms / 1e3, what)

    def _reload(self, then: Callable[[], object] = lambda: None) -> None:
        """Reload for SIGHUP and `drain --then reload`. No client waits for the answer; the log and `status` show it."""
        self.reloader.reload_next(then)

    def _let_go(self) -> None:
        """Stop, because the program that started the daemon has exited."""
        if not self.lifecycle.is_leaving:
            log.warning("standard input closed: running requests may finish, then the daemon stops")
            self.lifecycle.drain(None, EXIT)

    def _applied(self, config: Config) -> None:
        output = installed()
        if output is not None:
            output.apply(config.log)
        _make_room(config.ipc.max_connections)
        self.app.apply(config)
        self.relief.apply(config)
        self.tracing.apply(config.log)
        self.gateway.apply(config.http)

    def _housekeep(self) -> None:
        """Check what raises no event: sliding windows, hangs of the engine, removed sockets, llama.cpp's log."""
        self.loop.call_later(ns(self._config().metrics.tick_interval_ms), self._housekeep)
        self.registry.rotate(self.clock.now_ns())
        self.lifecycle.check()
        self.app.check_sockets()
        self.tidy.beat()
        if self.host.engine is not None:
            self.host.engine.pump_log()

    def _take_down(self) -> None:
        """Send every accepted request its final event, then close the sockets, then the model."""
        self.reloader.give_up()
        self.host.give_up()
        self.app.stop_accepting()
        if self.scraper is not None:
            self.scraper.close()
        self.app.intake.stop()
        is_ended = self.compute.stop(STOP_TIMEOUT_S)
        self.loop.turn(0)
        if not is_ended:
            log.error("%s: the compute thread is stuck in the engine; leaving it", ErrorCode.ENGINE_HUNG.code)
            self.exit_status = self.exit_status or 1
        self.app.end_all(UmaError(ErrorCode.SHUTTING_DOWN if is_ended else ErrorCode.ENGINE_HUNG))
        self.admin.close()
        self.app.close()
        self.gateway.close()
        self.relief.close()
        self.tracing.close()
        self.notifier.close()
        self.loop.close()
        if not is_ended or not self.host.join(STOP_TIMEOUT_S):
            self._leave()
        for executor in self.compute.executors:
            executor.engine.close()

    def _leave(self) -> None:
        """Exit without closing the engine: a thread is still inside it, and unloading its library would crash."""
        output = installed()
        if output is not None:
            output.close()
        os._exit(self.exit_status)


def _make_room(n_connections: int) -> None:
    """Raise the limit on open files to what these connections need."""
    wanted = n_connections + n_extra(n_connections) + OTHER_FILES
    descriptors.make_room(wanted, f"{n_connections} connections")


def _helper() -> Helper | None:
    """Return what reads large requests in another process; None: the system has no memory to share with it."""
    try:
        return Helper()
    except OSError as error:
        log.warning("large requests are read in the daemon's own process: %s", error)
        return None


def run(config: Config, sources: Sources) -> int:
    """Serve until told to stop. Raises: SOCKET_IN_USE, CONFIG_INVALID before anything is served."""
    return Daemon(config, sources).run()
