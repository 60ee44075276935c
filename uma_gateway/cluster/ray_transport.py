"""Ray Serve as the transport: calls and streams of a deployment's replicas, each pinned to the intended replica."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from uma_gateway.cluster import placement, replicas
from uma_gateway.cluster.transport import Event, Unit, UnitLost
from uma_gateway.errors import GatewayError, Kind
from uma_gateway.within import within

log = logging.getLogger(__name__)

ABOUT_S = 5.0
FIRST_S = 30.0  # time for Serve to tell this process its replicas
LOAD_CALL_S = 60.0  # `units` waits this long for a node that loads a model; the node goes on
REFUSED_S = 5.0  # a node that refused a model is not asked for it again for this long
TIMED_OUT = "it did not answer in time"


class RayTransport:
    """Implements Transport."""

    def __init__(self, handle: Any, deployment: str, models: Mapping[str, int], load_s: float) -> None:
        """`handle`: of the deployment of nodes. `models`: on how many nodes each model must always be. `load_s`: a node
        gets this long to make room for a model and to start its daemon.
        """
        self._handle = handle
        self._deployment = deployment
        self._models = dict(models)
        self._load_s = load_s
        self._name = secrets.token_hex(8)  # this gateway's, by which a node knows whose requests it has
        self._about: dict[str, dict[str, Any]] = {}  # by replica: its last report
        # by replica and model: end of the refusal, and its reason
        self._refusals: dict[tuple[str, str], tuple[float, str]] = {}
        self._placing: set[str] = set()  # models that a replica is being asked to load
        self._placed: dict[tuple[str, str], float] = {}  # by replica and model: when the replica said that it loads it
        self._is_known = False

    async def units(self) -> list[Unit]:
        await self._look()
        if self._is_known:
            for model, replica in placement.missing(self._models, self._about):
                # `load` may have found a node for it meanwhile
                if model in self._placing or self._n_of(model) >= self._models[model]:
                    continue
                with contextlib.suppress(UnitLost):
                    await self._place(replica, model, LOAD_CALL_S)
        return [
            Unit(f"{name}/{model}", about["node"], model)
            for name, about in self._about.items()
            for model in about["models"]
        ]

    def _n_of(self, model: str) -> int:
        """Return the number of nodes that have a model, or are about to."""
        return sum(model in about["models"] for about in self._about.values())

    async def _place(self, replica: str, model: str, timeout_s: float) -> bool:
        """Have a replica load a model. Returns whether it does. Raises: UnitLost."""
        self._placing.add(model)
        try:
            reply = await self._ask("load", replica, model, timeout_s=timeout_s)
        finally:
            self._placing.discard(model)
        if "error" in reply:
            self._refused(replica, model, str(reply["error"]))
        else:
            self._placed[replica, model] = time.monotonic()
            if replica in self._about:  # its next report comes later
                self._about[replica]["models"].setdefault(model, {})
        return "error" not in reply

    def _refused(self, replica: str, model: str, why: str) -> None:
        """Note a refusal, so that other replicas are asked first: each request to load may start a process only to
        estimate.
        """
        if self._refusals.get((replica, model), (0.0, ""))[1] != why:
            log.error("%s cannot be loaded on %s: %s", model, replica, why)
        self._refusals[replica, model] = time.monotonic() + REFUSED_S, why
        if replica in self._about:  # false if it has left meanwhile
            self._about[replica].setdefault("refused", {})[model] = why

    async def _look(self) -> None:
        """Ask all replicas what they have. If one does not answer in time, its last report is kept."""
        t_asked = time.monotonic()
        names = replicas.running(self._deployment)
        if not names:  # this process has not used the handle yet
            with contextlib.suppress(UnitLost):
                await self._ask("about", "", timeout_s=FIRST_S)
            names = replicas.running(self._deployment)
        self._about = {name: about for name, about in self._about.items() if name in names}
        self._refusals = {key: value for key, value in self._refusals.items() if key[0] in names}
        self._placed = {key: t for key, t in self._placed.items() if key[0] in names}
        replies = await asyncio.gather(
            *(self._ask("about", name, timeout_s=ABOUT_S) for name in names), return_exceptions=True
        )
        for name, reply in zip(names, replies, strict=True):
            if isinstance(reply, dict) and "name" in reply:
                now = time.monotonic()
                refusals = {
                    model: why
                    for (replica, model), (t_until, why) in self._refusals.items()
                    if replica == name and t_until > now
                }
                # a report may be from before a load that has ended meanwhile
                placed = {model for (replica, model), t in self._placed.items() if replica == name and t >= t_asked}
                models = {model: {} for model in placed} | reply["models"]
                self._about[name] = {**reply, "models": models, "refused": refusals}
            elif isinstance(reply, UnitLost) and str(reply) != TIMED_OUT:
                self._about.pop(name, None)
        self._is_known = bool(names) and len(self._about) == len(names)

    async def _ask(self, method: str, replica: str, *args: Any, timeout_s: float = 60.0) -> dict[str, Any]:
        """Call a method of a replica. Raises: UnitLost."""
        response = _remote(self._handle.options(method_name=method), replica, *args)
        try:
            reply = await within(timeout_s, _awaited(response))
        except asyncio.TimeoutError:
            raise UnitLost(TIMED_OUT) from None
        except (RayError, RayServeException) as error:
            raise UnitLost(_reason(error)) from None
        if not isinstance(reply, dict):
            raise UnitLost("its answer has another form")
        if "lost" in reply:
            raise UnitLost(str(reply["lost"]))
        return reply

    async def call(self, unit: Unit, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        replica, model = unit.name.split("/", 1)
        given = operation, timeout_s, dict(fields), self._name
        reply = await self._ask("call", replica, model, *given, timeout_s=timeout_s + 1.0)
        if "error" in reply:
            raise GatewayError.of(reply["error"])
        found: Event = reply["reply"]
        return found

    async def stream(self, unit: Unit, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        replica, model = unit.name.split("/", 1)
        given = {**fields, "x_gateway": self._name}
        responses = _remote(self._handle.options(method_name="stream", stream=True), replica, model, given)
        is_over = False
        try:
            async for item in responses:
                if isinstance(item, str):
                    is_over = True
                    raise UnitLost(item)
                yield item
            is_over = True
        except (RayError, RayServeException) as error:
            is_over = True
            raise UnitLost(_reason(error)) from None
        finally:
            if not is_over:
                responses.cancel()

    async def load(self, model: str) -> None:
        await self._look()
        for _ in range(len(self._about) + 1):
            if model in self._placing:  # by `units`
                return
            place = placement.place(model, self._about)
            if place is None and (not self._about or any(model in about["models"] for about in self._about.values())):
                return  # it is loaded or being loaded, or no node is known yet
            if place is None:
                break
            with contextlib.suppress(UnitLost):
                if await self._place(place, model, self._load_s):
                    await self._look()
                    return
        refusals = [about["refused"][model] for about in self._about.values() if model in about.get("refused", {})]
        message = refusals[0] if refusals else "no node of the cluster answers"
        raise GatewayError(
            Kind.UNAVAILABLE,
            f"{model} cannot be loaded: {message}",
            code="insufficient_memory",
            retry_after_ms=int(REFUSED_S * 1e3),
        )

    async def close(self) -> None:
        """Do nothing: the handle belongs to Serve."""


def _remote(handle: Any, *args: Any) -> Any:
    """Call outside Serve's context of the HTTP request that is being answered. Calls in one context share its internal
    id, by which Serve's router tells calls apart, so some of several concurrent calls would never be sent.
    """
    return contextvars.Context().run(handle.remote, *args)


async def _awaited(response: Any) -> Any:
    return await response


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}"
