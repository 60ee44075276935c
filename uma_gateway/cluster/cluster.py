"""The daemons of a cluster as one: the router, the digests that it needs, and the requests that wait for it.

Rules: one per gateway process, in its event loop. Whatever a transport does, every submitted request gets a daemon, is
refused, or is withdrawn. Every reader of a lost daemon learns of the loss after `lost_s` at the latest.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import Callable
from typing import Any

from uma_gateway.cluster.router import Ask, Choice, Refusal, Router, RouterSettings
from uma_gateway.cluster.transport import Event, Transport, Unit, UnitLost
from uma_gateway.errors import GatewayError, Kind
from uma_gateway.link import no_daemon
from uma_gateway.within import within

log = logging.getLogger(__name__)

POLL_S = 0.25  # between two digests of a daemon: half a prompt of a thousand tokens on a fast machine
CALLS_PER_S = 400  # limit for each kind of call to all daemons together: a call costs a fraction of a millisecond
POSITIONS_SHARE = 0.05  # share of this process's time that may be spent on counting places in the queue
PAGES_IN_ALL = 1 << 20  # in all digests together: 300 bytes of memory each
PAGES_LEAST, PAGES_MOST = 256, 4096  # in the digest of one daemon
UNITS_S = 1.0  # interval at which the list of daemons is read
CHECK_S = 0.25  # interval of checks for silent daemons and expired requests


class Cluster:
    """See the module's docstring. `start` and `close` belong to the event loop."""

    def __init__(
        self, transport: Transport, key: bytes, settings: RouterSettings | None = None, load_s: float = 600.0
    ) -> None:
        """`load_s`: a request waits this long for a model that must be loaded first."""
        self.transport = transport
        self.load_s = load_s
        self.router = Router(settings)
        self.units: dict[str, Unit] = {}
        self.fingerprints: dict[str, str] = {}  # by unit
        self.key = key
        self.counts = {
            "routed": 0,
            "cached_tokens": 0,
            "prompt_tokens": 0,
            "rerouted": 0,
            "replayed": 0,
            "resumed": 0,
            "lost": 0,
            "refused": 0,
        }
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, asyncio.Future[Choice]] = {}
        # by unit: its readers, and the call that tells each of its loss
        self._readers: dict[str, dict[object, Callable[[], None]]] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._main: list[asyncio.Task[None]] = []
        self._has_changed = asyncio.Event()
        self._by_model: dict[str, list[Unit]] = {}  # daemons with a digest; rebuilt when they change
        # by group: the time until which the positions are valid, and each request's
        self._positions: dict[str, tuple[float, dict[str, int]]] = {}

    def start(self) -> None:
        if not self._main:
            loop = asyncio.get_running_loop()
            self._main = [loop.create_task(self._run()), loop.create_task(self._watch())]

    async def close(self) -> None:
        tasks = [*self._main, *self._polls.values(), *self._loading.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.transport.close()

    # which daemons there are

    async def _run(self) -> None:
        while True:
            try:
                await self._find_units()
            except (UnitLost, GatewayError) as error:
                log.warning("the cluster does not report which daemons it has: %s", error)
            except Exception:  # without this loop no more requests would be routed
                log.exception("looking for daemons failed")
            await asyncio.sleep(max(UNITS_S, len(self.units) / CALLS_PER_S))

    async def _watch(self) -> None:
        """Watch for silent daemons. Not in `_run`, because the cluster may take its time to report its daemons."""
        while True:
            try:
                for name in self.router.check(time.monotonic_ns()):
                    log.warning("%s does not answer: it counts as lost, with its requests", name)
                    self._lose_readers(name)
                self._let_go()
            except Exception:  # without this loop readers would not be told of a loss
                log.exception("looking for silent daemons failed")
            await asyncio.sleep(CHECK_S)

    async def _find_units(self) -> None:
        found = {unit.name: unit for unit in await self.transport.units()}
        for name in self.units.keys() - found.keys():
            self._leave(name)
        if found != self.units:
            self._by_model.clear()
        for name, unit in found.items():
            self.units[name] = unit
            task = self._polls.get(name)
            if task is None or task.done():
                self._polls[name] = asyncio.get_running_loop().create_task(self._poll(unit))

    def _leave(self, name: str) -> None:
        """Forget a daemon that the cluster no longer has.

        Its readers go on reading: the daemon may finish their answers, or the streams break.
        """
        self.units.pop(name, None)
        self.fingerprints.pop(name, None)
        self._by_model.clear()
        task = self._polls.pop(name, None)
        if task is not None:
            task.cancel()
        self.router.remove(name)

    async def _poll(self, unit: Unit) -> None:
        """Ask a daemon for digests until it is gone."""
        since: int | None = None
        while True:
            n_pages = max(PAGES_LEAST, min(PAGES_MOST, PAGES_IN_ALL // max(1, len(self.units))))
            t_asked = time.monotonic_ns()
            try:
                fields = {"key": self.key.hex(), "since": since, "n_pages": n_pages}
                digest = await self.transport.call(unit, "digest", self.router.settings.lost_ns / 1e9, fields)
            except UnitLost:
                self.router.shut(unit.name)
                since = None
            except GatewayError as error:  # it is loading or stopping
                log.debug("%s: %s", unit.name, error)
                since = None
            else:
                since = digest["generation"]
                self._heard(unit, digest, t_asked)
            await asyncio.sleep(max(POLL_S, len(self.units) / CALLS_PER_S))

    def _heard(self, unit: Unit, digest: Event, t_asked: int) -> None:
        # readers go on reading: a daemon that reloads finishes its answers with the old model, and the streams of one
        # that was replaced break
        self.router.add(unit.name, group_of(unit.model, digest["fingerprint"]))
        try:
            self.router.heard(unit.name, digest, t_asked, time.monotonic_ns())
        except (KeyError, ValueError, TypeError) as error:
            log.error("%s sent a digest that cannot be read: %r", unit.name, error)
            return
        if self.fingerprints.get(unit.name) != digest["fingerprint"]:
            self.fingerprints[unit.name] = digest["fingerprint"]
            self._by_model.clear()
        self._has_changed.set()
        self._let_go()

    def _lose_readers(self, name: str) -> None:
        for tell in list(self._readers.get(name, {}).values()):
            tell()

    def of_model(self, model: str) -> list[Unit]:
        """Return the model's daemons from which a digest has come."""
        if not self._by_model:
            for unit in self.units.values():
                if unit.name in self.fingerprints:
                    self._by_model.setdefault(unit.model, []).append(unit)
        return self._by_model.get(model, [])

    def nearest(self, units: list[Unit], n: int) -> list[Unit]:
        """Return open daemons with little to do: the best of a random sample, because all requests would meet at the
        very best one.
        """
        is_open = [unit for unit in units if self.router.is_open(unit.name)]
        drawn = random.sample(is_open, min(2 * n, len(is_open)))
        return sorted(drawn, key=lambda unit: self.router.n_requests(unit.name))[:n]

    def position(self, ask: Ask) -> int | None:
        """Return how many requests of its priority are ahead of a request, as of a moment ago; None: it is not waiting,
        or is not counted yet.
        """
        t_until, places = self._positions.get(ask.group, (0.0, {}))
        now = time.monotonic()
        if now > t_until:
            places = self.router.positions(ask.group)
            after = time.monotonic()
            self._positions[ask.group] = after + (after - now) / POSITIONS_SHARE, places
        return places.get(ask.id) if ask.id in self._waiting else None

    def fingerprint(self, model: str) -> str:
        """Return the fingerprint that most of a model's daemons have; "": none is known."""
        known = [self.fingerprints[unit.name] for unit in self.of_model(model)]
        return max(set(known), key=known.count) if known else ""

    async def available(self, model: str, timeout_s: float) -> list[Unit]:
        """Return the daemons of a model as soon as there are any; load one if there is none. Raises: GatewayError."""
        self.start()
        deadline = time.monotonic() + timeout_s
        while not (units := self.of_model(model)):
            self._has_changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await within(max(0.0, deadline - time.monotonic()), self._load(model))
                await within(min(UNITS_S, max(0.0, deadline - time.monotonic())), self._has_changed.wait())
            if time.monotonic() >= deadline and not self.of_model(model):
                raise no_daemon(f"no daemon of {model} answers")
        return units

    async def heard(self, timeout_s: float) -> list[Unit]:
        """Return every daemon from which a digest has come; waits for the first one. Loads nothing."""
        self.start()
        deadline = time.monotonic() + timeout_s
        while (
            not (found := [unit for unit in self.units.values() if unit.name in self.fingerprints])
            and time.monotonic() < deadline
        ):
            await asyncio.sleep(0.05)
        return found

    async def _load(self, model: str) -> None:
        """Load a model. Requests that want it at the same time wait for one load."""
        task = self._loading.get(model)
        if task is None:
            task = self._loading[model] = asyncio.get_running_loop().create_task(self.transport.load(model))
            task.add_done_callback(lambda _: self._loading.pop(model, None))
        await asyncio.shield(task)
        await self._find_units()

    # requests

    async def submit(self, ask: Ask) -> Choice:
        """Wait for a daemon. Call `ended` afterwards. Raises: GatewayError if there is none for the request, or not in
        time.
        """
        self.start()
        outcome = self.router.offer(ask, time.monotonic_ns())
        if outcome is None:
            future: asyncio.Future[Choice] = asyncio.get_running_loop().create_future()
            self._waiting[ask.id] = future
            try:
                outcome = await future
            except asyncio.CancelledError:
                self.ended(ask.id, False)  # it may have got a daemon just now
                raise
            finally:
                self._waiting.pop(ask.id, None)
        if isinstance(outcome, Refusal):
            raise self._refused(outcome)
        self.counts["routed"] += 1
        self.counts["cached_tokens"] += outcome.n_cached
        self.counts["prompt_tokens"] += ask.n_tokens
        return outcome

    def _refused(self, refusal: Refusal) -> GatewayError:
        self.counts["refused"] += 1
        if refusal.reason == "timeout":
            return GatewayError(
                Kind.GENERATION_TIMEOUT,
                "the time for this request passed before a daemon had room for it",
                code="timeout",
            )
        if refusal.reason == "overloaded":
            return GatewayError(
                Kind.RATE_LIMIT,
                "all daemons are busy, and the queue of this priority is full",
                code="overloaded",
                retry_after_ms=refusal.retry_after_ms,
            )
        return no_daemon("no daemon has this model")

    def _let_go(self) -> None:
        for ask, outcome in self.router.ready(time.monotonic_ns()):
            future = self._waiting.get(ask.id)
            if future is None or future.done():
                self.router.ended(ask.id, time.monotonic_ns(), False)
            elif isinstance(outcome, Refusal):
                future.set_exception(self._refused(outcome))
            else:
                future.set_result(outcome)

    def ended(self, ask_id: str, has_read: bool) -> None:
        """Note that a request no longer needs its daemon."""
        self.router.ended(ask_id, time.monotonic_ns(), has_read)
        self._let_go()

    def reading(self, unit_name: str, reader: object, tell: Callable[[], None]) -> None:
        """Call `tell` when the daemon falls silent, until `left` is called."""
        self._readers.setdefault(unit_name, {})[reader] = tell

    def left(self, unit_name: str, reader: object) -> None:
        readers = self._readers.get(unit_name, {})
        readers.pop(reader, None)
        if not readers:
            self._readers.pop(unit_name, None)

    def table(self) -> list[dict[str, Any]]:
        """Return one row per daemon, for people."""
        rows = self.router.table(time.monotonic_ns())
        known = {row["node"] for row in rows}
        rows += [{"node": name, "is_open": False} for name in self.units if name not in known]
        for row in rows:
            unit = self.units.get(row["node"])
            row |= {"unit": row["node"], "node": unit.node if unit else "", "model": unit.model if unit else ""}
        return rows


def group_of(model: str, fingerprint: str) -> str:
    return f"{model}@{fingerprint}"


_numbers = itertools.count(1)


def attempt_id(request_id: str) -> str:
    """Return an id for one more attempt at a request."""
    return f"{request_id}~{next(_numbers)}"
