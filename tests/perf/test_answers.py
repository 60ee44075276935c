"""Tasks for a trained model: which servers are asked, what is asked, and what the table says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from perf import answers
from perf.answers import Figures, Task
from perf.driver import frames_endpoint, sse_endpoint
from perf.servers import LlamaServer, ServerError, Settings
from tests.perf.fake_server import http_server, sse_script, uds_server, uma_script

TASKS = [Task("json", (1, 2, 3), {"type": "object"}), Task("edit", (4, 5), None), Task("edit", (6,), None)]


def ended_early(request: dict[str, Any]) -> list[bytes]:
    return uma_script(request | {"max_tokens": 5})


def test_a_task_is_asked_for_over_the_socket_as_its_tokens(socket_path: Path) -> None:
    server: Any = SimpleNamespace(label="uma", endpoint=lambda: frames_endpoint(str(socket_path)))
    with uds_server(socket_path, ended_early) as fake:
        figures = answers._answered(server, TASKS, 2, "edit 0")
    by_tokens = {tuple(request["tokens"]): request for request in fake.requests}
    assert set(by_tokens) == {task.tokens for task in TASKS}
    assert by_tokens[1, 2, 3]["constraint"] == {"json_schema": {"type": "object"}}
    assert not any("ignore_eos" in request for request in fake.requests), "answers end where the model ends them"
    assert figures.n_tokens == 15 and figures.tok_s > 0


def test_a_task_is_asked_for_over_http_as_its_tokens() -> None:
    with http_server(lambda request: sse_script(request | {"n_predict": 4})) as fake:
        server: Any = SimpleNamespace(label="llama-server", endpoint=lambda: sse_endpoint("127.0.0.1", fake.port))
        figures = answers._answered(server, TASKS, 1, "edit 0")
    assert [request["prompt"] for request in fake.requests] == [[1, 2, 3], [4, 5], [6]]
    assert fake.requests[0]["json_schema"] == {"type": "object"} and "json_schema" not in fake.requests[1]
    assert figures.n_tokens == 12


def test_a_server_that_answers_nothing_is_an_error(socket_path: Path) -> None:
    server: Any = SimpleNamespace(label="uma", endpoint=lambda: frames_endpoint(str(socket_path)))
    with uds_server(socket_path, lambda request: uma_script(request | {"max_tokens": 0})), pytest.raises(ServerError):
        answers._answered(server, TASKS[:1], 1, "edit 0")


@pytest.mark.parametrize("value", [{"a": 1, "b": [True, False], "c": {"d": "x"}, "e": None}, [], [1.5]])
def test_an_answer_obeys_the_schema_made_of_it(value: Any) -> None:
    jsonschema.validate(value, answers._schema(value))


def test_the_schema_asks_for_every_field_and_no_other() -> None:
    schema = answers._schema({"a": 1, "b": "x"})
    for wrong in ({"a": 1}, {"a": 1, "b": "x", "c": 2}, {"a": "1", "b": "x"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_the_table_gives_ratios_repeat_by_repeat() -> None:
    base = Figures(100.0, 10)
    found = {
        ("edit", 1, "off"): [base, replace(base, tok_s=200.0)],
        ("edit", 1, "auto"): [replace(base, tok_s=150.0), replace(base, tok_s=400.0)],
    }
    assert "| edit | 1 | 150 | 1.75 (1.50 to 2.00) |" in answers.table(found, ["off", "auto"])


def test_llama_server_has_its_modes(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "m.gguf", 2, n_seq=4, n_ctx_seq=512)
    flags = {
        name: LlamaServer(label, settings, tmp_path, tmp_path / "llama-server").command()
        for name, label in answers.labels(tmp_path / "draft.gguf").items()
        if name.startswith("llama-server")
    }
    assert "ngram-mod" in flags["llama-server ngram-mod"]
    assert str(tmp_path / "draft.gguf") in flags["llama-server draft model"]
    assert "--spec-type" not in flags["llama-server"]
