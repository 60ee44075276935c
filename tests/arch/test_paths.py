"""A module is tested at its own path: `uma_core/executor/slots.py` in `tests/executor/test_slots.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"uma_core": "tests", "uma_ctl": "tests/ctl", "uma_gateway": "tests/gateway"}

# Modules without a test at their path: tables, types, wiring, thin commands, and what is only of use within a whole
# engine. By the test that covers them.
ELSEWHERE = {
    "tests/bindings/test_drift.py": "uma_core/engine/selftest.py",
    "tests/cache/test_manager.py": "uma_core/cache/settings.py",
    "tests/ctl/test_chat.py": "uma_ctl/commands/chat.py",
    "tests/ctl/test_embed.py": "uma_ctl/commands/embed.py uma_ctl/commands/rerank.py",
    "tests/ctl/test_generate.py": "uma_ctl/cli.py uma_ctl/commands/generate.py uma_ctl/generation.py",
    "tests/ctl/test_real_daemon.py": "uma_ctl/commands/detokenize.py uma_ctl/commands/tokenize.py",
    "tests/ctl/test_top.py": "uma_ctl/commands/top.py",
    "tests/ctl/test_verbs.py": (
        "uma_ctl/__main__.py uma_ctl/commands/cache.py uma_ctl/commands/cancel.py uma_ctl/commands/drain.py "
        "uma_ctl/commands/health.py uma_ctl/commands/metrics.py uma_ctl/commands/reload.py "
        "uma_ctl/commands/sessions.py uma_ctl/commands/socket.py uma_ctl/commands/status.py "
        "uma_ctl/commands/trace.py uma_ctl/commands/undrain.py uma_ctl/main.py"
    ),
    "tests/daemon/test_embedding.py": "uma_core/server/operations/embedding.py",
    "tests/daemon/test_large.py": "uma_core/server/operations/helper_child.py",
    "tests/daemon/test_lifecycle.py": "uma_core/server/lifecycle/daemon.py uma_core/server/lifecycle/lifecycle.py",
    "tests/daemon/test_metrics_move.py": "uma_core/server/io/meters.py",
    "tests/daemon/test_props.py": "uma_core/server/operations/props.py",
    "tests/engine/graph/test_families.py": "uma_core/engine/graph/builder.py",
    "tests/engine/graph/test_load.py": "uma_core/engine/graph/uploaded.py",
    "tests/engine/graph/test_masked.py": "uma_core/engine/graph/attention.py",
    "tests/engine/graph/test_states.py": "uma_core/engine/graph/recurrence.py",
    "tests/engine/llama/test_engine.py": "uma_core/engine/llama/decode.py",
    "tests/engine/select/test_compare.py": "uma_core/engine/select/trial.py",
    "tests/engine/test_conformance.py": "uma_core/engine/api.py uma_core/engine/base.py",
    "tests/engine/test_lora.py": "uma_core/engine/graph/adapters.py uma_core/engine/llama/lora.py",
    "tests/executor/test_executor.py": "uma_core/executor/ports.py",
    "tests/executor/test_output.py": "uma_core/session/events.py",
    "tests/gateway/cluster/test_link.py": "uma_gateway/cluster/transport.py",
    "tests/gateway/cluster/test_ray.py": "uma_gateway/cluster/app.py",
    "tests/gateway/test_access.py": "uma_gateway/apis/base.py",
    "tests/gateway/test_embedding.py": "uma_gateway/apis/openai/embeddings.py",
    "tests/gateway/test_errors.py": "uma_gateway/chat/errors.py",
    "tests/gateway/test_serving.py": "uma_gateway/__main__.py",
    "tests/policy/test_pipeline.py": "uma_core/policy/config.py",
    "tests/policy/test_plan.py": "uma_core/policy/memory.py",
    "tests/server/test_connections.py": "uma_core/server/io/app.py uma_core/server/io/ports.py",
    "tests/server/test_leaving.py": "uma_core/server/io/client.py",
    "tests/server/test_operations.py": "uma_core/server/operations/handlers.py",
    "tests/speculation/test_fit.py": "uma_core/engine/draft.py",
    "tests/speculation/test_heads.py": "uma_core/engine/llama/heads.py",
    "tests/speculation/test_speculator.py": "uma_core/speculation/settings.py",
    "tests/test_cli.py": "uma_core/__main__.py uma_core/_version.py",
}
MODULES = [
    path.relative_to(ROOT)
    for package in FOLDERS
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.name != "__init__.py" and path.parent.name != "families"  # all families: engine/graph/test_families.py
]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_module_is_tested_where_one_looks_for_it(module: Path) -> None:
    package, *folders = module.parent.parts
    own = ROOT / FOLDERS[package] / Path(*folders) / f"test_{module.name}"
    others = [test for test, modules in ELSEWHERE.items() if str(module) in modules.split()]
    assert own.exists() != bool(others), f"{own} or a line of ELSEWHERE"
    assert all((ROOT / test).exists() for test in others)
