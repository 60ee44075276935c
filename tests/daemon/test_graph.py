"""The daemon on the graph engine: streams at once, cancelling, a prompt that is known already, drain, refusal."""

from __future__ import annotations

import signal

import pytest

from tests.daemon.support import MOE, text_of

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


def test_what_it_lacks_ends_the_start_with_a_reason(serve_model):
    with pytest.raises(AssertionError, match=r"ended with 1: (.|\n)*it lacks KV type q4_0; use --engine llama"):
        serve_model(*GRAPH, "--kv-type", "q4_0")
