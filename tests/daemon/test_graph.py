"""The daemon on the graph engine: concurrent streams, cancelling, a prompt that is already cached, drain, and
refusal.
"""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from perf.criteria import clean_rows
from perf.results import Cell, Results
from perf.servers import Settings, UmaServer
from tests.daemon.support import DRAFT, MOE, eventually, text_of
from tests.engine.graph.models import Model, write

GRAPH = ("--engine", "graph")
LONG = "The shell is a program that reads commands and runs them. " * 12


def test_streams_together_say_what_each_says_alone(serve_model):
    daemon = serve_model(*GRAPH)
    assert daemon.status()["engine"]["engine"] == "graph"
    prompts = ["The shell is", "To install a package", "A process has"]
    alone = [text_of(daemon.generate(prompt, max_tokens=2)) for prompt in prompts]
    streams = [daemon.stream(prompt, max_tokens=2) for prompt in prompts]
    assert [(stream.end()["reason"], stream.text) for stream in streams] == [("length", text) for text in alone]


def test_a_known_prompt_is_not_read_again(serve_model):
    daemon = serve_model(*GRAPH)
    first = daemon.generate(LONG, max_tokens=3)
    again = daemon.generate(LONG, max_tokens=3)
    assert text_of(first) == text_of(again)
    assert first[-1]["usage"]["cached_tokens"] == 0
    assert again[-1]["usage"]["cached_tokens"] > 100


def test_cancelling_frees_the_sequence(serve_model):
    daemon = serve_model(*GRAPH)
    stream = daemon.stream(LONG, max_tokens=400).begun()
    stream.cancel()
    assert stream.end()["reason"] == "cancelled"
    assert daemon.generate("The shell is", max_tokens=3)[-1]["reason"] == "length"


def test_a_drain_lets_streams_finish(serve_model):
    daemon = serve_model(*GRAPH)
    stream = daemon.stream(LONG, max_tokens=30).begun()
    daemon.signal(signal.SIGTERM)
    assert stream.end()["reason"] == "length"
    assert daemon.wait() == 0


def test_experts_are_served(serve_model):
    daemon = serve_model(*GRAPH, model=MOE)
    assert daemon.generate("The shell is", max_tokens=8)[-1]["reason"] == "length"


def test_what_it_lacks_ends_the_start_with_a_reason(serve_model, tmp_path):
    model = write(Model("phi2"), tmp_path / "phi2.gguf")
    with pytest.raises(
        AssertionError, match=r"ended with 1: (.|\n)*it does not support architecture phi2 (.|\n)*; use --engine llama"
    ):
        serve_model(*GRAPH, model=model)


def test_a_promise_of_the_same_bits_is_kept_or_ends_the_start(serve_model):
    with pytest.raises(AssertionError, match=r"ended with 1: (.|\n)*engine.deterministic"):
        serve_model("--engine", "llama", "--deterministic")
    daemon = serve_model("--deterministic") if is_promised(serve_model) else None
    assert daemon is None or daemon.status()["engine"]["deterministic"] is True


def is_promised(serve_model) -> bool:
    """Whether this processor's kernels promise it. The kernels for NEON leave single rows to ggml."""
    daemon = serve_model(*GRAPH)
    return daemon.status()["engine"]["deterministic"]


def test_repacked_weights_are_kept_for_the_next_start(serve_model, folder):
    """Two daemons write them at once without disturbing each other, and later daemons read them."""
    if serve_model(*GRAPH).status()["engine"]["weights_from"] != "repacked":
        pytest.skip("this processor's kernels repack nothing")
    kept = (*GRAPH, "--repack-cache")
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda i: serve_model(*kept, path=str(folder / f"{i}.sock")), range(2)))
    texts = {text_of(daemon.generate("The shell is", max_tokens=8)) for daemon in both}
    later = serve_model(*kept, path=str(folder / "later.sock"))
    assert later.status()["engine"]["weights_from"] == "repack cache"
    later.logs("read repacked weights")
    assert texts == {text_of(later.generate("The shell is", max_tokens=8))}


def test_pages_that_are_short_show_in_the_metric_and_fail_the_bench(serve_model, folder):
    """The graph engine logs nothing when pages run short, so the metric counts its refusals."""
    daemon = serve_model(*GRAPH, has_levers=True)
    server = UmaServer("uma", Settings(DRAFT, threads=1, n_seq=4, n_ctx_seq=512), folder)
    server.socket_path = daemon.path
    text = text_of(daemon.generate("A process has", max_tokens=200))
    assert server.n_allocator_warnings() == 0
    stream = daemon.stream("A process has", max_tokens=200).begun()
    daemon.pull(has_no_pages=True)
    eventually(server.n_allocator_warnings)
    daemon.pull(has_no_pages=False)
    assert stream.end()["reason"] == "length" and stream.text == text  # the stream waited, and lost no token
    results = Results(
        {}, "", "", {}, cells={"any": {"uma": Cell()}}, allocator_warnings={"uma": server.n_allocator_warnings()}
    )
    assert [is_met for _, is_met in clean_rows(results)] == [True, False]
