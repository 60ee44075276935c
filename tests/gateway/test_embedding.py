"""Embeddings and reranking over HTTP: OpenAI's and Ollama's own clients, and the other endpoints by hand."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.daemon.encoders import encoder
from tests.daemon.support import DaemonProcess, eventually
from tests.engine.encoders import N_EMBD
from tests.gateway.openai_client import client_of
from tests.gateway.support import GatewayProcess, Raw, gateway_before, n_busy
from tests.late import Late

ollama = Late("ollama")
openai = Late("openai")

TEXTS = ["the shell", "a cat and a dog", "tree"]


@pytest.fixture(scope="module")
def bert(module_folder: Path) -> Iterator[DaemonProcess]:
    with encoder(module_folder, "bert") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def bert_gateway(module_folder: Path, bert: DaemonProcess) -> Iterator[GatewayProcess]:
    with gateway_before(module_folder, bert) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def rank_gateway(module_folder: Path) -> Iterator[GatewayProcess]:
    with encoder(module_folder, "bert-rank") as ranker, gateway_before(module_folder, ranker) as gateway:
        yield gateway


@pytest.fixture
def client(bert_gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with client_of(bert_gateway) as client:
        yield client


def test_openais_client_gets_the_daemons_vectors(client: openai.OpenAI, bert: DaemonProcess) -> None:
    """The client asks for base64 by default."""
    expected = bert.ask("embed", input=TEXTS)
    found = client.embeddings.create(model="any", input=TEXTS)
    np.testing.assert_allclose([item.embedding for item in found.data], expected["embeddings"], rtol=1e-5, atol=1e-6)
    assert [item.index for item in found.data] == [0, 1, 2] and found.model == "any"
    assert found.usage.prompt_tokens == found.usage.total_tokens == expected["usage"]["prompt_tokens"]


def test_openais_client_gets_floats_fewer_numbers_and_vectors_of_tokens(
    client: openai.OpenAI, bert: DaemonProcess
) -> None:
    tokens = [bert.ask("tokenize", content=text, add_special=True)["tokens"] for text in TEXTS]
    by_text = client.embeddings.create(model="any", input=TEXTS, encoding_format="float", dimensions=16)
    by_ids = client.embeddings.create(model="any", input=tokens, dimensions=16)
    one = client.embeddings.create(model="any", input=tokens[0], dimensions=16)
    assert [len(item.embedding) for item in by_text.data] == [16, 16, 16]
    for found, other in zip(by_text.data, by_ids.data, strict=True):
        np.testing.assert_allclose(found.embedding, other.embedding, rtol=1e-4, atol=1e-5)
        assert abs(np.linalg.norm(found.embedding) - 1) < 1e-5
    np.testing.assert_allclose(one.data[0].embedding, by_text.data[0].embedding, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/embeddings", {"input": TEXTS * 1000}),
        ("/embed", {"inputs": TEXTS * 1000}),
        ("/api/embed", {"input": TEXTS}),
    ],
)
def test_a_request_s_time_is_limited(bert_gateway: GatewayProcess, path: str, fields: dict[str, Any]) -> None:
    assert bert_gateway.post(path, **fields, timeout_ms="1").status == 400
    late = bert_gateway.post(path, **fields, timeout_ms=0.001)
    assert late.status == 504 and "`timeout_ms` passed before the request was complete" in late.body.decode()
    assert bert_gateway.post(path, **{**fields, next(iter(fields)): "cat"}, timeout_ms=60_000).status == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"input": ""},
        {"input": []},
        {"input": ["a", ""]},
        {"input": "a", "dimensions": 5000},
        {"input": "the " * 300},
        {"input": [1 << 29]},
    ],
)
def test_what_is_wrong_is_a_bad_request(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model="any", **fields)


def test_a_text_that_is_too_long_is_told_in_openais_words(client: openai.OpenAI, rank_gateway: GatewayProcess) -> None:
    """LiteLLM and LangChain recognise the error by them."""
    with pytest.raises(
        openai.BadRequestError, match="maximum context length is 96 tokens, and input 1 has 302"
    ) as told:
        client.embeddings.create(model="any", input=["the", "the " * 300])
    assert told.value.code == "context_length_exceeded"
    error = rank_gateway.post("/rerank", query="the", documents=["the " * 300]).error
    assert (error["type"], error["n_ctx"], error["n_prompt_tokens"]) == ("exceed_context_size_error", 96, 303)


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/embed", {"inputs": ["a", ""]}, "inputs[1]"),
        ("/embed", {"inputs": []}, "inputs"),
        ("/embedding", {"content": ["a", ""]}, "content[1]"),
        ("/embedding", {"input": ["a", ""]}, "input[1]"),
        ("/rerank", {"query": "the", "texts": ["a"] * 4097}, "texts"),
        ("/v1/embeddings", {"input": ["a", ""]}, "input[1]"),
    ],
)
def test_an_error_names_the_clients_field(
    rank_gateway: GatewayProcess, path: str, body: dict[str, Any], named: str
) -> None:
    answer = rank_gateway.post(path, **body)
    assert answer.status == 400 and answer.error["message"].startswith(f"`{named}` must"), answer.json


CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "x"}), ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {**CHAT, "max_tokens": 2}), ("/api/chat", CHAT), ("/api/generate", {"prompt": "x"}),
        ("/completion", {"prompt": "x"}), ("/infill", {"input_prefix": "x"}),
    ],
)  # fmt: skip
def test_no_endpoint_writes_text_with_an_encoder(bert_gateway: GatewayProcess, path: str, body: dict[str, Any]) -> None:
    assert bert_gateway.post(path, **body).status == 501
    assert bert_gateway.post(path, **body, stream=True).status == 501


def test_vllms_clients_have_a_text_cut_to_what_the_model_takes(client: openai.OpenAI) -> None:
    ask = {"model": "any", "input": "the " * 300}
    cut = client.embeddings.create(**ask, extra_body={"truncate": True})
    found = client.embeddings.create(**ask, extra_body={"truncate_prompt_tokens": -1})
    np.testing.assert_allclose(found.data[0].embedding, cut.data[0].embedding, rtol=1e-3, atol=1e-4)
    with pytest.raises(openai.InternalServerError, match="truncate_prompt_tokens"):  # a 501
        client.embeddings.create(**ask, extra_body={"truncate_prompt_tokens": 20})


def parts(*texts: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text} for text in texts]}


@pytest.mark.parametrize(("path", "name"), [("/v1/embeddings", "input"), ("/embedding", "content")])
def test_a_text_may_be_an_object(bert_gateway: GatewayProcess, path: str, name: str) -> None:
    """llama-server's clients write it in this form."""

    def vectors(given: Any) -> Any:
        answer = bert_gateway.post(path, **{name: given}).json
        return [item["embedding"] for item in (answer["data"] if path == "/v1/embeddings" else answer)]

    (one,) = vectors("the shell")
    for given in ({"prompt_string": "the shell"}, parts("the shell"), parts("the ", "shell")):
        np.testing.assert_allclose(vectors(given), [one], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        vectors(["tree", {"prompt_string": "the shell"}, parts("tree")]), vectors(["tree", "the shell", "tree"]), 1e-5
    )
    for wrong in ({"content": "tree"}, {"content": [{"type": "unknown"}]}, {"prompt_string": 1}, {}):
        assert bert_gateway.post(path, **{name: wrong}).status == 400
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    for seen in ({"content": [image]}, {"prompt_string": "a", "multimodal_data": ["AAAA"]}):
        assert bert_gateway.post(path, **{name: seen}).status == 501


def test_an_encoder_does_not_chat(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.completions.create(model="any", prompt="Hello")
    assert refused.value.status_code == 501


def test_base64_is_little_endian_floats(bert_gateway: GatewayProcess) -> None:
    ask = {"input": TEXTS[0]}
    packed = bert_gateway.post("/v1/embeddings", **ask, encoding_format="base64").json["data"][0]["embedding"]
    floats = bert_gateway.post("/v1/embeddings", **ask).json["data"][0]["embedding"]
    assert list(struct.unpack(f"<{N_EMBD}f", base64.b64decode(packed))) == floats
    assert bert_gateway.post("/v1/embeddings", **ask, encoding_format="hex").status == 400


def test_ollamas_client(bert_gateway: GatewayProcess, bert: DaemonProcess) -> None:
    expected = bert.ask("embed", input=TEXTS)["embeddings"]
    client = ollama.Client(host=bert_gateway.url)
    found = client.embed(model="any", input=TEXTS)
    np.testing.assert_allclose(found.embeddings, expected, rtol=1e-5, atol=1e-6)
    assert found.prompt_eval_count and found.total_duration
    old = client.embeddings(model="any", prompt=TEXTS[0]).embedding
    np.testing.assert_allclose(np.array(old) / np.linalg.norm(old), expected[0], rtol=1e-3, atol=1e-4)
    assert len(client.embed(model="any", input="the " * 300).embeddings) == 1  # the input is cut, as in Ollama
    assert "embedding" in client.show("any").capabilities and "completion" not in client.show("any").capabilities
    assert client.embed(model="any", input=TEXTS[0], dimensions=8).embeddings[0] == pytest.approx(
        np.array(expected[0][:8]) / np.linalg.norm(expected[0][:8]), rel=1e-3, abs=1e-4
    )


def test_vectors_in_the_form_of_text_embeddings_inference(bert_gateway: GatewayProcess, bert: DaemonProcess) -> None:
    """LlamaIndex and Chroma ask for them in this form."""
    expected = bert.ask("embed", input=TEXTS)["embeddings"]
    np.testing.assert_allclose(bert_gateway.post("/embed", inputs=TEXTS).json, expected, rtol=1e-5, atol=1e-6)
    (plain,) = bert_gateway.post("/embed", inputs=TEXTS[0], normalize=False).json
    assert abs(np.linalg.norm(plain) - 1) > 1e-3
    assert bert_gateway.post("/embed", inputs="the " * 300).status == 400
    assert len(bert_gateway.post("/embed", inputs=["the " * 300], truncate=True).json) == 1
    assert bert_gateway.post("/embed").error["message"].startswith("`inputs`")
    assert bert_gateway.post("/embed", inputs=TEXTS[0], truncation_direction="Left").status == 200, "nothing is cut"
    for refused in ({"prompt_name": "query"}, {"truncate": True, "truncation_direction": "Left"}):
        assert bert_gateway.post("/embed", inputs=TEXTS[0], **refused).status == 501


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_llama_servers_own_form(bert_gateway: GatewayProcess, bert: DaemonProcess, path: str) -> None:
    expected = bert.ask("embed", input=TEXTS)["embeddings"]
    found = bert_gateway.post(path, content=TEXTS).json
    assert [item["index"] for item in found] == [0, 1, 2]
    np.testing.assert_allclose([item["embedding"][0] for item in found], expected, rtol=1e-5, atol=1e-6)
    (plain,) = bert_gateway.post(path, input=TEXTS[0], embd_normalize=-1).json
    assert abs(np.linalg.norm(plain["embedding"][0]) - 1) > 1e-3
    (rows,) = bert_gateway.post(path, content=TEXTS[0], pooling="none").json
    assert len(rows["embedding"]) == len(bert.ask("tokenize", content=TEXTS[0], add_special=True)["tokens"])
    assert bert_gateway.post(path).status == 400


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"])
def test_reranking_in_jinas_form(rank_gateway: GatewayProcess, path: str) -> None:
    found = rank_gateway.post(path, model="m", query="the query", documents=TEXTS, top_n=2, return_documents=True).json
    scores = [result["relevance_score"] for result in found["results"]]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)
    assert all(result["document"]["text"] == TEXTS[result["index"]] for result in found["results"])
    assert found["model"] == "m" and found["usage"]["total_tokens"] > 0
    objects = rank_gateway.post(path, query="the query", documents=[{"text": text} for text in TEXTS], top_n=2).json
    assert [result["index"] for result in objects["results"]] == [result["index"] for result in found["results"]]


def test_cohere_lets_long_documents_be_cut(rank_gateway: GatewayProcess) -> None:
    """Haystack's client sends `max_tokens_per_doc` with every request, LiteLLM's with null."""
    asked = {"query": "the", "documents": ["the " * 300, "a"]}
    cut = rank_gateway.post("/v2/rerank", **asked, max_tokens_per_doc=4096).json
    assert cut == rank_gateway.post("/v2/rerank", **asked, truncate=True).json and len(cut["results"]) == 2
    assert rank_gateway.post("/v2/rerank", **asked, max_tokens_per_doc=4096, truncate=False).status == 400
    assert rank_gateway.post("/v2/rerank", **asked, max_tokens_per_doc=None).status == 400
    assert rank_gateway.post("/v2/rerank", **asked, max_tokens_per_doc=0).error["message"].startswith("`max_tokens")


def test_scores_of_a_reranker_are_not_normalized_to_one(rank_gateway: GatewayProcess) -> None:
    expected = [item["embedding"] for item in rank_gateway.post("/v1/embeddings", input=TEXTS).json["data"]]
    found = rank_gateway.post("/embed", inputs=TEXTS).json
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert abs(abs(found[0][0]) - 1) > 1e-3


def test_reranking_in_the_form_of_text_embeddings_inference(rank_gateway: GatewayProcess) -> None:
    found = rank_gateway.post("/rerank", query="the query", texts=TEXTS, return_text=True).json
    assert sorted(result["index"] for result in found) == [0, 1, 2]
    assert all(result["text"] == TEXTS[result["index"]] and isinstance(result["score"], float) for result in found)
    cut = {"truncate": True, "truncation_direction": "left"}
    assert rank_gateway.post("/rerank", query="the query", texts=TEXTS, **cut).status == 501


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"documents": ["a"]}, 400), ({"query": "a"}, 400), ({"query": "a", "documents": []}, 400),
        ({"query": "a", "documents": [5]}, 400),
        ({"query": "a", "documents": ["b"], "top_n": 0}, 400), ({"query": 5, "documents": ["b"]}, 400),
    ],
)  # fmt: skip
def test_bad_reranking_is_a_bad_request(rank_gateway: GatewayProcess, body: dict[str, Any], status: int) -> None:
    assert rank_gateway.post("/v1/rerank", **body).status == status


def test_a_model_without_a_classifier_does_not_rerank(bert_gateway: GatewayProcess) -> None:
    assert bert_gateway.post("/v1/rerank", query="a", documents=["b"]).status == 501


def test_a_model_that_chats_embeds_through_the_same_port(tiny_gateway: GatewayProcess) -> None:
    vectors = tiny_gateway.post("/v1/embeddings", input=["a text", "another one"]).json["data"]
    assert len(vectors) == 2 and tiny_gateway.chat(max_tokens=3).status == 200


@pytest.mark.parametrize(
    ("name", "expected"), [("bert_gateway", ["embedding"]), ("rank_gateway", []), ("work_gateway", None)]
)
def test_every_list_of_models_tells_the_same_abilities(
    request: pytest.FixtureRequest, name: str, expected: list[str] | None
) -> None:
    gateway: GatewayProcess = request.getfixturevalue(name)
    shown = gateway.post("/api/show", model="m").json["capabilities"]
    assert gateway.get("/v1/models").json["models"][0]["capabilities"] == shown
    if expected is None:
        assert {"completion", "tools"} <= set(shown) and "embedding" not in shown  # only embedding models have that
    else:
        assert shown == expected


def test_lm_studios_lists_say_that_it_makes_vectors(bert_gateway: GatewayProcess) -> None:
    assert bert_gateway.get("/api/v0/models").json["data"][0]["type"] == "embeddings"
    (listed,) = bert_gateway.get("/api/v1/models").json["models"]
    assert listed["type"] == "embedding" and "capabilities" not in listed
    assert len(bert_gateway.post("/api/v0/embeddings", input="text").json["data"]) == 1


def test_a_client_that_leaves_cancels_its_batch(tiny_gateway: GatewayProcess, tiny: DaemonProcess) -> None:
    with Raw(tiny_gateway.port) as raw:
        raw.send("POST", "/v1/embeddings", {"input": ["a long text, " * 60] * 800})
        eventually(lambda: n_busy(tiny), "it never began")
    eventually(lambda: not n_busy(tiny), "it goes on")
