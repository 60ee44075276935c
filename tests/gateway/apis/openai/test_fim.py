"""Mistral's endpoint for filling in, before a model with tokens for that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.fim import FIM_TOKENS, write_fim
from tests.daemon.support import SMALL, DaemonProcess, running
from tests.gateway.support import Answer, GatewayProcess, gateway_before

PATH = "/v1/fim/completions"
GAP = {"model": "codestral", "prompt": "def add(a, b):\n    return ", "suffix": "\n\nprint(add(1, 2))\n"}
GREEDY = {"temperature": 0, "max_tokens": 8, "min_tokens": 8}


@pytest.fixture(scope="module")
def filling(module_folder: Path) -> Iterator[DaemonProcess]:
    model = str(write_fim(module_folder / "fim.gguf"))
    with running(module_folder, "--model", model, *SMALL, path=str(module_folder / "fim.sock")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def fim(module_folder: Path, filling: DaemonProcess) -> Iterator[GatewayProcess]:
    with gateway_before(module_folder, filling) as gateway:
        yield gateway


def text_of(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return answer.json["choices"][0]["message"]["content"]


def test_a_gap_is_filled_in_whole_and_streamed(fim):
    whole = fim.post(PATH, **GAP, **GREEDY).json
    (choice,) = whole["choices"]
    assert (whole["object"], whole["model"], choice["finish_reason"]) == ("chat.completion", "codestral", "length")
    assert whole["usage"]["completion_tokens"] == 8
    first, *pieces, last = fim.post(PATH, **GAP, **GREEDY, stream=True).events
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(piece["choices"][0]["delta"]["content"] for piece in pieces) == choice["message"]["content"]
    assert last["choices"][0] == {"index": 0, "delta": {"content": ""}, "finish_reason": "length"}
    assert last["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    older = fim.post("/v1/completions", **GAP, **GREEDY).json
    assert older["choices"][0]["text"] == choice["message"]["content"]


def test_the_text_before_the_gap_may_be_empty(fim, filling):
    n_after = len(filling.ask("tokenize", content=GAP["suffix"], add_special=False)["tokens"])
    for path in (PATH, "/v1/completions"):
        usage = fim.post(path, **{**GAP, "prompt": ""}, **GREEDY).json["usage"]
        assert usage["prompt_tokens"] == 1 + len(FIM_TOKENS) + n_after  # the token that begins a text stands there once


@pytest.mark.parametrize("suffix", [{}, {"suffix": None}, {"suffix": ""}])
def test_without_a_suffix_the_prompt_is_continued(tiny_gateway, suffix):
    prompt = {"prompt": "Once upon a", **GREEDY}
    older = tiny_gateway.post("/v1/completions", **prompt).json["choices"][0]["text"]
    assert text_of(tiny_gateway.post(PATH, **prompt, **suffix)) == older


def test_stop_and_random_seed(tiny_gateway):
    fields = {"prompt": "Once upon a", "temperature": 2, "max_tokens": 20, "random_seed": 7}
    text = text_of(tiny_gateway.post(PATH, **fields))
    assert text_of(tiny_gateway.post(PATH, **fields)) == text
    stopped = tiny_gateway.post(PATH, **fields, stop=[text[5:8]])
    assert text_of(stopped) == text[: text.index(text[5:8])]
    assert stopped.json["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({}, 400, "prompt"),
        ({"prompt": ["a", "b"]}, 400, "prompt"),
        ({"prompt": "a", "suffix": 3}, 400, "suffix"),
        ({"prompt": "a", "suffix": "z"}, 501, "suffix"),  # this model has no tokens for it
        ({"prompt": "a", "random_seed": "x"}, 400, "random_seed"),
    ],
)
def test_a_wrong_field_is_named(tiny_gateway, fields, status, param):
    answer = tiny_gateway.post(PATH, **fields)
    assert (answer.status, answer.error["param"]) == (status, param), answer.body
