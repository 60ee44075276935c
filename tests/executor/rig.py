"""An executor over the FakeEngine on a manual clock; tests drive it tick by tick."""

from __future__ import annotations

from collections import Counter
from typing import Any

from uma_core.clock import Clock, ManualClock, MonotonicClock
from uma_core.engine.api import Engine
from uma_core.engine.fake.engine import FakeEngine, FakeModel, Faults
from uma_core.executor.admission import AdmissionControl, Limits
from uma_core.executor.executor import Executor, device_view
from uma_core.metrics.catalog import new_registry
from uma_core.metrics.core import Registry
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.cost.calibrate import guess
from uma_core.session.events import Accepted, Event, Final, Refused, Submit, Token
from uma_core.speculation.speculator import Speculator
from uma_core.types import Peer, Priority, Request

STEP_NS = 1_000_000


def new_executor(
    engine: Engine,
    limits: Limits | None = None,
    config: SchedulerConfig | None = None,
    speculator: Speculator | None = None,
    clock: Clock | None = None,
    registry: Registry | None = None,
) -> Executor:
    """Return an executor with guessed costs. `clock`: None: the system's."""
    clock = clock or MonotonicClock()
    return Executor(
        engine,
        AdmissionControl(limits or Limits(), clock),
        config or SchedulerConfig(),
        guess(device_view(engine)),
        registry or new_registry(),
        clock,
        speculator,
    )


class Rig:
    def __init__(
        self,
        model: FakeModel | None = None,
        limits: Limits | None = None,
        config: SchedulerConfig | None = None,
        speculator: Speculator | None = None,
        **engine: Any,
    ) -> None:
        """`engine`: cost and jitter of the FakeEngine."""
        self.clock = ManualClock(1)
        self.faults = Faults()
        self.engine = FakeEngine(model or FakeModel(), clock=self.clock, faults=self.faults, **engine)
        self.registry = new_registry()
        self.executor = new_executor(self.engine, limits, config, speculator, self.clock, self.registry)
        self.seen: list[Event] = []

    def submit(
        self,
        request_id: str,
        prompt: str = "hello",
        conn_id: int = 1,
        peer: Peer = Peer(1, 1, 1),  # noqa: B008
        matcher: Any = None,
        tokens: list[int] | None = None,
        **fields: Any,
    ) -> None:
        request = Request(request_id, prompt=prompt, **fields)
        tokens = self.engine.tokenize(prompt, True, False) if tokens is None else tokens
        echo = prompt if request.echo else ""
        self.executor.submit(Submit(conn_id, peer, request, tokens, self.clock.now_ns(), matcher=matcher, echo=echo))

    def tick(self) -> bool:
        is_busy = self.executor.tick()
        self.clock.advance(STEP_NS)
        while self.executor.events:
            self.seen.append(self.executor.events.popleft())
        return is_busy

    def run(self, n_most: int = 20_000) -> None:
        """Tick until no session is left."""
        for _ in range(n_most):
            self.tick()
            if not len(self.executor.table):
                return
        raise AssertionError(f"{len(self.executor.table)} sessions did not end in {n_most} ticks")

    def text(self, request_id: str) -> str:
        tokens = [e.text for e in self.seen if isinstance(e, Token) and e.request_id == request_id]
        return "".join(tokens) + "".join(e.text for e in self.finals(request_id))

    def finals(self, request_id: str) -> list[Final]:
        return [e for e in self.seen if isinstance(e, Final) and e.request_id == request_id]

    def refusals(self) -> list[Refused]:
        return [e for e in self.seen if isinstance(e, Refused)]

    def check_one_final_each(self) -> None:
        accepted = Counter((e.conn_id, e.request_id) for e in self.seen if isinstance(e, Accepted))
        ended = Counter((e.conn_id, e.request_id) for e in self.seen if isinstance(e, Final))
        assert accepted == ended

    def check_all_free(self) -> None:
        table = self.executor.table
        assert len(table) == 0 and table.n_cells_reserved == 0
        assert table.free_seqs == list(range(self.engine.info.n_seq_max))
        assert all(n == 0 for n in table.n_queued.values())

    def check_cached(self, prompt: str, n: int) -> None:
        """Check that more than n tokens of a prompt are in the cache, and that what follows them is right."""
        self.submit("again", prompt, max_tokens=20)
        self.run()
        assert self.finals("again")[0].usage["cached_tokens"] > n
        assert self.text("again") == alone(prompt, max_tokens=20)


def alone(prompt: str = "hello", model: FakeModel | None = None, **fields: Any) -> str:
    """Return the text of a request that nothing is beside."""
    rig = Rig(model)
    rig.submit("alone", prompt, **fields)
    rig.run()
    return rig.text("alone")


def stream(rig: Rig, priority: Priority) -> None:
    """Start one stream and let it decode until its cost is known."""
    rig.submit(priority.name, "hello", priority=priority, max_tokens=2000)
    for _ in range(200):
        rig.tick()
