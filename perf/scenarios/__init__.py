"""The scenarios, by name. docs/BENCHMARKS.md describes each one from these definitions."""

from __future__ import annotations

from perf.scenarios.base import Scenario
from perf.scenarios.burdens import Burdens
from perf.scenarios.chain import Chain
from perf.scenarios.concurrency import DenseSweep, MoeSweep
from perf.scenarios.context import LongContext, LongContext16k, LongContext32k
from perf.scenarios.crowd import Crowd
from perf.scenarios.idle import Idle
from perf.scenarios.ipc import Ipc
from perf.scenarios.mixed import Mixed
from perf.scenarios.paste import Paste
from perf.scenarios.prefix import Agent, AgentRestart, Alternating, Fanout, RoundRobin, Snapshots
from perf.scenarios.rates import ManyRates, Rates
from perf.scenarios.schemas import Schemas
from perf.scenarios.solo import Solo
from perf.scenarios.storms import ShortStorm, Storm, TwoChats
from perf.scenarios.throughput import Throughput

_ALL: tuple[Scenario, ...] = (
    Solo(),
    Storm(),
    TwoChats(),
    ShortStorm(),
    Paste(),
    Chain(),
    Mixed(),
    Throughput(),
    Crowd(),
    LongContext(),
    LongContext16k(),
    LongContext32k(),
    DenseSweep(),
    MoeSweep(),
    Ipc(),
    Agent(),
    AgentRestart(),
    Fanout(),
    Alternating(),
    RoundRobin(),
    Snapshots(),
    Rates(),
    ManyRates(),
    Schemas(),
    Burdens(),
    Idle(),
)

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
