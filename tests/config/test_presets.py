"""Presets: what they set, and what goes before them."""

from __future__ import annotations

import pytest

from tests.config.test_load import build, refusal
from uma_core.config.load import SCHEMA
from uma_core.config.options import Config
from uma_core.config.presets import PRESETS
from uma_core.config.schema import check


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_its_options_and_no_others(name):
    config, sources = build({"preset": name})
    changed = {opt.key: value for opt, value in SCHEMA.items(config) if value != SCHEMA.get(Config(), opt)}
    assert changed == {"preset": name, **PRESETS[name].values}
    assert {key for key, origin in sources.origins.items() if origin == f"preset {name}"} == set(PRESETS[name].values)


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for preset in PRESETS.values() for key, value in preset.values.items()]
)
def test_what_a_preset_says_its_options_allow(key, value):
    assert check(SCHEMA.by_key[key], value) == value
    assert type(value) is SCHEMA.by_key[key].kind


def test_whatever_is_given_explicitly_goes_before_a_preset(write):
    path = write("preset: server\nengine: {n_seq: 5}\ncache: {disk_mb: 10}\n")
    config, sources = build({"cache.ram_mb": "7"}, {"UMA_MAX_SESSIONS": "9"}, path)
    assert (config.engine.n_seq, config.cache.ram_mb, config.limits.max_sessions, config.cache.disk_mb) == (5, 7, 9, 10)
    assert config.engine.n_ctx == PRESETS["server"].values["engine.n_ctx"]
    assert sources.origins["preset"] == f"file {path}"
    assert build({"preset": "none"}, {}, path)[0].engine.n_ctx == Config().engine.n_ctx


def test_what_a_preset_says_is_lowered_to_a_cap_that_was_chosen():
    config, sources = build({"preset": "workstation", "ipc.max_frame_bytes": "4096"})
    assert config.limits.max_prompt_bytes == 4096
    assert sources.origins["limits.max_prompt_bytes"] == "preset workstation, lowered to ipc.max_frame_bytes"


def test_a_preset_that_is_none_is_refused_with_the_nearest():
    assert "'laptop'" in refusal(flags={"preset": "labtop"})
