"""`embed` and `rerank` on an encoder, on a reranker, and on a model that also chats."""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.daemon.encoders import encoder
from tests.daemon.support import SMALL, TINY, DaemonProcess, eventually, running, text_of
from tests.engine.encoders import ENCODERS, N_EMBD, RERANK_PROMPT, write

Event = dict[str, Any]


def vector(data: str) -> np.ndarray:
    raw = base64.b64decode(data)
    return np.array(struct.unpack(f"<{len(raw) // 4}f", raw), np.float32)


@pytest.fixture(scope="module")
def bert(module_folder: Path) -> Iterator[DaemonProcess]:
    with encoder(module_folder, "bert") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def ranker(module_folder: Path) -> Iterator[DaemonProcess]:
    with encoder(module_folder, "bert-rank") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def tiny(module_folder: Path) -> Iterator[DaemonProcess]:
    with running(module_folder, "--model", str(TINY), *SMALL, path=str(module_folder / "t.sock")) as daemon:
        yield daemon


def test_an_encoder_embeds_texts_and_tokens_in_both_encodings(bert: DaemonProcess) -> None:
    tokens = bert.ask("tokenize", content="the shell", add_special=True)["tokens"]
    floats = bert.ask("embed", input=["the shell", tokens, "a cat"])
    packed = bert.ask("embed", input=["the shell", tokens, "a cat"], encoding="base64")
    found = np.array(floats["embeddings"], np.float32)
    assert found.shape == (3, N_EMBD)
    np.testing.assert_array_equal(found, np.array([vector(item) for item in packed["embeddings"]]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    n_other = len(bert.ask("tokenize", content="a cat", add_special=True)["tokens"])
    assert floats["event"] == "reply" and floats["usage"] == {"prompt_tokens": 2 * len(tokens) + n_other}
    assert floats["timing"]["total_ms"] > 0


def test_one_input_is_an_array_of_one_vector(bert: DaemonProcess) -> None:
    (by_text,) = bert.ask("embed", input="the shell", dimensions=8)["embeddings"]
    (by_ids,) = bert.ask(
        "embed", input=bert.ask("tokenize", content="the shell", add_special=True)["tokens"], dimensions=8
    )["embeddings"]
    assert by_text == by_ids and len(by_text) == 8 and abs(np.linalg.norm(by_text) - 1) < 1e-5


def test_without_pooling_there_is_a_vector_for_each_token(bert: DaemonProcess) -> None:
    reply = bert.ask("embed", input=["the shell", "a"], pooling="none")
    sizes = [len(bert.ask("tokenize", content=text, add_special=True)["tokens"]) for text in ("the shell", "a")]
    assert [len(rows) for rows in reply["embeddings"]] == sizes
    assert all(len(row) == N_EMBD for rows in reply["embeddings"] for row in rows)


def test_an_encoder_refuses_to_generate_and_says_what_it_is(bert: DaemonProcess) -> None:
    (refused,) = bert.generate("hello")
    assert refused["event"] == "error" and refused["name"] == "unsupported"
    props = bert.ask("props")
    assert (
        props["capabilities"]["embeddings"]
        and not props["capabilities"]["completion"]
        and not props["capabilities"]["chat"]
    )
    assert props["n_embd_out"] == N_EMBD and props["n_input"] == 96 and props["capabilities"]["pooling"] == "cls"
    assert bert.ask("rerank", query="a", documents=["b"])["name"] == "unsupported"
    assert bert.status()["state"] == "ready"


def test_a_reranker_orders_documents(ranker: DaemonProcess) -> None:
    documents = ["the cat", "a dog is of the tree", "socket"]
    reply = ranker.ask("rerank", query="the query", documents=documents)
    scores = [result["relevance_score"] for result in reply["results"]]
    assert sorted(result["index"] for result in reply["results"]) == [0, 1, 2] and scores == sorted(
        scores, reverse=True
    )
    assert ranker.ask("rerank", query="the query", documents=documents, top_n=1)["results"] == reply["results"][:1]
    # the scores equal those of each pair by itself, built as llama-server builds a pair
    cls, sep = 2, 3
    words = [ranker.ask("tokenize", content=text)["tokens"] for text in ("the query", *documents)]
    pairs = [[cls, *words[0], sep, *document] for document in words[1:]]
    single = [item[0] for item in ranker.ask("embed", input=pairs)["embeddings"]]
    by_index = {result["index"]: result["relevance_score"] for result in reply["results"]}
    np.testing.assert_allclose([by_index[i] for i in range(3)], single, rtol=1e-3, atol=1e-4)


def test_a_query_may_have_the_words_of_the_rerank_template(module_folder: Path) -> None:
    with encoder(module_folder, "qwen3-reranker") as daemon:
        for query, document in (("a {document}", "cat"), ("cat", "a {query} {document}")):
            prompt = RERANK_PROMPT.format(query=query, document=document)
            n_tokens = len(daemon.ask("tokenize", content=prompt)["tokens"])
            reply = daemon.ask("rerank", query=query, documents=[document])
            assert reply["usage"] == {"prompt_tokens": n_tokens}, query


def test_a_large_request_gives_what_small_ones_give(bert: DaemonProcess) -> None:
    texts = [f"the shell is {i} of the tree and {'a dog ' * (i % 9)}" for i in range(600)]
    whole = bert.ask("embed", input=texts, encoding="base64")["embeddings"]
    assert len(json.dumps(texts)) > 16_384  # large enough to be read by another process
    for i in (0, 1, 299, 599):
        np.testing.assert_allclose(
            vector(whole[i]), bert.ask("embed", input=texts[i])["embeddings"][0], rtol=1e-3, atol=1e-4
        )


def test_a_model_that_chats_embeds_too_and_its_stream_goes_on(tiny: DaemonProcess) -> None:
    alone = text_of(tiny.generate("The shell is", max_tokens=40))
    stream = tiny.stream("The shell is", max_tokens=40)
    reply = tiny.ask("embed", input=[f"a text of some words, number {i}" for i in range(40)])
    assert np.array(reply["embeddings"]).shape == (40, tiny.ask("props")["n_embd_out"])
    stream.join()
    assert text_of(stream.events) == alone
    assert tiny.ask("embed", input="x", pooling="rank")["name"] == "unsupported"


def test_a_cancelled_batch_ends_with_one_error(tiny: DaemonProcess) -> None:
    with tiny.connect() as wire:
        wire.send(type="embed", id="e", input=["a long text, " * 60] * 400)
        eventually(
            lambda: [row for row in tiny.ask("sessions")["sessions"] if row["request_id"] == "e"], "it never began"
        )
        wire.send(type="cancel", id="e")
        events = [wire.event(), wire.event()]
        assert sorted(event["event"] for event in events) == ["error", "reply"]
        (error,) = [event for event in events if event["event"] == "error"]
        assert error["id"] == "e" and error["name"] == "cancelled"
    tiny.eventually_idle()


def test_a_time_out_and_a_drain_end_it_with_an_error(tiny: DaemonProcess) -> None:
    texts = ["a long text, " * 60] * 400
    assert tiny.ask("embed", input=texts, timeout_ms=100)["name"] == "timed_out"
    with tiny.connect() as wire:
        wire.send(type="embed", id="e", input=texts)
        eventually(lambda: tiny.ask("sessions")["sessions"], "it never began")
        tiny.ask("drain", timeout_ms=1)
        error = wire.event()
        assert error["name"] == "draining" and "retry_after_ms" not in error["message"]
    tiny.ask("undrain")
    tiny.reach("ready")


def test_a_client_that_hangs_up_leaves_nothing(tiny: DaemonProcess) -> None:
    with tiny.connect() as wire:
        wire.send(type="embed", id="e", input=["a long text, " * 60] * 400)
        eventually(lambda: tiny.ask("sessions")["sessions"], "it never began")
    tiny.eventually_idle()


@pytest.mark.parametrize(
    ("fields", "name", "field"),
    [
        ({}, "bad_request", "input"),
        ({"input": ""}, "bad_request", "input"),
        ({"input": []}, "bad_request", "input"),
        ({"input": ["a", ""]}, "bad_request", "input[1]"),
        ({"input": [[1, 2], []]}, "bad_request", "input[1]"),
        ({"input": ["a", 5]}, "bad_request", "input[1]"),
        ({"input": [1, "a"]}, "bad_request", "input"),
        ({"input": [1 << 40]}, "bad_request", "input"),
        ({"input": [[1 << 30]]}, "bad_request", "input"),
        ({"input": [-1]}, "bad_request", "input"),
        ({"input": {"a": 1}}, "bad_request", "input"),
        ({"input": ["a"] * 4097}, "bad_request", "input"),
        ({"input": "a", "dimensions": 0}, "bad_request", "dimensions"),
        ({"input": "a", "dimensions": 1 << 19}, "bad_request", "dimensions"),
        ({"input": "a", "dimensions": 1.5}, "bad_request", "dimensions"),
        ({"input": "a", "pooling": "max"}, "bad_request", "pooling"),
        ({"input": "a", "encoding": "hex"}, "bad_request", "encoding"),
        ({"input": "a", "normalize": 1}, "bad_request", "normalize"),
        ({"input": "the " * 200}, "prompt_too_large", None),
        ({"input": "a", "max_tokens": 5}, "bad_request", "max_tokens"),
        ({"input": "a", "timeout_ms": -1}, "bad_request", "timeout_ms"),
        ({"input": "a", "model": "another"}, "model_changed", None),
    ],
)
def test_bad_input_is_told_by_a_code(bert: DaemonProcess, fields: Event, name: str, field: str | None) -> None:
    refused = bert.ask("embed", **fields)
    assert (refused["event"], refused["name"]) == ("error", name), refused
    if field is not None:
        assert refused["detail"]["field"] == field
    assert bert.ask("embed", input="the shell")["event"] == "reply"


def test_the_log_names_the_operation_that_was_refused(bert: DaemonProcess) -> None:
    assert bert.ask("rerank", query="a", documents=["b"])["name"] == "unsupported"
    bert.logs("rerank refused: E_MODEL_006 unsupported")


@pytest.mark.parametrize(
    "fields",
    [
        {"query": "", "documents": ["a"]},
        {"query": "a"},
        {"query": "a", "documents": []},
        {"query": "a", "documents": [1]},
        {"documents": ["a"]},
    ],
)
def test_bad_reranking_is_told_by_a_code(ranker: DaemonProcess, fields: Event) -> None:
    assert ranker.ask("rerank", **fields)["name"] == "bad_request"


def test_too_long_a_text_is_cut_where_asked(bert: DaemonProcess) -> None:
    reply = bert.ask("embed", input=["the " * 200], truncate=True)
    assert reply["usage"] == {"prompt_tokens": 96}


VALUES: dict[str, list[Any]] = {
    "input": ["", "the", "the " * 500, [], [""], ["the", "cat"], ["x"] * 5000, [1, 2, 3], [[1], [2, 3]], [[]], [-1],
    [1 << 31], [[1 << 30]], [1.5],
              [None], {}, 7, True, None, [["the"]], ["a\u0000"], "\U0001f600" * 50, [[5] * 96], [[5] * 97]],
    "pooling": ["none", "mean", "cls", "last", "rank", "max", 5, None],
    "normalize": [True, False, 0, "yes", None],
    "dimensions": [1, 64, 65, 0, -1, 1 << 40, 1.5, "8", None],
    "encoding": ["float", "base64", "hex", 1, None],
    "truncate": [True, False, 1, None],
    "query": ["", "the", "the " * 500, 5, None],
    "documents": [[], ["the"], ["the"] * 300, "tree", [5], [""], None],
    "top_n": [1, 1000, 0, -1, "1", None],
    "priority": ["interactive", "background", "now", None],
    "timeout_ms": [0, 10_000, -1, 1e12, None],
    "surplus": [1],
}  # fmt: skip


def test_random_requests_get_a_reply_or_a_code_that_blames_the_client(
    bert: DaemonProcess, ranker: DaemonProcess
) -> None:
    draw = random.Random(4)
    for daemon in (bert, ranker):
        with daemon.connect() as wire:
            for i in range(300):
                op = draw.choice(["embed", "rerank"])
                needed = ["input"] if op == "embed" else ["query", "documents"]
                names = {*needed, *draw.sample(sorted(VALUES), draw.randint(0, 3))} - set(
                    draw.sample(needed, draw.random() < 0.05)
                )
                wire.send(type=op, id=i, **{name: draw.choice(VALUES[name]) for name in names})
                event = wire.event()
                assert event["event"] in ("reply", "error")
                if event["event"] == "error":
                    assert event["name"] in ("bad_request", "prompt_too_large", "unsupported", "bad_utf8"), event
        assert daemon.ask("embed", input="the shell")["event"] == "reply"
        daemon.eventually_idle()


def test_a_reload_goes_from_an_encoder_to_a_model_that_chats_and_back(module_folder: Path) -> None:
    path = write(ENCODERS["bert-mean"], module_folder / "mean.gguf")
    with running(module_folder, "--model", path, *SMALL, path=str(module_folder / "v.sock")) as daemon:
        (before,) = daemon.ask("embed", input="the shell")["embeddings"]
        assert daemon.ask("reload", model=str(TINY))["event"] == "reply"
        assert text_of(daemon.reach("ready").generate("The shell is", max_tokens=4))
        assert len(daemon.ask("embed", input="the shell")["embeddings"][0]) != len(before)
        assert daemon.ask("reload", model=path)["event"] == "reply"
        np.testing.assert_allclose(
            daemon.reach("ready").ask("embed", input="the shell")["embeddings"][0], before, rtol=1e-4, atol=1e-5
        )
