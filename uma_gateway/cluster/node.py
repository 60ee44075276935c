"""One node of a cluster: an actor that manages this machine's daemons, and through which gateways reach them.

It has one daemon per model, on a socket of its own. It loads a model when asked to. If there is no room, it evicts
models that need not stay, the longest idle first. Results are plain values, because our exceptions cannot be passed
reliably between processes.

Rules: knows Ray only by name.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from uma_core.machine import available_bytes
from uma_core.own_python import python_command
from uma_gateway.cluster import niceness
from uma_gateway.cluster.local import DAEMON, LocalDaemon
from uma_gateway.cluster.settings import ClusterSettings, ModelSettings
from uma_gateway.cluster.transport import UnitLost
from uma_gateway.errors import GatewayError
from uma_gateway.within import within

log = logging.getLogger(__name__)

MIB = 1 << 20
ESTIMATE_S = 120.0
GONE_S = 60.0  # a gateway that has called nothing for this long, while another did, has ended or is cut off
NAME_MOST = 40  # characters of a model in its socket's name: the path of a Unix socket is limited to about 100 in all
Result = dict[str, Any]
COMING = {"state": "starting", "requests": 0, "idle_s": 0.0, "restarts": 0, "is_adopted": False, "socket": ""}


class Node:
    """See the module's docstring."""

    def __init__(self, settings: ClusterSettings, name: str, node_id: str) -> None:
        """`name`: the actor's. `node_id`: the machine's, which is part of the names of its sockets."""
        self.settings = settings
        self.name = name
        self.node_id = node_id
        self._models = {model.name: model for model in settings.models}
        self._daemons: dict[str, LocalDaemon] = {}
        self._need_mb: dict[str, int] = {}
        self._heard: dict[str, float] = {}  # by gateway: when it last called
        self._asked: list[str] = []  # models of the calls of `load` that have not ended
        self._lock = asyncio.Lock()

    # what it has

    async def about(self) -> Result:
        """Return the facts that placement needs."""
        now = time.monotonic()
        return {
            "name": self.name,
            "node": self.node_id,
            "niceness": niceness.current(),
            "free_mb": self._free_mb(),
            "need_mb": dict(self._need_mb),
            # with those that are about to be loaded, so that nobody has them loaded elsewhere meanwhile
            "models": {name: dict(COMING) for name in self._asked}
            | {
                name: {
                    "state": daemon.state,
                    "requests": daemon.n_streams,
                    "idle_s": round(now - daemon.t_used, 1),
                    "restarts": daemon.restarts,
                    "is_adopted": daemon.is_adopted,
                    "socket": daemon.path,
                }
                for name, daemon in self._daemons.items()
            },
        }

    def _free_mb(self) -> int:
        """Return the memory for more models: what the budget leaves, or what the machine has free."""
        if self.settings.memory_mb:
            return self.settings.memory_mb - sum(self._need_mb.get(name, 0) for name in self._daemons)
        free = available_bytes()
        return (free if free is not None else 1 << 50) // MIB

    async def need_mb(self, model: str) -> int:
        """Return the memory that a model takes, as estimated by the daemon. Raises: GatewayError."""
        known = self._need_mb.get(model)
        if known is None:
            settings = self._models[model]
            known = self._need_mb[model] = settings.memory_mb or (0 if settings.socket else await estimate_mb(settings))
        return known

    # loading and evicting

    async def load(self, model: str) -> Result:
        """Start the model's daemon, unless it has been started. Its digest says when it accepts requests."""
        if model not in self._models:
            return {"error": f"no model {model} is configured"}
        self._asked.append(model)
        try:
            return await self._load(model)
        finally:
            self._asked.remove(model)

    async def _load(self, model: str) -> Result:
        async with self._lock:
            if model in self._daemons:
                return {"is_new": False}
            try:
                need = await self.need_mb(model)
                socket = self._models[model].socket or self._socket(model)
            except (ValueError, OSError) as error:
                return {"error": str(error)}
            idle = self.evictable()
            if need > self._free_mb() + sum(self._need_mb.get(name, 0) for name in idle):
                return {"error": f"{model} needs {need} MiB, {self._free_mb()} are free"}
            for name in idle:
                if need <= self._free_mb():
                    break
                # stopping the others takes time, and a request may have used it meanwhile
                if name not in self.evictable():
                    return {"error": f"{model} needs {need} MiB, {self._free_mb()} are free"}
                log.info("%s is evicted for %s", name, model)
                await self._unload(name)
            settings = self._models[model]
            daemon = LocalDaemon(socket, settings.daemon, is_startable=not settings.socket)
            self._daemons[model] = daemon
            daemon.start()
        return {"is_new": True}

    def evictable(self) -> list[str]:
        """Return models that need not stay and that no request uses, the longest idle first.

        A model that is still starting was asked for: evicted now, it would only be loaded once more.
        """
        now = time.monotonic()
        idle = {
            name: now - daemon.t_used
            for name, daemon in self._daemons.items()
            if not daemon.n_streams and not daemon.is_starting
        }
        found = [
            name
            for name, idle_s in idle.items()
            if not self._models[name].replicas and idle_s >= self._models[name].idle_s
        ]
        return sorted(found, key=lambda name: -idle[name])

    async def _unload(self, model: str) -> None:
        daemon = self._daemons.pop(model, None)
        if daemon is not None:
            await daemon.stop(self.settings.drain_s)

    async def evict_idle(self) -> None:
        """Evict models that have been idle for `idle_s`."""
        async with self._lock:
            while idle := self.evictable():
                log.info("%s is evicted: it had no request for %g s", idle[0], self._models[idle[0]].idle_s)
                await self._unload(idle[0])

    def _socket(self, model: str) -> str:
        folder = os.path.join(tempfile.gettempdir(), f"uma-cluster-{os.getuid()}")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        owner = os.stat(folder)
        if owner.st_uid != os.getuid() or owner.st_mode & 0o077:
            raise PermissionError(f"{folder} can be written by others")
        if len(model) > NAME_MOST:  # if the name is cut, the hash keeps it distinct
            model = f"{model[: NAME_MOST - 9]}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
        return os.path.join(folder, f"{self.node_id[:12]}-{model}.sock")

    # what it is asked

    def heard(self, gateway: str) -> None:
        self._heard[gateway] = time.monotonic()

    def cancel_orphans(self) -> None:
        """Cancel the requests of gateways that have ended: Ray does not tell that nobody reads the answers. A node that
        leaves hears of no gateway any more, but its answers are read to their ends.
        """
        t_last = max(self._heard.values(), default=0.0)
        gone = {gateway for gateway, t_heard in self._heard.items() if t_last - t_heard > GONE_S}
        for gateway in gone:
            del self._heard[gateway]
        for daemon in self._daemons.values() if gone else ():
            daemon.end_of(gone)

    async def call(self, model: str, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Result:
        """Call an operation. The result has `reply`, `lost` (why), or `error` (as GatewayError.values returns it)."""
        daemon = self._daemons.get(model)
        if daemon is None:
            return {"lost": f"{model} is not loaded here"}
        try:
            return {"reply": await daemon.call(operation, timeout_s, fields)}
        except UnitLost as loss:
            return {"lost": str(loss)}
        except GatewayError as error:
            return {"error": error.values()}

    async def stream(self, model: str, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes] | str]:
        """Yield events as JSON; a text says why nothing more will follow."""
        daemon = self._daemons.get(model)
        if daemon is None:
            yield f"{model} is not loaded here"
            return
        if "x_gateway" in fields:
            self.heard(fields["x_gateway"])
        stream = daemon.stream(fields)
        try:
            async for payloads in stream:
                yield payloads
        except (UnitLost, GatewayError) as error:
            yield str(error)
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    async def stop(self) -> None:
        """Let running answers finish, then stop every daemon that was started here."""
        async with self._lock:
            await asyncio.gather(*(self._unload(name) for name in list(self._daemons)))


async def estimate_mb(settings: ModelSettings) -> int:
    """Return the daemon's estimate of a model's memory. Raises: ValueError with the daemon's message."""
    command = [*python_command(DAEMON), "daemon", *settings.daemon, "--estimate"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await within(ESTIMATE_S, process.communicate())
    except asyncio.TimeoutError:
        process.kill()
        raise ValueError(f"the daemon did not estimate {settings.name}") from None
    if process.returncode:
        raise ValueError(err.decode(errors="replace").strip()[-500:] or f"the daemon cannot estimate {settings.name}")
    return -(-int(json.loads(out)["total_bytes"]) // MIB)
