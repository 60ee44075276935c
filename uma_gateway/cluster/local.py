"""A daemon on this machine, managed by a node's actor: started or adopted, watched, restarted, drained, stopped.

Rules: asyncio, no Ray. A daemon that another program started is adopted: it is watched and used, and never stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from typing import Any

from uma_core.own_python import python_command
from uma_gateway.cluster.router import READY
from uma_gateway.cluster.transport import Event, UnitLost
from uma_gateway.daemon import Daemon
from uma_gateway.errors import GatewayError, Kind
from uma_gateway.link import Link, LinkLost, connect
from uma_gateway.within import within

log = logging.getLogger(__name__)

DAEMON = "from uma_core.cli import main; sys.exit(main())"
HEALTH_S = 1.0  # interval of checks
HANG_S = 30.0  # limit without an answer; a daemon answers `health` even while it loads and computes
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0  # pauses before a restart; each is twice as long as the previous one
PROVEN_S = 60.0  # a daemon that ran this long is restarted after the shortest pause again
STOP_S = 15.0
COMPUTED = frozenset({"embed", "rerank"})


class LocalDaemon:
    """One socket. `start` keeps a daemon running behind it."""

    def __init__(self, path: str, args: Sequence[str] = (), is_startable: bool = True, hang_s: float = HANG_S) -> None:
        """`args`: flags of `uma-core daemon`, without the socket. `is_startable`: otherwise a daemon is only
        adopted.
        """
        self.path = path
        self._is_startable = is_startable
        self.args = list(args)
        self.restarts = 0
        self.is_adopted = False
        self.state = "starting"  # as the daemon reports it; `gone`: there is no daemon
        self.t_used = time.monotonic()
        self._was_ready = False
        self.n_streams = 0  # requests that it is answering, embeddings and reranking included
        self.daemon = Daemon(path)
        # running requests, by id and attempt: clients choose ids, so two requests may have the same one
        self._links: dict[tuple[str, str], Link] = {}
        self._gateways: dict[Link, str] = {}  # whose they are, if that is known
        self._hang_s = hang_s
        self._process: asyncio.subprocess.Process | None = None
        self._main: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._t_answer = time.monotonic()

    def start(self) -> None:
        if self._main is None:
            self._main = asyncio.get_running_loop().create_task(self._run())

    @property
    def pid(self) -> int:
        """Return the process id of the daemon that was started here; 0: there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def is_starting(self) -> bool:
        """Whether it accepts no requests yet, for the first time. False once a start has failed."""
        return self._is_startable and not self._was_ready and not self.restarts

    async def ready(self, timeout_s: float) -> None:
        """Wait until the daemon accepts requests. Raises: UnitLost."""
        deadline = time.monotonic() + timeout_s
        while self.state not in READY:
            if time.monotonic() > deadline or self._is_stopping:
                raise UnitLost(f"its daemon is {self.state} after {timeout_s:g} s")
            await asyncio.sleep(0.05)

    # keeping it alive

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._is_stopping:
            if await self._ask_health():
                self.is_adopted = True
                log.info("a daemon is there already: %s", self.path)
                await self._watch()
                self.is_adopted = False
                continue
            if not self._is_startable:
                await asyncio.sleep(HEALTH_S)
                continue
            t_start = time.monotonic()
            try:
                await self._spawn()
                await self._watch()
            except OSError as error:  # no memory or no more processes, for now
                log.error("the daemon on %s cannot be started: %s", self.path, error)
            await self._end()
            pause_s = FIRST_PAUSE_S if time.monotonic() - t_start > PROVEN_S else min(LONGEST_PAUSE_S, pause_s * 2)
            self.restarts += 1
            log.warning("the daemon on %s ended; it is started again in %g s", self.path, pause_s)
            await asyncio.sleep(pause_s)

    async def _spawn(self) -> None:
        command = [*python_command(DAEMON), "daemon", *self.args, "--socket", self.path, "--stop-at-eof"]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        self._t_answer = time.monotonic()

    async def _watch(self) -> None:
        """Return when the daemon is gone, or is silent for too long."""
        while not self._is_stopping:
            process = self._process
            if process is not None and process.returncode is not None:
                break
            if await self._ask_health():
                self._t_answer = time.monotonic()
            elif self.is_adopted or time.monotonic() - self._t_answer > self._hang_s:
                log.error("the daemon on %s does not answer", self.path)
                break
            fast = self.state in ("starting", "gone")
            with contextlib.suppress(asyncio.TimeoutError):
                waiting = process.wait() if process is not None and process.returncode is None else asyncio.sleep(3600)
                await within(0.1 if fast else HEALTH_S, waiting)
        self.state = "gone"

    async def _ask_health(self) -> bool:
        try:
            self.state = str((await self.daemon.call("health", min(5.0, self._hang_s)))["state"])
        except GatewayError:
            self.state = "gone"
            return False
        if self.state in READY and not self._was_ready:
            self._was_ready, self.t_used = True, time.monotonic()  # its first requests can only come now
        return True

    async def _end(self) -> None:
        """End the process that was started here, if it still exists."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()  # this ends it; if this process is killed the pipe closes too
        try:
            await within(STOP_S, process.wait())
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def stop(self, drain_s: float = 0.0) -> None:
        """Give running answers this long to finish, then stop the daemon that was started here."""
        self._is_stopping = True
        if not self.is_adopted and self._process is not None and drain_s > 0:
            with contextlib.suppress(GatewayError):
                await self.daemon.call("drain", timeout_ms=drain_s * 1e3)
            deadline = time.monotonic() + drain_s + 1.0
            while self.n_streams and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
        if self._main is not None:
            self._main.cancel()
            await asyncio.wait((self._main,))
        await self._end()
        await self.daemon.close()

    # what it is asked

    async def stream(self, fields: Mapping[str, Any]) -> AsyncIterator[list[bytes]]:
        """See transport.Transport.stream."""
        self.t_used = time.monotonic()
        self.n_streams += 1
        link: Link | None = None
        key = str(fields["id"]), str(fields.get("x_attempt") or secrets.token_hex(8))
        try:
            link = self._links[key] = await connect(self.path)
            if "x_gateway" in fields:
                self._gateways[link] = fields["x_gateway"]
            link.send({name: value for name, value in fields.items() if name not in ("x_attempt", "x_gateway")})
            while True:
                payloads = await link.receive()
                yield payloads
                if any(is_end(payload) for payload in payloads):
                    return
        except LinkLost as error:
            raise UnitLost(error.message) from None
        finally:
            self.n_streams -= 1
            self.t_used = time.monotonic()
            if link is not None:
                if self._links.get(key) is link:
                    del self._links[key]
                self._gateways.pop(link, None)
                link.close()

    def end_of(self, gateways: Set[str]) -> None:
        """Cancel the requests of these gateways."""
        for link, gateway in list(self._gateways.items()):
            if gateway in gateways:
                link.close()

    async def call(self, operation: str, timeout_s: float, fields: Mapping[str, Any]) -> Event:
        """See transport.Transport.call."""
        try:
            if operation == "cancel" and fields.get("conn") is not None:
                return await self.daemon.cancel(str(fields["id"]), fields["conn"])
            if operation == "cancel":  # needs the connection that the request is on
                wanted = str(fields["id"]), fields.get("attempt")
                links = [
                    link for (name, attempt), link in self._links.items() if wanted in ((name, attempt), (name, None))
                ]
                message = {name: value for name, value in fields.items() if value is not None and name != "attempt"}
                for link in links:
                    link.send({"type": operation, **message})
                return {"found": bool(links)}
            if operation in COMPUTED:  # on a connection of its own: if the caller is cancelled, so is the operation
                return await within(timeout_s, self._compute(operation, fields))
            return await self.daemon.call(operation, timeout_s, **fields)
        except LinkLost as error:
            raise UnitLost(error.message) from None
        except asyncio.TimeoutError:
            raise GatewayError(Kind.GENERATION_TIMEOUT, f"no answer within {timeout_s:g} s", code="timeout") from None

    async def _compute(self, operation: str, fields: Mapping[str, Any]) -> Event:
        self.n_streams += 1
        try:
            return await self.daemon.compute(operation, str(fields["id"]), fields)
        finally:
            self.n_streams -= 1
            self.t_used = time.monotonic()


def is_end(payload: bytes) -> bool:
    """Whether an event is the last of its request. Must be cheap, because it is called for every token."""
    return b'"event":"eos"' in payload or b'"event":"error"' in payload
