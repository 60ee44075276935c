"""Reload: the whole configuration is read and checked first, then put in force at once, or not at all.

Rules: one at a time; any failure leaves the old configuration and the old model serving, and shows in `status`.
A model or context change loads beside the old engine where memory allows: running streams finish there, new
ones start here. Else: drain, unload, load; and if that fails, load the old one again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uma_core.metrics as m
from uma_core.config import Config
from uma_core.config_load import Change, Inputs, Sources, diff, load
from uma_core.errors import ErrorCode, UmaError
from uma_core.policy.pipeline import compose
from uma_core.server.host import Host
from uma_core.server.lifecycle import Lifecycle
from uma_core.server.memory import Fit

log = logging.getLogger(__name__)

Answer = Callable[[dict[str, Any] | UmaError], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One reload on its way. `answer` is called once."""

    config: Config
    inputs: Inputs
    changes: tuple[Change, ...]
    is_check: bool
    needs_engine: bool
    answer: Answer


class Reloader:
    """Owned by the I/O thread. `config` is the one in force."""

    def __init__(self, config: Config, sources: Sources, host: Host, lifecycle: Lifecycle, registry: m.Registry) -> None:
        self.config = config
        self.generation = 1
        self.on_begin: Callable[[], None] = lambda: None  # neither for checks nor for what is refused before it starts
        self.on_end: Callable[[], None] = lambda: None
        self.on_applied: Callable[[Config], None] = lambda config: None
        self._inputs = sources.inputs
        self._host = host
        self._lifecycle = lifecycle
        self._job: Job | None = None
        self._last = "none"
        self._error: UmaError | None = None
        self._counts = {result: registry.counter(m.RELOADS, result=result) for result in ("ok", "failed")}

    def report(self) -> dict[str, Any]:
        """For `status`."""
        error = self._error.to_dict() if self._error is not None else None
        return {"generation": self.generation, "last": self._last, "error": error, "is_under_way": self._job is not None}

    def reload(self, answer: Answer, is_check: bool = False, model: str | None = None) -> None:
        """`answer` gets generation and changes, or the error that kept everything as it was."""
        if self._job is not None or self._host.is_loading:
            answer(UmaError(ErrorCode.RELOAD_BUSY))
            return
        try:
            job = self._read(answer, is_check, model)
        except UmaError as error:
            if not is_check:
                self._note_failure(error)
            answer(error)
            return
        self._job = job
        if not is_check:
            self.on_begin()
        if job.needs_engine:
            self._host.check(job.config, lambda outcome: self._checked(job, outcome))
        elif is_check:
            self._succeed(job)
        else:
            self._apply(job)

    def _read(self, answer: Answer, is_check: bool, model: str | None) -> Job:
        inputs = self._inputs.with_flag("model", model) if model else self._inputs
        config, sources = load(inputs)
        check_stages(config)
        changes = tuple(diff(self.config, config))
        fixed = [change.key for change in changes if not change.is_reloadable]
        if fixed:
            raise UmaError(ErrorCode.CONFIG_INVALID, f"only a restart can change {', '.join(fixed)}", keys=fixed)
        needs_engine = bool(model) or self._host.engine is None or any(change.reload == "engine" for change in changes)
        return Job(config, sources.inputs, changes, is_check, needs_engine, answer)

    # another engine

    def _checked(self, job: Job, outcome: Fit | UmaError) -> None:
        if isinstance(outcome, UmaError):
            self._fail(job, outcome)
        elif job.is_check:
            self._succeed(job, fit=outcome.value)
        elif outcome is Fit.BESIDE:
            self._host.load(job.config, lambda error: self._loaded(job, error))
        else:
            log.info("the new model does not fit beside the old one: draining first")
            try:
                self._lifecycle.swap(lambda: self._unload(job), lambda error: self._fail(job, error))
            except UmaError as error:
                self._fail(job, error)

    def _unload(self, job: Job) -> None:
        self._lifecycle.loading()
        self._host.unload(lambda error: self._unloaded(job, error))

    def _unloaded(self, job: Job, error: UmaError | None) -> None:
        if error is not None:
            self._restore(job, error)
        else:
            self._host.load(job.config, lambda failure: self._restore(job, failure) if failure else self._loaded(job, None))

    def _restore(self, job: Job, error: UmaError) -> None:
        log.error("loading failed, the old model comes back: %s", error)

        def restored(failure: UmaError | None) -> None:
            self._lifecycle.loaded(lost=failure)
            self._fail(job, error)

        self._host.load(self.config, restored)

    def _loaded(self, job: Job, error: UmaError | None) -> None:
        if error is not None:
            self._fail(job, error)
            return
        self._lifecycle.loaded()
        self._apply(job)

    # live settings, and the end

    def _apply(self, job: Job) -> None:
        self.config, self._inputs = job.config, job.inputs
        self.on_applied(job.config)
        self._host.apply(job.config, lambda error: self._fail(job, error) if error else self._succeed(job))

    def _succeed(self, job: Job, **facts: Any) -> None:
        if not job.is_check:
            self.generation += 1
            self._last, self._error = "ok", None
            self._counts["ok"].add()
            log.info("configuration %d is in force: %s", self.generation, ", ".join(c.key for c in job.changes) or "nothing changed")
        rows = [{"name": c.key, "old": _plain(c.old), "new": _plain(c.new), "is_live": c.reload == "live"} for c in job.changes]
        self._end(job, {"generation": self.generation, "changes": rows, **facts})

    def _fail(self, job: Job, error: UmaError) -> None:
        if not job.is_check:
            self._note_failure(error)
        self._end(job, error)

    def _end(self, job: Job, outcome: dict[str, Any] | UmaError) -> None:
        if self._job is not job:
            return  # given up: answered already
        self._job = None
        job.answer(outcome)
        if not job.is_check:
            self.on_end()

    def give_up(self) -> None:
        """The daemon stops."""
        if self._job is not None:
            self._end(self._job, UmaError(ErrorCode.SHUTTING_DOWN))

    def _note_failure(self, error: UmaError) -> None:
        self._last, self._error = "failed", error
        self._counts["failed"].add()
        log.error("reload failed, the old configuration stays: %s", error)


def check_stages(config: Config) -> None:
    """Raises: CONFIG_INVALID for a policy that cannot be composed."""
    try:
        compose(config.scheduler.stages)
    except ValueError as error:
        raise UmaError(ErrorCode.CONFIG_INVALID, f"scheduler.stages: {error}", problems=[f"scheduler.stages: {error}"]) from error


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else {str(k): v for k, v in value.items()} if isinstance(value, dict) else value
