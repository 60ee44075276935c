"""The engines' vectors and scores are those of llama.cpp's own embedding calls on the same file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.encoders import ENCODERS, Encoder, write
from tests.engine.graph import models as graph_models
from tests.engine.headers import is_encoder
from tests.trained import TINY
from uma_core.config.options import EngineOptions
from uma_core.engine.api import ROWS_OF, Batch, DecodeStatus, Engine, PrefillStatus, Rows
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.params import context_params
from uma_core.engine.select.open import estimate_engine, open_engine
from uma_core.errors import ErrorCode, UmaError
from uma_core.session.embedding import Pool

FOREVER = 2**62
POOLED = ("mean", "cls", "last")
SIZES = (1, 2, 7, 40, 90)  # tokens
CLOSE = {"rtol": 2e-4, "atol": 2e-4}
Open = Callable[..., Engine]
# EmbeddingGemma, whose files do not say that its attention is not causal
GEMMA = replace(
    graph_models.MODELS["gemma3-windows"], arch="gemma-embedding", n_layer=6, is_tied=True,
    meta={"attention.sliding_window": 24, "pooling_type": 1},
)  # fmt: skip
# LFM2-ColBERT, whose dense layer turns hidden states into vectors
LFM2 = graph_models.RECURRENT["lfm2"]
COLBERT = replace(
    LFM2,
    meta=LFM2.meta | {"embedding_length_out": 64},
    model_tensors=LFM2.model_tensors | {"dense_2.weight": (64, 128)},
)


class Reference:
    """llama.cpp alone: a model, and a context with embeddings for each kind of pooling."""

    def __init__(self, path: str) -> None:
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(path.encode(), params)

    def rows(self, tokens: np.ndarray, pooling: str) -> np.ndarray:
        n = len(tokens)
        number = getattr(lib, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
        sizes = {"n_ctx": 512, "n_batch": 512, "n_ubatch": 512, "n_outputs_max": 512}
        params = context_params(
            **sizes, n_seq_max=1, n_threads=1, n_threads_batch=1, embeddings=True, pooling_type=number
        )
        context = lib.llama_init_from_model(self.model, params)
        batch = lib.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
            batch.seq_id[i][0] = 0
        assert lib.llama_decode(context, batch) == 0
        n_out = int(
            lib.llama_model_n_cls_out(self.model) if pooling == "rank" else lib.llama_model_n_embd_out(self.model)
        )
        pointer, n_rows = (
            (lib.llama_get_embeddings(context), n)
            if pooling == "none"
            else (lib.llama_get_embeddings_seq(context, 0), 1)
        )
        found = np.frombuffer(ffi.buffer(pointer, 4 * n_rows * n_out), np.float32).reshape(n_rows, n_out).copy()
        lib.llama_batch_free(batch)
        lib.llama_free(context)
        return found

    def close(self) -> None:
        lib.llama_model_free(self.model)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("encoders")
    made = {name: write(model, folder / f"{name}.gguf") for name, model in ENCODERS.items()}
    for name in ("gemma2", "qwen3"):  # models with windows: prompts are read in sized chunks
        made[name] = graph_models.write(graph_models.MODELS[name], folder / f"{name}.gguf")
    embed = replace(graph_models.MODELS["llama"], arch="llama-embed")
    for name, model in (("gemma-embedding", GEMMA), ("colbert", COLBERT), ("llama-embed", embed)):
        made[name] = graph_models.write(model, folder / f"{name}.gguf")
    return {**made, "tiny": str(TINY)}


@pytest.fixture
def opened(paths: dict[str, str]) -> Iterator[Open]:
    small = EngineOptions(engine="llama", threads=1, n_ctx=2048, n_ubatch=64, n_batch=64, calibrate="off")
    with ExitStack() as stack:

        def start(name: str, **options: Any) -> Engine:
            return stack.enter_context(closing(open_engine(replace(small, model=paths[name], **options))))

        yield start


def inputs_of(engine: Engine, sizes: tuple[int, ...] = SIZES) -> list[np.ndarray]:
    draw = np.random.default_rng(3)
    return [draw.integers(5, min(engine.info.n_vocab, 100), n).astype(np.int32) for n in sizes]


def encode(
    engine: Engine, inputs: list[np.ndarray], pooling: str, until_ns: int = FOREVER
) -> tuple[list[np.ndarray], int]:
    """Return the results of one call, and the number of runs in which it was computed."""
    assert engine.encode_open(1, inputs, pooling)
    n_runs = 1
    while engine.prefill_run(1, until_ns, 1, 1).status is not PrefillStatus.DONE:
        n_runs += 1
    found = engine.encode_result(1)
    engine.prefill_close(1)
    return found, n_runs


def embed(engine: Engine, tokens: np.ndarray, pooling: str, size: int) -> np.ndarray:
    """Read in chunks of up to `size` tokens, with prefill slots if there are any."""
    pool, n_past, info = Pool(pooling), 0, engine.info.embedding
    assert info is not None
    size = min(size, info.n_rows) if ROWS_OF[pooling] is Rows.ALL else size
    while n_past < len(tokens):
        chunk = tokens[n_past : n_past + size]
        rows = pool.wants(n_past, len(tokens) - n_past - len(chunk))
        pool.add(len(chunk), _chunk(engine, chunk, n_past, rows))
        n_past += len(chunk)
    engine.prefill_close(2)
    engine.kv_truncate(2, 0)
    return pool.take()


def _chunk(engine: Engine, chunk: np.ndarray, n_past: int, rows: Rows) -> np.ndarray:
    if not engine.info.capabilities.n_prefill_slots:
        batch = Batch(engine.info.n_batch)
        batch.extend(chunk, n_past, 2, False)
        batch.want(rows)
        batch.want_hidden = rows is not Rows.NONE
        assert engine.decode(batch, []).status is DecodeStatus.OK
        return engine.hidden() if batch.want_hidden else np.zeros((0, 0), np.float32)
    assert engine.prefill_open(2, chunk, False, rows)
    while engine.prefill_run(2, 0, 1, 1).status is not PrefillStatus.DONE:
        pass
    found = engine.prefill_hidden(2)
    transfer = engine.publish_kv(2)
    while not transfer.step(FOREVER):
        pass
    transfer.close()
    return found


@pytest.mark.parametrize("name", [*ENCODERS, "gemma-embedding", "colbert", "llama-embed"])
def test_whole_inputs_give_what_llama_gives(name: str, paths: dict[str, str], opened: Open) -> None:
    if not is_encoder(paths[name]):
        return
    engine, reference = opened(name), Reference(paths[name])
    info = engine.info.embedding
    assert info is not None and info.is_whole and not engine.info.can_generate
    inputs = inputs_of(engine)
    for pooling in info.poolings:
        expected = [reference.rows(tokens, pooling) for tokens in inputs]
        paused, n_runs = encode(engine, inputs[:-1], pooling, until_ns=0)
        assert n_runs > 5, "the call must pause"
        whole, _ = encode(engine, inputs[-1:], pooling)
        for found, wanted in zip([*paused, *whole], expected, strict=True):
            np.testing.assert_allclose(found, wanted, **CLOSE)
    reference.close()


def test_models_without_a_memory_are_encoders_whatever_the_file_says(paths: dict[str, str], tmp_path: Path) -> None:
    """They cannot generate: llama.cpp would end the process at their first prompt."""
    assert is_encoder(paths["gemma-embedding"]) and is_encoder(paths["llama-embed"])
    causal = replace(GEMMA, arch="bert", meta={"attention.causal": True})
    assert is_encoder(graph_models.write(causal, tmp_path / "model.gguf"))


def test_the_dense_layer_of_a_model_for_vectors_counts(opened: Open) -> None:
    """The model has the layers of one that generates, and its hidden states are longer."""
    info = opened("colbert").info
    assert not info.can_generate and info.embedding is not None and info.embedding.n_embd == 64


def test_the_pooling_is_the_files_own(opened: Open) -> None:
    found = {
        name: opened(name).info.embedding
        for name in ("bert", "bert-mean", "bert-silent", "bert-rank", "qwen3-embedding", "tiny")
    }
    assert {name: info.pooling for name, info in found.items() if info is not None} == {
        "bert": "cls", "bert-mean": "mean", "bert-silent": "mean", "bert-rank": "rank", "qwen3-embedding": "last",
        "tiny": "last",
    }  # fmt: skip
    assert found["bert"] is not None and "rank" not in found["bert"].poolings


@pytest.mark.parametrize(
    ("name", "options", "n_prefill_slots"),
    [
        ("qwen3-embedding", {}, 2),
        ("qwen3-embedding", {"kv_mode": "unified"}, 0),
        ("qwen3-embedding", {"engine": "graph"}, 2),
        ("qwen3-embedding", {"engine": "graph", "kv_mode": "unified"}, 0),
        ("gemma2", {}, 0),
        ("gemma2", {"engine": "graph"}, 2),
        ("qwen3", {"engine": "graph"}, 2),
        ("tiny", {}, 2),
        ("tiny", {"engine": "graph"}, 2),
    ],
)
def test_decoders_give_what_llama_gives_in_chunks_of_any_size(
    name: str, options: dict[str, Any], n_prefill_slots: int, paths: dict[str, str], opened: Open
) -> None:
    engine, reference = opened(name, **options), Reference(paths[name])
    assert engine.info.capabilities.n_prefill_slots == n_prefill_slots
    for tokens in inputs_of(engine, (1, 2, 70, 150)):
        for pooling in (*POOLED, "none"):
            expected = reference.rows(tokens, pooling)
            tolerance = {"rtol": 0, "atol": 0.03 * float(np.abs(expected).max())}  # KV in 16 bits, quantised weights
            for size in (64, 7):
                np.testing.assert_allclose(embed(engine, tokens, pooling, size), expected, **tolerance)
    reference.close()


@pytest.mark.parametrize("engine_name", ["llama", "graph"])
def test_a_prompt_after_an_input_gives_the_tokens_that_it_gives_before(engine_name: str, opened: Open) -> None:
    """Chats and embeddings share prefill slots and graphs."""
    engine = opened("tiny", engine=engine_name)
    prompt = np.array(engine.tokenize("The shell is a program that", True, True), np.int32)

    def next_token() -> int:
        assert engine.prefill_open(0, prompt, True)
        engine.prefill_run(0, FOREVER, 1, 0)
        token = engine.prefill_sample(0, None)
        engine.prefill_close(0)
        return token

    before = next_token()
    for pooling in (*POOLED, "none"):
        embed(engine, prompt, pooling, 64)
        assert next_token() == before


def test_a_call_that_is_given_up_leaves_room_for_the_next(opened: Open) -> None:
    engine = opened("bert")
    inputs = inputs_of(engine)[:4]
    expected, _ = encode(engine, inputs[:2], "cls")
    assert engine.encode_open(0, inputs, "cls")
    engine.prefill_run(0, 0, 1, 3)
    assert not engine.encode_open(1, inputs[:2], "cls"), "one call at a time"
    engine.prefill_close(0)
    found, _ = encode(engine, inputs[:2], "cls")
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_an_encoder_takes_is_known_beforehand(paths: dict[str, str], opened: Open) -> None:
    engine = opened("nomic-bert")
    need = estimate_engine(EngineOptions(model=paths["nomic-bert"], threads=1, n_ubatch=64, n_batch=64))
    found = engine.memory()
    assert need.weights == found.weights and need.kv == found.kv == 0
    assert abs(need.compute - found.compute) <= 0.1 * found.compute


def test_an_input_may_be_as_long_as_the_option_says(opened: Open) -> None:
    short, long = opened("nomic-bert", encoder_ctx=20), opened("nomic-bert", encoder_ctx=5000)
    assert short.info.embedding is not None and short.info.embedding.n_input == 20
    assert long.info.embedding is not None and long.info.embedding.n_input == 96, "no more than it was trained with"
    encode(short, inputs_of(short, (20,)), "mean")
    encode(long, inputs_of(long, (96,)), "mean")


@pytest.mark.parametrize("n_ctx", [1, 3])
def test_a_model_may_have_few_positions(n_ctx: int, tmp_path: Path) -> None:
    """The first call, before any request, ended the process."""
    path = write(replace(ENCODERS["bert"], n_ctx=n_ctx), tmp_path / "model.gguf")
    engine = open_engine(EngineOptions(model=path, engine="llama", threads=1, n_ubatch=64, n_batch=64))
    (found,), _ = encode(engine, [np.full(n_ctx, 5, np.int32)], "mean")
    assert found.shape == (1, 64)
    engine.close()


def test_a_context_of_more_than_31_bits_is_refused(tmp_path: Path) -> None:
    """It was taken for a negative one: each input was too long."""
    path = write(replace(ENCODERS["nomic-bert"], n_ctx=1 << 31), tmp_path / "model.gguf")
    with pytest.raises(UmaError, match="context_length") as refused:
        open_engine(EngineOptions(model=path, engine="llama", threads=1, n_ubatch=64, n_batch=64))
    assert refused.value.error is ErrorCode.MODEL_LOAD_FAILED


def test_an_encoder_refuses_what_it_cannot_do(opened: Open) -> None:
    engine = opened("bert")
    batch = Batch(1)
    batch.add(5, 0, 0, True)
    assert engine.decode(batch, [None]).status is DecodeStatus.BAD_BATCH
    for call in (lambda: engine.prefill_open(0, np.array([5], np.int32), True), lambda: engine.draw(0, None)):
        with pytest.raises(UmaError) as refused:
            call()
        assert refused.value.error is ErrorCode.UNSUPPORTED
    with pytest.raises(UmaError) as refused:
        engine.encode_open(0, [np.array([5], np.int32)], "rank")
    assert refused.value.error is ErrorCode.BAD_BATCH


def test_random_weights_tell_inputs_apart(tmp_path: Path) -> None:
    """Otherwise no comparison here would show a mistake."""
    path = write(Encoder("bert", 1), tmp_path / "m.gguf", seed=9)
    reference = Reference(path)
    one, other = (reference.rows(np.array(tokens, np.int32), "mean") for tokens in ([7, 8, 9], [7, 9, 8]))
    assert np.abs(one - other).max() > 0.05
    reference.close()
