"""Facts about the daemon and its model that a gateway needs."""

from __future__ import annotations

import pytest

from uma_core.models import default_model_path


@pytest.mark.parametrize("engine", ["llama", "graph"])
def test_props_of_a_real_model(serve_model, engine):
    daemon = serve_model("--engine", engine, model=default_model_path())
    props, status = daemon.ask("props"), daemon.status()
    assert {name: props["model"][name] for name in ("name", "path", "fingerprint", "arch")} == {
        name: status["model"][name] for name in ("name", "path", "fingerprint", "arch")
    }
    assert props["model"]["n_params"] > 20_000_000 and props["model"]["n_vocab"] > 1000 and props["model"]["n_embd"] > 0
    assert props["model"]["is_demo"] is True
    assert (props["n_ctx_seq"], props["n_seq_max"]) == (status["engine"]["n_ctx_seq"], status["engine"]["n_seq_max"])
    assert "<|im_start|>" in props["chat_template"] and props["chat_template_tool_use"] is None
    assert props["special"]["eos"]["text"] and isinstance(props["special"]["eos"]["id"], int)
    assert (props["add_bos"], props["add_eos"]) in ((True, False), (False, False))
    assert "prompt" in props["capabilities"]["generate"] and "props" in props["capabilities"]["operations"]
    assert props["capabilities"]["chat"] is True and props["capabilities"]["rerank"] is False
    limits = {"max_tokens": 2048, "default_max_tokens": 512, "max_prompt_bytes": 8 << 20, "overflow": "error"}
    assert props["limits"] == limits


def test_props_before_a_model_is_loaded(serve):
    daemon = serve(environ={"TEST_LEVERS": '{"load_ms": 3000}'}, state="starting")
    assert daemon.ask("props")["code"] == "E_MODEL_001"


def test_a_prompt_written_for_another_model_is_refused(serve):
    daemon = serve()
    fingerprint = daemon.ask("props")["model"]["fingerprint"]
    assert daemon.generate("hello", max_tokens=2, model=fingerprint)[-1]["reason"] == "length"
    refused = daemon.generate("hello", max_tokens=2, model="0" * 16)
    assert [event["code"] for event in refused] == ["E_MODEL_005"]
