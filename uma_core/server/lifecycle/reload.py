"""Reload: the whole configuration is read and checked first, then applied as a whole or not at all.

Rules: the file is read on a thread of its own, because its file system may not answer. One reload at a time; signals
and drains that ask for one meanwhile get one more after it. Any failure leaves the old configuration and the old model
serving, and shows in `status`. A changed model or context is loaded beside the old engine if memory allows: running
streams finish on the old one, new ones start on the new one. Otherwise: drain, unload, load; and if that fails, load
the old one again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uma_core.metrics.catalog as m
from uma_core.config.load import Change, Inputs, Sources, diff, load
from uma_core.config.options import Config, HttpOptions
from uma_core.errors import ErrorCode, UmaError
from uma_core.server.io.aside import run_aside
from uma_core.server.io.loop import Loop
from uma_core.server.lifecycle.host import Host
from uma_core.server.lifecycle.http_options import check_http, check_http_options
from uma_core.server.lifecycle.lifecycle import Lifecycle
from uma_core.server.memory.budget import Fit

log = logging.getLogger(__name__)

READ_NS = 10_000_000_000  # for a file of a few kilobytes; after that its reader is abandoned

Answer = Callable[[dict[str, Any] | UmaError], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for a reload. `answer` is called once."""

    answer: Answer
    is_check: bool
    model: str | None


@dataclass(frozen=True, slots=True)
class Job:
    """One reload in progress, with the configuration that was read for it."""

    asked: Asked
    config: Config
    inputs: Inputs
    changes: tuple[Change, ...]
    needs_engine: bool

    @property
    def is_check(self) -> bool:
        return self.asked.is_check


class Reloader:
    """Owned by the I/O thread. `config` is the one in use."""

    def __init__(
        self, config: Config, sources: Sources, loop: Loop, host: Host, lifecycle: Lifecycle, registry: m.Registry
    ) -> None:
        self.config = config
        self.generation = 1
        self.on_begin: Callable[[], None] = lambda: None  # neither for checks nor for reloads that are refused at once
        self.on_end: Callable[[], None] = lambda: None
        self.on_applied: Callable[[Config], None] = lambda config: None
        self._inputs = sources.inputs
        self._loop = loop
        self._host = host
        self._lifecycle = lifecycle
        self._asked: Asked | None = None  # in progress
        self._next: list[Callable[[], object]] = []  # to be called after the next reload
        self._has_begun = False  # `on_begin` was called for it
        self._reader: threading.Thread | None = None  # the thread that reads the file
        self._last = "none"
        self._error: UmaError | None = None
        self._counts = {result: registry.counter(m.RELOADS, result=result) for result in ("ok", "failed")}

    def report(self) -> dict[str, Any]:
        """Return the entry for `status`."""
        error = self._error.to_dict() if self._error is not None else None
        return {
            "generation": self.generation,
            "last": self._last,
            "error": error,
            "is_under_way": self._asked is not None,
        }

    def reload(self, answer: Answer, is_check: bool = False, model: str | None = None) -> None:
        """`answer` gets generation and changes, or the error that kept everything as it was."""
        if self._is_busy():
            answer(UmaError(ErrorCode.RELOAD_BUSY))
            return
        asked = self._asked = Asked(answer, is_check, model)
        if self._reader is not None:
            self._fail(
                asked,
                UmaError(ErrorCode.CONFIG_INVALID, f"{self._inputs.path} is still being read for an earlier reload"),
            )
            return
        inputs = self._inputs.with_flag("model", model) if model else self._inputs
        timer = self._loop.call_later(READ_NS, lambda: self._give_reading_up(asked))

        def read(outcome: tuple[Config, Sources] | UmaError) -> None:
            timer.cancel()
            self._reader = None
            if self._asked is asked:  # otherwise it is too late
                self._was_read(asked, outcome)

        in_use = self.config.http
        self._reader = run_aside(self._loop, "reload", lambda: _read(inputs, in_use), read)

    def reload_next(self, then: Callable[[], object]) -> None:
        """Reload as soon as none is in progress, for those who cannot ask again. All who wait get the same reload."""
        if self._is_busy():
            log.info("a reload follows the one in progress")
        self._next.append(then)
        self.go_on()

    def go_on(self) -> None:
        """Begin the reload that others wait for, if there is one. Call it when a load has ended."""
        if self._next and not self._is_busy():
            waiting, self._next = self._next, []

            def answer(outcome: dict[str, Any] | UmaError) -> None:
                for then in waiting:
                    then()

            self.reload(answer)

    def _is_busy(self) -> bool:
        return self._asked is not None or self._host.is_loading

    def _give_reading_up(self, asked: Asked) -> None:
        if self._asked is asked:
            text = (
                f"{self._inputs.path} could not be read within {READ_NS / 1e9:.0f} s: its file system does not answer"
            )
            self._fail(asked, UmaError(ErrorCode.CONFIG_INVALID, text, path=self._inputs.path))

    def _was_read(self, asked: Asked, outcome: tuple[Config, Sources] | UmaError) -> None:
        if isinstance(outcome, UmaError):
            self._fail(asked, outcome)
            return
        try:
            job = self._job(asked, *outcome)
        except UmaError as error:
            self._fail(asked, error)
            return
        if self._host.is_loading:  # a load began while the file was read
            self._end(asked, UmaError(ErrorCode.RELOAD_BUSY))
            return
        if not asked.is_check:
            self._has_begun = True
            self.on_begin()
        if job.needs_engine:
            self._host.check(job.config, lambda outcome: self._checked(job, outcome))
        elif asked.is_check:
            self._succeed(job)
        else:
            self._apply(job)

    def _job(self, asked: Asked, config: Config, sources: Sources) -> Job:
        changes = tuple(diff(self.config, config))
        fixed = [change.key for change in changes if not change.is_reloadable]
        if fixed:  # with the origin: a user who changed the preset never wrote such a key
            names = ", ".join(f"{key} ({sources.origins[key]})" for key in fixed)
            raise UmaError(ErrorCode.CONFIG_INVALID, f"only a restart can change {names}", keys=fixed)
        needs_engine = (
            bool(asked.model) or self._host.engine is None or any(change.reload == "engine" for change in changes)
        )
        return Job(asked, config, sources.inputs, changes, needs_engine)

    # another engine

    def _checked(self, job: Job, outcome: Fit | UmaError) -> None:
        if isinstance(outcome, UmaError):
            self._fail(job.asked, outcome)
        elif job.is_check:
            self._succeed(job, fit=outcome.value)
        elif outcome is Fit.BESIDE:
            self._host.load(job.config, lambda error: self._loaded(job, error))
        else:
            log.info("the new model does not fit beside the old one: draining first")
            try:
                self._lifecycle.swap(lambda: self._unload(job), lambda error: self._fail(job.asked, error))
            except UmaError as error:
                self._fail(job.asked, error)

    def _unload(self, job: Job) -> None:
        self._lifecycle.loading()
        self._host.unload(lambda error: self._unloaded(job, error))

    def _unloaded(self, job: Job, error: UmaError | None) -> None:
        if error is not None:
            self._restore(job, error)
        else:
            self._host.load(
                job.config, lambda failure: self._restore(job, failure) if failure else self._loaded(job, None)
            )

    def _restore(self, job: Job, error: UmaError) -> None:
        log.error("loading failed, going back to the old model: %s", error)

        def restored(failure: UmaError | None) -> None:
            self._lifecycle.loaded(lost=failure)
            self._fail(job.asked, error)

        self._host.load(self.config, restored)

    def _loaded(self, job: Job, error: UmaError | None) -> None:
        if error is not None:
            self._fail(job.asked, error)
            return
        self._lifecycle.loaded()
        self._apply(job)

    # live settings, and the end

    def _apply(self, job: Job) -> None:
        self.config, self._inputs = job.config, job.inputs
        self.on_applied(job.config)
        self._host.apply(job.config, lambda error: self._fail(job.asked, error) if error else self._succeed(job))

    def _succeed(self, job: Job, **facts: Any) -> None:
        if not job.is_check:
            self.generation += 1
            self._last, self._error = "ok", None
            self._counts["ok"].add()
            log.info(
                "configuration %d is in use: %s",
                self.generation,
                ", ".join(c.key for c in job.changes) or "nothing changed",
            )
        rows = [{"name": c.key, "old": c.old, "new": c.new, "is_live": c.reload == "live"} for c in job.changes]
        self._end(job.asked, {"generation": self.generation, "changes": rows, **facts})

    def _fail(self, asked: Asked, error: UmaError) -> None:
        if not asked.is_check:
            self._note_failure(error)
        self._end(asked, error)

    def _end(self, asked: Asked, outcome: dict[str, Any] | UmaError) -> None:
        if self._asked is not asked:
            return  # answered already, when it was abandoned
        self._asked = None
        has_begun, self._has_begun = self._has_begun, False
        asked.answer(outcome)
        if has_begun:
            self.on_end()
        self.go_on()

    def give_up(self) -> None:
        """Abandon the reload, because the daemon stops."""
        self._next.clear()
        if self._asked is not None:
            self._end(self._asked, UmaError(ErrorCode.SHUTTING_DOWN))

    def _note_failure(self, error: UmaError) -> None:
        self._last, self._error = "failed", error
        self._counts["failed"].add()
        log.error("reload failed, the old configuration stays: %s", error)


def _read(inputs: Inputs, in_use: HttpOptions) -> tuple[Config, Sources]:
    """Read and check the configuration. `in_use`: the gateway's current options.

    Blocks for as long as the file system takes. Raises: CONFIG_INVALID.
    """
    config, sources = load(inputs)
    if (config.http.host, config.http.port) != (in_use.host, in_use.port):
        check_http(config.http)
    elif config.http != in_use:  # the gateway has the address already
        check_http_options(config.http)
    return config, sources
