"""A cluster as the gateway sees it: one daemon per model, and a gateway per model behind one address."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from uma_core.errors import UmaError
from uma_gateway.cluster import merge
from uma_gateway.cluster.cluster import POLL_S, Cluster
from uma_gateway.cluster.link import ELSEWHERE, TRIES_MOST, RoutedLink
from uma_gateway.cluster.transport import Event, Unit, UnitLost
from uma_gateway.config import Config
from uma_gateway.daemon import CALL_S, Daemon
from uma_gateway.errors import GatewayError, Kind, from_daemon
from uma_gateway.gateway import Gateway
from uma_gateway.generation import Generation
from uma_gateway.keys import Keys
from uma_gateway.link import no_daemon
from uma_gateway.model import Model

# for embeddings or reranking of many texts beside chats; without a limit callers would wait for a hung daemon for ever
COMPUTE_S = 600.0
# after this time a page asks for its stream again: a gateway that Serve stops is not told so, but waits for all streams
WATCH_S = 30.0
REFUSALS = frozenset(from_daemon(UmaError(code).to_dict()).code for code in ELSEWHERE)  # as the gateway names them
OF_ALL: dict[str, Callable[[list[tuple[Unit, Event]]], Event]] = {
    "status": merge.status,
    "sessions": merge.sessions,
    "metrics": merge.metrics,
    "health": merge.health,
    "drain": merge.drain,
    "undrain": merge.states,
    "cache": merge.cache,
    "trace": merge.trace,
}


class ClusterDaemon(Daemon):
    """All daemons of a model, used like one.

    A question about the cluster goes to every daemon, and the replies become one answer; any other question goes to one
    daemon.
    """

    def __init__(self, cluster: Cluster, model: str) -> None:
        super().__init__("")
        self.cluster = cluster
        self.model = model

    async def generate(self, fields: Mapping[str, Any], request_id: str) -> Generation:
        self.cluster.start()
        link = RoutedLink(self.cluster, self.model, fields, request_id, bool(fields.get("x_resume")))
        return Generation(link, request_id)

    async def loaded(self) -> None:
        """Return at once: a model in a cluster is loaded when a request asks for it."""

    async def call(self, operation: str, timeout_s: float = CALL_S, **fields: Any) -> Event:
        given = {name: value for name, value in fields.items() if value is not None}
        if operation == "reload":  # a daemon that keeps the old configuration must be reported
            return merge.reload(*await self._ask_each(operation, timeout_s, given))
        if operation in OF_ALL:
            return OF_ALL[operation](await self.ask_all(operation, timeout_s, given))
        return await self._ask_one(operation, timeout_s, given)

    async def compute(self, operation: str, request_id: str, fields: Mapping[str, Any]) -> Event:
        """Compute embeddings or reranking on any daemon of the model, and on another one if the first is lost."""
        return await self._ask_one(operation, COMPUTE_S, {**fields, "id": request_id})

    async def cancel(self, request_id: str, conn: int | None = None) -> Event:
        """Cancel a request. `request_id` and `conn`: as `sessions` shows them. Clients choose ids, so several requests
        may have the same one; without `conn` all of them end.
        """
        replies = await self.ask_all("cancel", CALL_S, {"id": request_id, "conn": conn})
        return {"found": any(reply["found"] for _, reply in replies)}

    async def _ask_one(self, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        """Ask one daemon. Like a generate request, this waits for a daemon to come back, and gives up after losing
        several. If a daemon refuses, one other is tried.

        Raises: GatewayError.
        """
        router, n_lost = self.cluster.router, 0
        refusal: GatewayError | None = None
        deadline_ns = time.monotonic_ns() + router.settings.closed_ns
        while n_lost < TRIES_MOST and time.monotonic_ns() <= deadline_ns:
            units = await self.cluster.available(self.model, self.cluster.load_s)
            for unit in self._turn(units)[: TRIES_MOST - n_lost]:
                try:
                    return await self._ask(unit, operation, timeout_s, fields)
                except UnitLost:
                    n_lost += 1
                    router.shut(unit.name)  # until its next digest
                except GatewayError as error:
                    if refusal is not None or error.code not in REFUSALS:
                        raise
                    refusal = error
                    router.shut(unit.name)
            if refusal is not None:
                raise refusal
            # if all of them have left, others are to be found, or the model is loaded again
            while units and not any(router.is_open(unit.name) for unit in units) and time.monotonic_ns() <= deadline_ns:
                await asyncio.sleep(POLL_S)
                units = self.cluster.of_model(self.model)
        raise no_daemon(f"no daemon of {self.model} answers")

    async def _ask(self, unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        """Ask this daemon. Raises: UnitLost, also once the daemon counts as silent; GatewayError."""
        if self.cluster.router.is_silent(unit.name):
            raise UnitLost("it sends nothing")
        asking = asyncio.ensure_future(self.cluster.transport.call(unit, operation, timeout_s, fields))
        loss = asyncio.Event()
        lost = asyncio.ensure_future(loss.wait())
        self.cluster.reading(unit.name, asking, loss.set)
        try:
            await asyncio.wait((asking, lost), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise UnitLost("it no longer sends anything")
            return asking.result()
        finally:
            self.cluster.left(unit.name, asking)
            for task in (asking, lost):
                task.cancel()

    def _turn(self, units: list[Unit]) -> list[Unit]:
        """Return the daemons, open ones first, and among these first those with the model that most have: if some have
        another one, the gateway's model would otherwise change with the daemon that is asked, and all requests with it.
        Each call begins with a different daemon.
        """
        at = time.monotonic_ns() // 1_000_000 % max(1, len(units))
        turned = units[at:] + units[:at]
        cluster, most = self.cluster, self.cluster.fingerprint(self.model)
        return sorted(
            turned,
            key=lambda unit: (not cluster.router.is_open(unit.name), cluster.fingerprints.get(unit.name) != most),
        )

    async def ask_all(self, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> list[tuple[Unit, Event]]:
        """Ask every daemon of the cluster.

        Daemons that do not answer, and those that refuse, are left out. Raises: GatewayError if no daemon answers, or
        all refuse.
        """
        return (await self._ask_each(operation, timeout_s, fields))[0]

    async def _ask_each(
        self, operation: str, timeout_s: float, fields: Mapping[str, Any]
    ) -> tuple[list[tuple[Unit, Event]], list[tuple[Unit, GatewayError]]]:
        """Return replies and refusals. Raises: those of `ask_all`."""
        units = await self.cluster.heard(CALL_S)
        replies = await asyncio.gather(
            *(self._ask(unit, operation, timeout_s, fields) for unit in units), return_exceptions=True
        )
        answered = list(zip(units, replies, strict=True))
        found = [(unit, reply) for unit, reply in answered if isinstance(reply, dict)]
        refused = [(unit, reply) for unit, reply in answered if isinstance(reply, GatewayError)]
        if not found:
            raise refused[0][1] if refused else no_daemon("no daemon of the cluster answers")
        return found, refused

    async def close(self) -> None:
        """Do nothing: the creator of the cluster closes it."""


class ClusterGateway(Gateway):
    """The gateway of a cluster's first model, which knows the gateways of the others."""

    def __init__(
        self, config: Config, keys: Keys, cluster: Cluster, models: list[str], on_demand: Collection[str] = ()
    ) -> None:
        """`on_demand`: the models that are loaded when a request asks for them; the first model is not one of them."""
        cluster.start()
        super().__init__(config, keys, ClusterDaemon(cluster, models[0]))
        self.cluster = cluster
        self.watch_s = WATCH_S
        self.names = models
        self._by_model: dict[str, Gateway] = {models[0]: self}
        for name in models[1:]:
            is_asking = name not in on_demand
            self._by_model[name] = Gateway(config, keys, ClusterDaemon(cluster, name), is_asking)
        for name, gateway in self._by_model.items():
            gateway.alias = name
            gateway.state = self.state

    def serving(self, name: object) -> Gateway:
        """Return the gateway for a model. A single model answers to any name. Of several, the named one answers, or the
        first if none is named.

        Raises: GatewayError (404).
        """
        if len(self._by_model) == 1 or not name:
            return self
        gateway = self._by_model.get(str(name).removesuffix(":latest")) or next(
            (each for each in self._by_model.values() if each.has_adapter(str(name))), None
        )
        if gateway is None:
            known = ", ".join(self._by_model)
            raise GatewayError(
                Kind.NOT_FOUND,
                f"there is no model {str(name)[:100]!r} here; there are {known}",
                "model",
                "model_not_found",
            )
        return gateway

    async def models(self) -> list[Model]:
        """Return the models that are loaded; the others are loaded when a request asks for them. A model whose daemons
        are away for the moment is returned as it was last known, so that the list does not wait for them.
        """
        loaded = {name: gateway for name, gateway in self._by_model.items() if self.cluster.of_model(name)}
        if not loaded:  # no model has a daemon now: wait for one of the first model
            return [await self.model(is_new=True)]
        here = {name for name in loaded if self._is_here(name)} or loaded.keys()
        listed = [(gateway, name in here) for name, gateway in loaded.items() if name in here or gateway.is_known]
        return list(await asyncio.gather(*(gateway.model(is_new=is_here) for gateway, is_here in listed)))

    def _is_here(self, name: str) -> bool:
        """Whether a daemon of this model takes requests."""
        return any(self.cluster.router.is_open(unit.name) for unit in self.cluster.of_model(name))

    async def close(self) -> None:
        await self.cluster.close()
