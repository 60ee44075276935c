"""State that all requests share: configuration, the daemon, keys, the model that is served."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import time
from collections.abc import Mapping
from typing import Any

from uma_core.errors import UmaError
from uma_gateway.config import Config
from uma_gateway.daemon import Daemon
from uma_gateway.errors import GatewayError, Kind
from uma_gateway.keys import Keys
from uma_gateway.link import content_of
from uma_gateway.model import Model
from uma_gateway.within import within

log = logging.getLogger(__name__)

FRESH_S = 2.0  # how long the last known model is shown without asking again; the fingerprint keeps requests safe
CLOSE_S = 1.0  # when the gateway is told to stop, the first question to the daemon gets this long to end


class Gateway:
    """There is one for the life of the process, created in the event loop."""

    def __init__(self, config: Config, keys: Keys, daemon: Daemon | None = None, is_asking: bool = True) -> None:
        """`is_asking`: call `greet` at once."""
        self.config = config
        self.keys = keys
        self.state: dict[str, Any] = {}  # state that API families keep between requests; each chooses its own key
        self.daemon = daemon or Daemon(config.serve.socket)
        self.alias = config.serve.model_alias
        self.own_names = frozenset({socket.gethostname().lower(), config.serve.host.lower()})
        self.started_at = int(time.time())
        self.n_in_flight = 0
        self.stopping = asyncio.Event()  # ends streams that have no end of their own
        self.watch_s = math.inf  # such streams end after this time at the latest
        self._model: Model | None = None
        self._t_model = 0.0
        self._asking: asyncio.Task[Model] | None = None
        self._greeting: asyncio.Task[None] | None = None
        if is_asking:
            self.greet()

    def greet(self) -> None:
        """Ask the daemon about the model as soon as it is loaded, so that the first request need not wait."""
        self._greeting = asyncio.get_running_loop().create_task(self._greet())

    async def _greet(self) -> None:
        await self.daemon.loaded()
        self._ask()

    async def model(self, is_new: bool = False, asked: Mapping[str, Any] | None = None) -> Model:
        """Return the served model. `is_new`: ask the daemon again even if a model is known. `asked`: the request that
        needs it; a request that may name a LoRA adapter waits for a new answer if the known one is old.

        Raises: GatewayError (503).
        """
        known = self._model
        if known is not None and not is_new:
            is_old = time.monotonic() - self._t_model > FRESH_S
            if not is_old or not _may_name_adapter(asked or {}, known):
                if is_old:
                    self._ask()
                return known
        return await asyncio.shield(self._ask())

    @property
    def is_known(self) -> bool:
        """Whether the daemon has ever described its model; if so, `model` returns without waiting."""
        return self._model is not None

    def _ask(self) -> asyncio.Task[Model]:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._learn())
            self._asking.add_done_callback(_forget_failure)
        return self._asking

    async def _learn(self) -> Model:
        props = content_of(await self.daemon.call("props"))
        known = self._model
        if known is None or known.props != props:
            self._model = Model(props, self.alias, known)
            self._model.prepare()
        self._t_model = time.monotonic()
        assert self._model is not None
        return self._model

    def serving(self, name: object) -> Gateway:
        """Return the gateway for the model that a request names. Here there is one model, whatever name it is given."""
        return self

    def has_adapter(self, name: str) -> bool:
        """Whether the model, as last known, has a LoRA adapter of this name."""
        return self._model is not None and name in self._model.adapters

    async def models(self) -> list[Model]:
        """Return all served models, as the daemon reports them now. Raises: GatewayError (503)."""
        return [await self.model(is_new=True)]

    def enter(self) -> None:
        """Count a request that the model answers. Raises: GatewayError (503)."""
        if self.n_in_flight >= self.config.limits.max_in_flight:
            message = f"{self.n_in_flight} requests are being answered already"
            raise GatewayError(Kind.UNAVAILABLE, message, code="overloaded")
        self.n_in_flight += 1

    def leave(self) -> None:
        self.n_in_flight -= 1

    async def sleep(self, seconds: float) -> None:
        """Sleep, for streams that have no end of their own: returns early when the gateway stops."""
        with contextlib.suppress(asyncio.TimeoutError):
            await within(seconds, self.stopping.wait())

    def reload_keys(self) -> None:
        """Read the keys again, on SIGHUP or a reload of the daemon. Keeps the old keys if the file is wrong."""
        if self.keys.is_open:
            return
        try:
            log.info("keys in force: %d", self.keys.reload())
        except UmaError as error:
            log.error("the keys stay as they are: %s", error)

    async def close(self) -> None:
        for task in (self._greeting, self._asking):
            if task is not None and not task.done():
                task.cancel()
                # wait for it: it may be about to open the connection that is closed below
                await asyncio.wait([task], timeout=CLOSE_S)
        await self.daemon.close()


def _may_name_adapter(asked: Mapping[str, Any], known: Model) -> bool:
    """Whether a request may name an adapter that `known` does not list. A reload can change the adapters without
    changing the model's fingerprint. With an old list, a new adapter's name would look like any other model name, and
    the answer would not use the adapter.
    """
    return bool(asked.get("lora")) or asked.get("model") not in (None, "", known.name)


def _forget_failure(task: asyncio.Task[Model]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.debug("the model is not known: %s", task.exception())
