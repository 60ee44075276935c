"""cluster.yaml: which settings are accepted and which are refused, and that the page lists them all."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.support import ROOT
from uma_core.errors import ErrorCode, UmaError
from uma_gateway.cli import main
from uma_gateway.cluster.settings import ClusterSettings, ModelSettings, gateway_config, load, parse
from uma_gateway.keys import entry

DEMO: dict[str, Any] = {"models": [{"name": "demo"}]}
NAMES = [field.name for kind in (ClusterSettings, ModelSettings) for field in dataclasses.fields(kind)]


def refusal(values: Any) -> str:
    with pytest.raises(UmaError) as refused:
        parse(values)
    assert refused.value.error is ErrorCode.CONFIG_INVALID
    return refused.value.message


def test_a_name_is_all_that_a_model_needs() -> None:
    settings = parse(DEMO)
    assert settings.models == (ModelSettings("demo"),) and len(bytes.fromhex(settings.key)) == 32
    assert dataclasses.replace(settings, key="", models=()) == ClusterSettings()
    assert parse(DEMO).key != settings.key, "each start has a secret of its own"


def test_a_key_may_have_capital_letters() -> None:
    assert parse({**DEMO, "key": "AbCdEf01" * 4}).key == "abcdef01" * 4


def test_models_without_a_socket_share_none() -> None:
    assert len(parse({"models": [{"name": "a"}, {"name": "b"}, {"name": "c", "socket": "/s"}]}).models) == 3


def test_a_check_reads_the_key_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, path = tmp_path / "keys.yaml", tmp_path / "cluster.yaml"
    path.write_text(f"models: [{{name: a}}]\ngateway: {{access: {{api_key_file: {keys}}}}}\n")
    monkeypatch.setattr("sys.argv", ["uma-gateway", "cluster", "up", "--config", str(path), "--check-config"])
    assert main() == 1 and str(keys) in capsys.readouterr().err
    keys.write_text("- name: alice\n  hash: sha256:12\n")
    assert main() == 1 and "alice: hash must be" in capsys.readouterr().err
    keys.write_text(entry("alice", "k"))
    assert main() == 0 and "the settings are valid" in capsys.readouterr().out


def test_a_file_is_read_and_the_command_line_goes_before_it(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "models: [{name: a, daemon: --n-ctx 4096, idle_s: 5}, {name: b, daemon: [--parallel, 2], replicas: 0}]\nport: "
        "1\n"
    )
    settings = load(str(path), port=2, nodes=None)
    assert [model.daemon for model in settings.models] == [("--n-ctx", "4096"), ("--parallel", "2")]
    assert (settings.port, settings.nodes, settings.models[0].idle_s) == (2, 0, 5.0)


def test_a_pipe_in_place_of_the_file_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    os.mkfifo(path)
    with pytest.raises(UmaError, match="not a regular file"):
        load(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "models: [",
        "- a",
        "7",
        "\x00",
        "[" * 5000,
        "lost_s: 2026-99-99",
        "port: 0x",
        f"port: {'9' * 5000}",
        "port: 1\nport: 2\nmodels: [{name: a}]",
        "models: [&a {name: a}, *a]",
    ],
    ids=["cut", "list", "number", "nul", "deep", "date", "hex", "huge", "twice", "alias"],
)
def test_a_file_that_is_no_strict_mapping_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    for name in (str(path), str(tmp_path / "absent.yaml")):
        with pytest.raises(UmaError, match=name) as refused:
            load(name)
        assert refused.value.error is ErrorCode.CONFIG_INVALID


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "`models` must list at least one model"),
        ({"models": "demo"}, "`models` must list"),
        ({"models": ["demo"]}, "`models[0]` must be a mapping"),
        ({"models": [{}]}, "`models[0].name` must be"),
        ({"models": [{"name": "../x"}]}, "`models[0].name` must be"),
        ({"models": [{"name": "a"}, {"name": "a"}]}, "two models have the same name"),
        ({"models": [{"name": "a", "socket": "/s"}, {"name": "b", "socket": "/s"}]}, "have the same `socket`"),
        ({"models": [{"name": "a", "replicas": 0}]}, "at least one model must have `replicas`"),
        ({"models": [{"name": "a", "replicas": -1}]}, "must not be negative"),
        ({"models": [{"name": "a", "replicas": True}]}, "`models[0].replicas` must be an integer"),
        ({"models": [{"name": "a", "daemon": ["-v"], "socket": "/s"}]}, "`models[0]`: `daemon` or `socket`, not both"),
        ({"models": [{"name": "a", "daemon": 5}]}, "`models[0].daemon` must be a list of flags"),
        ({"models": [{"name": "a", "daemons": []}]}, "did you mean `daemon`?"),
        ({**DEMO, "node": 2}, "did you mean `nodes`?"),
        ({**DEMO, "nodes": "two"}, "`nodes` must be an integer"),
        ({**DEMO, "port": 65_536}, "must be counts, `port` at most 65535"),
        ({**DEMO, "gateways": 0}, "must be counts"),
        ({**DEMO, "lost_s": 0}, "must be times in seconds"),
        ({**DEMO, "lost_s": float("nan")}, "must be times in seconds"),
        ({**DEMO, "drain_s": float("inf")}, "must be times in seconds"),
        ({**DEMO, "key": "secret"}, "`key` must be 16 to 64 bytes in hexadecimal"),
        ({**DEMO, "gateway": []}, "`gateway` must be a mapping"),
        ({**DEMO, "gateway": {"acces": {"api_key": "x"}}}, "did you mean `access.api_key`?"),
        ({**DEMO, "gateway": {"limits": {"max_connections": "many"}}}, "max_connections"),
        ({**DEMO, "gateway": {"access": {"api_key": None}}}, "`access.api_key` has no value"),
        ({**DEMO, "gateway": {"serve": {"host": "127.0.0.1"}}}, "not `gateway.serve.host`"),
        ({**DEMO, "gateway": {"serve": {"port": 9}}}, "not `gateway.serve.port`"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], words: str) -> None:
    assert words in refusal(values)


def test_the_gateways_options_are_those_of_its_own_file() -> None:
    settings = parse({**DEMO, "port": 9, "gateway": {"log": {"access": False}, "access": {"api_key": "k"}}})
    config = gateway_config(settings)
    assert (config.serve.port, config.log.access, config.access.api_key) == (9, False, "k")
    assert gateway_config(parse({**DEMO, "gateway": {"access": None}})) == gateway_config(parse(DEMO)), "all as it was"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(NAMES), values, max_size=6), st.dictionaries(st.sampled_from(NAMES), values))
def test_whatever_a_file_holds_it_is_taken_or_refused_by_a_code(given_: dict[str, Any], model: dict[str, Any]) -> None:
    try:
        settings = parse({"models": [{"name": "a", **model}], **given_})
    except UmaError as error:
        assert error.error is ErrorCode.CONFIG_INVALID
    else:
        assert settings.models and gateway_config(settings)


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "CLUSTER.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []
