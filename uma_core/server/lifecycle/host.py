"""The engines of the process: loads them while others run, installs them between ticks, retires them, and publishes
views of their sessions and memory.

Rules: the I/O thread owns this object. Loading and closing happen on threads of their own, installation on the
compute thread; all report back through `Loop.call_soon`. An engine is closed when its last session has ended and no
prompt is being tokenised with it.
"""

from __future__ import annotations

import errno
import gc
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from uma_core import threads
from uma_core.cache.settings import CacheSettings
from uma_core.clock import Clock
from uma_core.config.options import Config, ns
from uma_core.engine.api import Engine, MemoryUse
from uma_core.engine.draft import estimate_with_draft, for_drafts, is_eagle, open_draft, open_heads
from uma_core.engine.select.open import open_engine
from uma_core.engine.select.trial import Trial
from uma_core.errors import ErrorCode, UmaError, unexpected
from uma_core.executor import view
from uma_core.executor.admission import AdmissionControl, Limits
from uma_core.executor.calibration import calibrate, warm_up
from uma_core.executor.executor import Executor, device_view
from uma_core.executor.thread import ComputeThread
from uma_core.machine import N_PROCESSORS
from uma_core.metrics.catalog import Registry
from uma_core.models import is_default_model
from uma_core.server.io.aside import run_aside
from uma_core.server.io.loop import Loop
from uma_core.server.memory import budget
from uma_core.session.events import Call
from uma_core.speculation.heads import HeadModel
from uma_core.speculation.model import Drafter, DraftModel
from uma_core.speculation.settings import OFF, Settings
from uma_core.speculation.speculator import Speculator
from uma_core.trace.recorder import Sink

log = logging.getLogger(__name__)

# least time between two views while work is done: each takes hundreds of microseconds between two ticks
PUBLISH_NS = 250_000_000
CLOSE_POLL_S = 0.01
UNLOAD_TIMEOUT_S = 60.0
LOADING = "the model is loading"
TELL_EVERY_NS = 5_000_000_000  # between log lines about the progress of a load

Done = Callable[[UmaError | None], None]


def limits_of(config: Config) -> Limits:
    limits = config.limits
    return Limits(
        max_sessions=limits.max_sessions,
        max_tokens=limits.max_tokens,
        default_max_tokens=limits.default_max_tokens,
        queue=(limits.queue_interactive, limits.queue_background),
        auto_lane_tokens=config.scheduler.auto_lane_tokens,
        timeout_ns=ns(limits.request_timeout_ms),
        slo_ttft_ns=ns(config.scheduler.slo_ttft_ms),
        slo_tbt_ns=ns(config.scheduler.slo_tbt_ms),
        overflow=limits.overflow,
    )


def cache_of(config: Config) -> CacheSettings:
    cache = config.cache
    return CacheSettings(
        is_on=cache.prefix,
        ram_bytes=cache.ram_mb << 20,
        disk_dir=cache.disk_dir,
        disk_bytes=cache.disk_mb << 20,
        is_shared=cache.share_across_uids,
        park_idle_ns=ns(cache.park_idle_ms),
    )


def speculation_of(config: Config) -> Settings:
    options = config.speculation
    return Settings(options.mode, options.max_draft_tokens, options.history_tokens)


class Host:
    """`engine` is the one that new requests get; None: there is none."""

    def __init__(self, config: Config, loop: Loop, compute: ComputeThread, registry: Registry, clock: Clock) -> None:
        self.engine: Engine | None = None
        self.is_demo = False  # whether the embedded model is served
        self.view: view.ExecutorView | None = None
        self.rows: list[dict[str, Any]] = []
        self.retiring: list[dict[str, Any]] = []  # models that are finishing their last streams
        self.is_loading = False
        self.progress = 0.0  # share of the weights that has been read
        self.doing = LOADING  # the step of the load in progress
        self.on_doing: Callable[[], None] = lambda: None  # `doing` changed
        # called every turn: whether streams take all processors
        self.on_crowded: Callable[[bool], None] = lambda is_crowded: None
        self.is_in_use: Callable[[Engine], bool] = lambda engine: False
        self.admission = AdmissionControl(limits_of(config), clock)
        self._recorders: tuple[Sink, ...] = ()
        self._is_given_up = False
        self._in_use = "llama"  # the engine that a load takes where the two were not compared
        self._t_told_ns = 0  # when the progress of a load was last logged
        self._loop = loop
        self._compute = compute
        self._registry = registry
        self._clock = clock
        self._open: list[Engine | Drafter] = []  # installed and not yet closed
        self._threads: list[threading.Thread] = []
        self._closed = threading.Condition()
        compute.between_ticks = self._publish
        compute.on_retired = self._retire

    # loading

    def check(self, config: Config, answer: Callable[[budget.Fit | UmaError], None]) -> None:
        """Find out how the engine of `config` could be loaded, and answer on the I/O thread. Changes nothing."""
        self._start(lambda: self._fit(config), answer, answer)

    def load(self, config: Config, done: Done, is_start: bool = False) -> None:
        """Open the engine of `config` and make it the current one; `done` is called on the I/O thread.

        Running streams finish on the engine that they began on. Engines are compared only when the daemon starts: later
        that would slow streams down, or delay requests that wait for the new model.
        """

        def build() -> tuple[Executor, bool]:
            executor = self._build(config, is_start)
            return executor, is_default_model(executor.engine.info.model_path)  # here, because it reads the file system

        def opened(built: tuple[Executor, bool]) -> None:
            self.is_loading = True
            executor, is_demo = built

            def installed(_: object, failure: BaseException | None) -> None:
                self._loop.call_soon(lambda: self._installed(executor, is_demo, failure, done))

            self._compute.submit(Call(lambda: self._install(executor), installed))

        self._start(build, opened, done)

    def unload(self, done: Done) -> None:
        """Close all engines. No session may be left; `done` is called on the I/O thread when the memory is free."""
        self.engine = self.view = None
        self._compute.submit(Call(self._compute.dismiss, log_failure("dismissing the engines")))
        self._start(self._wait_closed, lambda _: done(None), done)

    def give_up(self) -> None:
        """Make a load in progress stop soon, without an engine."""
        self._is_given_up = True

    def _start(
        self, work: Callable[[], Any], on_done: Callable[[Any], None], on_error: Callable[[UmaError], None]
    ) -> None:
        """Run `work` on its own thread, then `on_done` or `on_error` on the I/O thread."""
        assert not self.is_loading
        self.is_loading = True
        self.progress, self.doing = 0.0, LOADING
        self._t_told_ns = self._clock.now_ns()

        def run() -> Any:
            try:
                return work()
            except UmaError:
                raise
            except Exception as error:
                return _load_failure(error)

        def end(outcome: Any) -> None:
            self.is_loading = False
            if isinstance(outcome, UmaError):
                on_error(outcome)
            else:
                on_done(outcome)

        self._await(run_aside(self._loop, "loader", run, end, budget.start))

    def _await(self, thread: threading.Thread) -> None:
        """Have `join` wait for this thread."""
        self._threads = [t for t in (*self._threads, thread) if t.is_alive()]

    def join(self, timeout_s: float) -> bool:
        """Wait for loading and closing to end. False: they did not."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    # on the loader thread

    def _fit(self, config: Config) -> budget.Fit:
        need = estimate_with_draft(config.engine, config.speculation, self._in_use)
        live = [engine.memory() for engine in list(self._open)]
        held = MemoryUse(*map(sum, zip(*live, strict=True))) if live else None
        budget_bytes = config.engine.memory_budget_mb * budget.MIB
        return budget.choose(need, held, budget_bytes, budget.available_bytes())

    def _build(self, config: Config, is_start: bool) -> Executor:
        if not self._open:
            self._fit(config)
        options = for_drafts(config.engine, config.speculation)
        engine = open_engine(options, "", self._on_progress, self._trial(config) if is_start else None, self._in_use)
        if is_start:
            budget.give_back()  # memory of an engine that was only opened for comparison
        drafter: Drafter | None = None
        try:
            if self._is_given_up:
                raise UmaError(ErrorCode.SHUTTING_DOWN)
            # measuring beside running streams would slow them down, and distort the measurement
            mode = "stored" if self.rows and config.engine.calibrate == "auto" else config.engine.calibrate
            if not engine.info.can_generate:
                mode = "off"  # there is no stream to protect: the cost model learns from the calls
            cost = calibrate(engine, device_view(engine), self._clock, mode)
            if engine.info.can_generate:
                warm_up(engine)
            drafter = self._open_drafter(config, engine)
            speculator = Speculator(speculation_of(config), engine.info.is_deterministic, model=drafter)
            scheduler = config.scheduler.to_scheduler_config()
            executor = Executor(
                engine, self.admission, scheduler, cost, self._registry, self._clock, speculator, self._compute.ports
            )
            executor.set_cache(cache_of(config))
            return executor
        except BaseException:
            if drafter is not None:
                drafter.close()
            engine.close()
            raise

    def _open_drafter(self, config: Config, engine: Engine) -> Drafter | None:
        """Open the draft model or the model's own prediction heads. None: neither is configured or usable."""
        path, can, name = config.speculation.draft_model, engine.info.capabilities, engine.info.model_name
        if not path and not config.engine.mtp:
            return None
        what, reads_states = ("the draft model", is_eagle(config.engine, path)) if path else ("prediction heads", True)
        if not can.n_verify_rows:
            log.warning("%s cannot verify drafts: not loading %s", name, what)
            return None
        if reads_states and not can.keeps_hidden:
            log.warning("%s does not keep the hidden states that %s would read: not loading it", name, what)
            return None
        if config.speculation.mode == OFF:
            log.info("speculation.mode is off: only requests that ask for drafts use %s", what)
        if reads_states:
            return HeadModel(open_heads(config.engine, path, engine), self._clock)
        return DraftModel(open_draft(config.engine, path), engine.info.n_vocab, self._clock)

    def _trial(self, config: Config) -> Trial:
        def fits(need: MemoryUse, free: int | None) -> bool:
            return budget.holds(
                need, config.engine.memory_budget_mb * budget.MIB, budget.available_bytes() if free is None else free
            )

        def tell(doing: str) -> None:
            self.doing = doing
            self._loop.call_soon(self.on_doing)

        return Trial(fits, lambda: not self._is_given_up, tell)

    def _on_progress(self, share: float) -> bool:
        self.progress = share
        now = self._clock.now_ns()
        if now - self._t_told_ns >= TELL_EVERY_NS:
            self._t_told_ns = now
            log.info("%s: %.0f %%", self.doing, 100 * share)
        return not self._is_given_up

    def _wait_closed(self) -> None:
        with self._closed:
            if not self._closed.wait_for(lambda: not self._open, UNLOAD_TIMEOUT_S):
                raise UmaError(ErrorCode.ENGINE_HUNG, "the old model could not be unloaded")

    # installing and retiring

    def _install(self, executor: Executor) -> None:
        """Make the new engine current. Runs on the compute thread."""
        self._compute.install(executor)
        for recorder in self._recorders:
            executor.record(recorder)
        self._open += _engines(executor)
        self._publish(False, has_changed=True)

    def _installed(self, executor: Executor, is_demo: bool, failure: BaseException | None, done: Done) -> None:
        self.is_loading = False
        if failure is not None:
            for engine in _engines(executor):
                engine.close()
            done(unexpected(failure))
            return
        self.engine, self.is_demo = executor.engine, is_demo
        if executor.engine.info.engine in ("llama", "graph"):
            self._in_use = executor.engine.info.engine
        for note in executor.engine.info.notes:
            log.info("%s", note)
        done(None)

    def _retire(self, executor: Executor) -> None:
        """Close a retired engine. Runs on the compute thread; the closing takes long, so it gets its own thread."""
        leaving = _engines(executor)
        try:
            self._await(budget.start(threading.Thread(target=self._close, args=(leaving,), name="closer", daemon=True)))
        except UmaError as error:
            log.warning("%s is closed between two ticks: %s", executor.engine.info.model_name, error)
            self._close(leaving)

    def _close(self, leaving: list[Engine | Drafter]) -> None:
        """Close the engines in the list, and return their memory to the system."""
        while leaving:
            self._close_one(leaving.pop(0))

    def _close_one(self, engine: Engine | Drafter) -> None:
        while engine is self.engine or (not isinstance(engine, Drafter) and self.is_in_use(engine)):
            time.sleep(CLOSE_POLL_S)
        name = engine.name if isinstance(engine, Drafter) else engine.info.model_name
        try:
            engine.close()
        except Exception:
            log.exception("closing %s failed", name)
        with self._closed:
            self._open.remove(engine)
            del engine
            # an executor's parts refer to each other: without a collection, its vocabulary and buffers would stay for
            # many reloads
            gc.collect()
            budget.give_back()
            self._closed.notify_all()
        log.info("%s is closed", name)

    # settings

    def apply(self, config: Config, done: Done) -> None:
        """Apply live settings, all of them between the same two ticks."""
        scheduler, limits, cache = config.scheduler.to_scheduler_config(), limits_of(config), cache_of(config)
        speculation = speculation_of(config)

        def change() -> None:
            self.admission.limits = limits
            for executor in self._compute.executors:
                executor.set_config(scheduler)
                executor.set_cache(cache)
                executor.set_speculation(speculation)

        def reply(result: object, failure: BaseException | None) -> None:
            self._loop.call_soon(lambda: done(unexpected(failure) if failure is not None else None))

        self._compute.submit(Call(change, reply))

    def record(self, recorder: Sink) -> None:
        """Record the ticks of all engines to the sink, including engines that are loaded later."""
        self._recorders = (*self._recorders, recorder)

        def record() -> None:
            for executor in self._compute.executors:
                executor.record(recorder)

        self._compute.submit(Call(record, log_failure("recording the ticks")))

    def forget(self, recorder: Sink, done: Callable[[], None]) -> None:
        """Stop recording to the sink; `done` is called on the I/O thread once it gets no more ticks."""
        self._recorders = tuple(r for r in self._recorders if r is not recorder)

        def forget() -> None:
            for executor in self._compute.executors:
                executor.forget(recorder)

        self._compute.submit(Call(forget, lambda *_: self._loop.call_soon(done)))

    def ask(
        self, function: Callable[[Executor], dict[str, Any]], answer: Callable[[dict[str, Any] | UmaError], None]
    ) -> None:
        """Run `function` on the compute thread between two ticks; `answer` is called there."""

        def run() -> dict[str, Any]:
            if self._compute.current is None:
                raise UmaError(ErrorCode.MODEL_NOT_LOADED)
            return function(self._compute.current)

        def reply(result: Any, failure: BaseException | None) -> None:
            if failure is None:
                answer(result)
            elif isinstance(failure, UmaError):
                answer(failure)
            else:
                log.error("operation failed", exc_info=failure)
                answer(unexpected(failure))

        self._compute.submit(Call(run, reply))

    # views, on the compute thread

    def _publish(self, is_busy: bool, has_changed: bool = False) -> None:
        """Update the views, at most every PUBLISH_NS unless a model was installed or the number of sessions changed."""
        self.on_crowded(
            is_busy and any(e.has_streams and e.engine.info.n_threads >= N_PROCESSORS for e in self._compute.executors)
        )
        executors, current, last = self._compute.executors, self._compute.current, self.view
        now, n_sessions = self._clock.now_ns(), sum(len(e.table) for e in executors)
        is_fresh = last is not None and now - last.at_ns < PUBLISH_NS and n_sessions == len(self.rows)
        if is_fresh and not has_changed and (is_busy or n_sessions):
            return
        if current is not None:
            views = [view.take(executor, now) for executor in executors]
            self.view = views[executors.index(current)]._replace(estimate_ms=max(v.estimate_ms for v in views))
        self.retiring = [
            {"model": e.engine.info.model_name, "sessions": len(e.table)} for e in executors if e is not current
        ]
        self.rows = [row for executor in executors for row in view.sessions(executor, now)]


def _engines(executor: Executor) -> list[Engine | Drafter]:
    """Return the drafter and the engine, to close in this order because the drafter may use the engine's model."""
    model = executor.draft_model
    return [executor.engine] if model is None else [model, executor.engine]


def _load_failure(error: Exception) -> UmaError:
    """Return the error of a load for an exception without a code: no memory, no thread, or an unexpected model."""
    text = f"{type(error).__name__}: {error}"
    if threads.is_refusal(error):  # raised when a library could not start its own thread
        return UmaError(ErrorCode.INSUFFICIENT_MEMORY, threads.WORDS)
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return UmaError(ErrorCode.INSUFFICIENT_MEMORY, text)
    log.error("loading failed", exc_info=error)
    return UmaError(ErrorCode.MODEL_LOAD_FAILED, text)


def log_failure(what: str) -> Callable[[object, BaseException | None], None]:
    """Return the reply function of a Call whose result nobody waits for: it only logs a failure."""

    def reply(result: object, failure: BaseException | None) -> None:
        if failure is not None:
            log.error("%s failed", what, exc_info=failure)

    return reply
