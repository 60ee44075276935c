"""An option that changes nothing is a broken promise, and so is a part of its range that changes nothing.

Each option of the policy is tried at several values over its whole range: some plan must differ between two neighbours.
Each choice of an engine option must reach the engine as a different value. Options whose effect is only visible from
outside are each set by a test of behaviour.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf.simulator import Job, Sim
from tests.policy.build import CPU, MS, NOW, guarded, reading, state_of, talking, waiting
from tests.trained import MOE
from uma_core.config.load import SCHEMA
from uma_core.config.options import OPTIONS, Config, EngineOptions, Option
from uma_core.engine.ahead import pays
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.engine.fake.engine import FakeModel
from uma_core.engine.lib import ffi
from uma_core.engine.llama.params import decode_params, encoder_shape, model_params, n_threads_of, prefill_params
from uma_core.policy.config import SchedulerConfig
from uma_core.policy.pipeline import compose
from uma_core.policy.plan import Plan
from uma_core.server.lifecycle.host import cache_of, limits_of
from uma_core.types import Priority

BACK = Priority.BACKGROUND
TESTS = Path(__file__).resolve().parents[1]


def config_with(key: str, value: Any) -> Config:
    opt = SCHEMA.by_key[key]
    config = Config()
    return dataclasses.replace(
        config, **{opt.section: dataclasses.replace(getattr(config, opt.section), **{opt.name: value})}
    )


# ---- the policy's options


def outline(plan: Plan) -> tuple[object, ...]:
    """Return what a plan does."""
    items = tuple((i.sid, i.phase, i.n_tokens, i.call) for i in plan.items)
    return plan.admit, items, plan.park, plan.run_ns, plan.quantum_ns, plan.min_pieces, plan.transfer_ns


def planned(*views: Any, **more: Any) -> Callable[[SchedulerConfig], object]:
    def plan(config: SchedulerConfig) -> object:
        return outline(compose(config.stages)(state_of(*views, config=config, **more)))

    return plan


def n_rounds_until_forced(config: SchedulerConfig) -> int:
    """Return the decode rounds without progress after which a prompt that does not fit gets a piece."""
    coarse: dict[str, Any] = {"n_chunk": 256, "chunk_fraction": 0.2}
    for n in range(1, 3000):
        view = reading(1, BACK, n_prompt=3000, t_progress_ns=NOW - int(n * CPU.solo_step_ns(110)), **coarse)
        plan = compose(config.stages)(state_of(talking(0), view, config=config))
        if plan.min_pieces:
            return n
    return 0


def n_long_gaps(config: SchedulerConfig) -> int:
    """Return the long gaps of a chat beside a prompt whose pieces fit only long gaps."""
    shape = dataclasses.replace(CPU_SHAPE, node_share=6.0)
    sim = Sim(shape, FakeModel(), config, keep_states=True)
    sim.submit(Job(32, 200))
    sim.submit(Job(1200, 1, BACK, 2, at_ns=100 * MS))
    sim.run()
    assert sim.log is not None
    return sum("on credit" in note for _, plan in sim.log for note in plan.notes)


def order_of_waits(config: SchedulerConfig) -> object:
    """Return who is admitted to the only sequence: a fresh chat, or a background request that waited for this long."""
    waits = [1, 30, 700, 3_000, 20_000, 4_000_000]
    views = [waiting(i, BACK, t_queued_ns=NOW - wait * MS) for i, wait in enumerate(waits)]
    return [planned(view, waiting(99), free_seqs=(0,), n_seq_max=1)(config) for view in views]


CHAT_AND_PROMPT = planned(talking(0), reading(1, BACK, n_prompt=3000))
WITH_CREDIT = guarded(error=0.25, credit=1.0)
WORKERS = [talking(i, BACK, n_past=500) for i in range(6)]
DEEP_WORKERS = [talking(i, BACK, n_past=9000) for i in range(14)]
MANY_PROMPTS = [reading(i, BACK, n_prompt=300) for i in range(10, 15)]
IN_CALLS = {"n_prefill_slots": 0}


def waits_of_a_second_chat(config: SchedulerConfig) -> object:
    """Return what a chat's prompt gets beside another chat, by how long it has waited."""
    waits = range(0, 6000, 200)
    return [planned(talking(0), reading(1, n_prompt=400, t_queued_ns=NOW - wait * MS))(config) for wait in waits]


# option -> what is observed, and values over its whole range, in order
PROBES: dict[str, tuple[Callable[[SchedulerConfig], object], tuple[Any, ...]]] = {
    "stages": (lambda config: config.stages, (SchedulerConfig().stages, SchedulerConfig().stages[:-1], ())),
    "tick_budget_ms": (planned(reading(0, n_prompt=3000)), (1, 5, 20, 50, 200, 1000, 10_000)),
    "start_target_tokens": (planned(talking(0, BACK), *MANY_PROMPTS, **IN_CALLS), (1, 16, 40, 128, 300)),
    "prefill_burst": (planned(reading(0, n_prompt=3000)), (1, 4, 20, 64, 128, 256)),
    "guard_cap": (CHAT_AND_PROMPT, (1.06, 1.1, 1.2, 1.4, 1.7, 2.0)),
    "guard_floor_ms": (CHAT_AND_PROMPT, (0, 21, 30, 100, 1000)),
    "pause_cap": (
        planned(talking(0), reading(1, BACK, n_prompt=3000, n_chunk=128), memory=WITH_CREDIT),
        (1.4, 1.7, 2.0, 3.0, 10.0, 100.0),
    ),
    "long_tick_share": (n_long_gaps, (0.0, 0.02, 0.04, 0.1, 0.3, 1.0)),
    "starvation_ticks": (n_rounds_until_forced, (1, 8, 64, 256, 2000)),
    "slo_ttft_ms": (waits_of_a_second_chat, (0, 500, 1000, 2000, 4000)),
    "slo_tbt_ms": (CHAT_AND_PROMPT, (0, 22, 30, 100, 1000)),
    "interactive_share": (planned(*WORKERS[:2], reading(9, n_prompt=900)), (0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99)),
    "max_background_decoders": (planned(*WORKERS), (0, 1, 2, 3, 4, 5)),
    "moe_max_decoders": (
        planned(talking(9), *WORKERS, n_expert=8, n_expert_used=2, expert_bytes=10**8),
        (1, 2, 3, 4, 5, 6),
    ),
    "aging_ms": (order_of_waits, (0, 10, 100, 1000, 10_000, 1_000_000)),
    "bmt_budget": (planned(*DEEP_WORKERS), (0.0, 12.0, 20.0, -1.0)),
}


def scheduler_config_with(name: str, value: Any) -> SchedulerConfig:
    roomy = {"guard_floor_ms": 10_000.0} if name == "moe_max_decoders" else {}  # else nothing fits beside the chat
    return dataclasses.replace(Config().scheduler, **{**roomy, name: value}).to_scheduler_config()


def test_every_option_of_the_policy_is_probed() -> None:
    options = {opt.name for opt in OPTIONS if opt.section == "scheduler"} - {
        "auto_lane_tokens"
    }  # this one belongs to the intake
    assert options == PROBES.keys()


@pytest.mark.parametrize("name", PROBES)
def test_every_part_of_an_options_range_changes_plans(name: str) -> None:
    look, values = PROBES[name]
    seen = [(value, look(scheduler_config_with(name, value))) for value in values]
    for (low, before), (high, after) in itertools.pairwise(seen):
        assert before != after, f"scheduler.{name} does nothing between {low} and {high}"


# ---- the engine's options


def fields_of(struct: Any) -> tuple[object, ...]:
    """Return the scalar fields of a struct of llama.h."""
    names = [name for name, field in ffi.typeof(struct).fields if field.type.kind in ("primitive", "enum")]
    return tuple((name, getattr(struct, name)) for name in names)


def reaches_llama(options: EngineOptions) -> object:
    """Return what llama.cpp is told."""
    params, overrides = model_params(options, str(MOE))  # a dense model has no experts to choose
    n_experts = overrides[0].val_i64 if overrides else 0
    return (
        fields_of(params),
        n_experts,
        fields_of(decode_params(options, 512)),
        fields_of(prefill_params(options, 512, 1000)),
    )


def reaches_backends(options: EngineOptions) -> object:
    return options.backend_environ()


LOOKS_INSIDE: dict[str, tuple[Callable[[EngineOptions], object], tuple[Any, ...]]] = {
    "n_ctx": (reaches_llama, (0, 256, 512, 16384)),
    "threads": (n_threads_of, (1, 2, 3)),
    "n_seq": (reaches_llama, (1, 2, 4, 256)),
    "encoder_ctx": (lambda options: encoder_shape(options, 8192, 250_000), (0, 20, 512, 2048, 8192)),
    "n_batch": (reaches_llama, (512, 1024, 2048)),
    "n_ubatch": (reaches_llama, (32, 64, 512)),
    "n_gpu_layers": (reaches_llama, (-1, 0, 1, 99)),
    "kv_mode": (reaches_llama, ("streams", "unified")),
    "kv_type": (reaches_llama, ("f16", "bf16", "q8_0", "q4_0")),
    "flash_attn": (reaches_llama, ("auto", "on", "off")),
    "isa": (lambda options: options.isa, SCHEMA.by_key["engine.isa"].choices),  # its effect: tests/kernels/test_isa.py
    "moe_top_k": (reaches_llama, (0, 1, 2)),
    "load_mode": (reaches_llama, ("auto", "mmap", "mlock", "mmap+mlock", "none", "direct-io")),
    "metal_residency": (reaches_backends, (False, True)),
    "metal_keep_alive_s": (reaches_backends, (1, 180)),
    "metal_shared_buffers": (reaches_backends, ("auto", "on", "off")),
    "cuda_graphs": (reaches_backends, (False, True)),
    "decode_ahead": (
        lambda options: [pays(options.decode_ahead, is_gpu) for is_gpu in (False, True)],
        ("auto", "on", "off"),
    ),
}


@pytest.mark.parametrize("name", LOOKS_INSIDE)
def test_every_value_of_an_engine_option_reaches_the_engine_as_something_else(name: str) -> None:
    look, values = LOOKS_INSIDE[name]
    choices = SCHEMA.by_key[f"engine.{name}"].choices
    assert not choices or choices == values, "every choice is tried"
    seen = [(value, look(dataclasses.replace(EngineOptions(), **{name: value}))) for value in values]
    for (one, before), (other, after) in itertools.combinations(seen, 2):
        assert before != after, f"engine.{name}: {one} and {other} are the same"


# ---- options of the intake and the cache


@pytest.mark.parametrize("take", [limits_of, cache_of], ids=["limits", "cache"])
def test_what_the_intake_and_the_cache_take_changes_with_the_options(take: Callable[[Config], object]) -> None:
    """Their behaviour changes too: their own tests set each of these options."""
    for opt in OPTIONS:
        if opt.key in TAKEN[take]:
            assert take(config_with(opt.key, other_value(opt))) != take(Config()), opt.key


def other_value(opt: Option) -> Any:
    if opt.kind is bool:
        return not opt.default
    if opt.choices:
        return next(choice for choice in opt.choices if choice != opt.default)
    return opt.default + "x" if opt.kind is str else opt.default + 1


TAKEN: dict[Callable[[Config], object], set[str]] = {
    limits_of: {
        "limits.max_sessions", "limits.max_tokens", "limits.default_max_tokens", "limits.queue_interactive",
        "limits.queue_background",
        "limits.request_timeout_ms", "limits.overflow", "scheduler.auto_lane_tokens", "scheduler.slo_ttft_ms",
        "scheduler.slo_tbt_ms",
    },
    cache_of: {"cache.prefix", "cache.ram_mb", "cache.disk_dir", "cache.disk_mb", "cache.share_across_uids",
    "cache.park_idle_ms"},
}  # fmt: skip


# ---- options whose effect is only visible from outside


def test_every_other_option_is_set_by_a_test_of_behaviour() -> None:
    inside = (
        {f"scheduler.{name}" for name in PROBES}
        | {f"engine.{name}" for name in LOOKS_INSIDE}
        | set.union(*TAKEN.values())
    )
    folders = ("server", "daemon", "engine", "cache_engine", "ctl", "protocol")
    paths = [path for folder in folders for path in (TESTS / folder).rglob("*.py")]
    paths += [TESTS / "test_log.py", *(TESTS / "executor").glob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    left = [opt for opt in OPTIONS if opt.key not in inside]
    forgotten = [
        opt.key
        for opt in left
        if not re.search(rf"\b{opt.name}[\"']?\s*[=:]|--(no-)?{opt.flag[2:]}\b|\b{opt.env}\b", text)
    ]
    assert not forgotten, "options that no test of behaviour sets:\n  " + "\n  ".join(forgotten)
