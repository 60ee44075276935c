"""The declared options: names, defaults, and the conversions that depend on them."""

import dataclasses
from collections import Counter

import pytest

from uma_core.config.load import SCHEMA
from uma_core.config.options import OPTIONS, Config, EngineOptions, SchedulerOptions, conflicts, ns
from uma_core.config.schema import BadValue, check, parse_text, write_value
from uma_core.policy.config import SchedulerConfig
from uma_core.protocol.lines import Mode, detect_mode
from uma_core.types import Priority

DOCUMENTED = {  # flag, variable, key, as the product's documents write them
    ("--model", "UMA_MODEL", "model"),
    ("--n-ctx", "UMA_N_CTX", "engine.n_ctx"),
    ("--threads", "UMA_THREADS", "engine.threads"),
    ("--parallel", "UMA_N_SEQ", "engine.n_seq"),
    ("--n-batch", "UMA_N_BATCH", "engine.n_batch"),
    ("--n-ubatch", "UMA_N_UBATCH", "engine.n_ubatch"),
    ("--slo-ttft-ms", "UMA_SLO_TTFT_MS", "scheduler.slo_ttft_ms"),
    ("--slo-tbt-ms", "UMA_SLO_TBT_MS", "scheduler.slo_tbt_ms"),
    ("--max-sessions", "UMA_MAX_SESSIONS", "limits.max_sessions"),
    ("--max-tokens", "UMA_MAX_TOKENS", "limits.max_tokens"),
    ("--bmt-budget", "UMA_BMT_BUDGET", "scheduler.bmt_budget"),
    ("--moe-top-k", "UMA_MOE_TOP_K", "engine.moe_top_k"),
    ("--kv-type", "UMA_KV_TYPE", "engine.kv_type"),
    ("--engine", "UMA_ENGINE", "engine.engine"),
    ("--socket", "UMA_SOCK", "ipc.uds_path"),
    ("--log-level", "UMA_LOG_LEVEL", "log.level"),
}


def test_documented_names_are_kept():
    declared = {(opt.flag, opt.env, opt.key) for opt in OPTIONS}
    assert declared >= DOCUMENTED


@pytest.mark.parametrize("attribute", ["flag", "env", "key"])
def test_no_name_means_two_options(attribute):
    counts = Counter(getattr(opt, attribute) for opt in OPTIONS)
    assert [name for name, n in counts.items() if n > 1] == []


def test_documented_defaults():
    config = Config()
    assert config.ipc.uds_path == ""
    assert (config.engine.n_seq, config.ipc.backlog, config.limits.max_sessions, config.limits.max_tokens) == (
        4,
        64,
        32,
        2048,
    )
    assert config.ipc.max_frame_bytes == 1 << 20
    assert config.scheduler.bmt_budget == 0
    assert config.ipc.echo is config.log.prompts is config.cache.share_across_uids is False


@pytest.mark.parametrize("opt", OPTIONS, ids=lambda opt: opt.key)
def test_every_default_passes_its_own_checks(opt):
    assert check(opt, opt.default) == opt.default


@pytest.mark.parametrize("opt", [opt for opt in OPTIONS if opt.default not in ((), {}, "")], ids=lambda opt: opt.key)
def test_every_default_can_be_written_as_a_flag(opt):
    text = ",".join(opt.default) if isinstance(opt.default, tuple) else write_value(opt.default).strip('"')
    assert parse_text(opt, text) == opt.default


@pytest.mark.parametrize("opt", [opt for opt in OPTIONS if opt.kind in (int, float)], ids=lambda opt: opt.key)
def test_every_number_has_both_bounds_and_keeps_them(opt):
    low, high = opt.extra["min"], opt.extra["max"]
    assert check(opt, low) == low
    assert check(opt, high) == high
    for outside in (low - 1, high + 1):
        with pytest.raises(BadValue, match="must be"):
            check(opt, outside)


def test_defaults_do_not_conflict():
    assert list(conflicts(Config())) == []


def test_every_knob_of_the_policy_has_an_option_with_its_default():
    assert SchedulerOptions().to_scheduler_config() == SchedulerConfig()
    mapped = {item.name.replace("_ns", "_ms") for item in dataclasses.fields(SchedulerConfig)}
    assert mapped <= {opt.name for opt in OPTIONS if opt.section == "scheduler"}


def test_ms_become_ns_once():
    config = SchedulerOptions(
        tick_budget_ms=30, slo_tbt_ms=0.25, stages=("admission",), bmt_budget=-1.0
    ).to_scheduler_config()
    assert (config.tick_budget_ns, config.slo_tbt_ns, config.stages, config.bmt_budget) == (
        30_000_000,
        250_000,
        ("admission",),
        -1.0,
    )
    assert ns(1.5) == 1_500_000


def test_backend_settings_reach_the_variables_that_ggml_reads():
    assert EngineOptions().backend_environ() == {
        "GGML_METAL_RESIDENCY_KEEP_ALIVE_S": "180",
        "GGML_CUDA_DISABLE_GRAPHS": "1",
    }
    chosen = EngineOptions(
        metal_residency=False, metal_keep_alive_s=7, metal_shared_buffers="off", cuda_graphs=True
    ).backend_environ()
    assert chosen == {
        "GGML_METAL_RESIDENCY_KEEP_ALIVE_S": "7",
        "GGML_METAL_NO_RESIDENCY": "1",
        "GGML_METAL_SHARED_BUFFERS_DISABLE": "1",
    }
    assert "GGML_METAL_SHARED_BUFFERS_ENABLE" in EngineOptions(metal_shared_buffers="on").backend_environ()


def test_lane_ceiling_is_interactive_unless_set():
    access = dataclasses.replace(Config().access, lane_ceiling={1000: "background"})
    assert access.ceiling(1000) is Priority.BACKGROUND
    assert access.ceiling(1001) is Priority.INTERACTIVE


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().engine.n_ctx = 1  # type: ignore[misc]


def test_caps_name_options():
    assert {opt.extra["cap"] for opt in OPTIONS if "cap" in opt.extra} <= SCHEMA.by_key.keys()


def test_the_largest_frame_cap_still_tells_text_from_headers():
    largest = SCHEMA.by_key["ipc.max_frame_bytes"].extra["max"]
    for text in (b"\t\t\t\t", b"Hell", "ü\n\r".encode(), b'{"id'):
        assert detect_mode(text) is Mode.LINES and int.from_bytes(text, "little") > largest
    with pytest.raises(BadValue, match="1024 to 134217728"):
        check(SCHEMA.by_key["ipc.max_frame_bytes"], largest + 1)
