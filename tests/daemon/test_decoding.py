"""Options that shape an answer, through the socket and on a real model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.daemon.support import DaemonProcess, Event, Wire, text_of

PROMPT = "The shell reads commands and"
Serve = Callable[..., DaemonProcess]


def ask(wire: Wire, **fields: Any) -> list[Event]:
    wire.send(id="r", prompt=PROMPT, **fields)
    return wire.until_final("r")


def test_answers_of_one_request(serve_model: Serve) -> None:
    with serve_model().connect() as wire:
        alone = [text_of(ask(wire, max_tokens=12, temperature=0.8, seed=5 + i)) for i in range(3)]
        events = ask(wire, max_tokens=12, temperature=0.8, seed=5, n=3)
        said = ["".join(e["text"] for e in events if e.get("index") == i and e["event"] == "token") for i in range(3)]
        assert said == alone and len(set(said)) > 1
        assert sorted(e["index"] for e in events if e["event"] == "end") == [0, 1, 2]
        assert [e["event"] for e in events].count("eos") == 1 and events[-1]["event"] == "eos"
        assert events[-1]["usage"]["completion_tokens"] == sum(
            e["usage"]["completion_tokens"] for e in events if e["event"] == "end"
        )
        (eos,) = ask(wire, max_tokens=12, temperature=0.8, seed=5, n=3, stream=False)
        assert [answer["text"] for answer in eos["answers"]] == alone


def test_one_of_them_is_cancelled_by_its_index(serve_model: Serve) -> None:
    with serve_model().connect() as wire:
        wire.send(id="r", prompt=PROMPT, n=2, max_tokens=400, ignore_eos=True)
        wire.first_token("r")
        wire.send(type="cancel", id="r", index=1)
        events: list[Event] = []
        while not any(e["event"] == "end" and e["index"] == 1 for e in events):
            events.append(wire.event())
        wire.send(type="cancel", id="r")
        events += wire.until_final("r")
    ends = {e["index"]: e["reason"] for e in events if e["event"] == "end"}
    assert ends == {0: "cancelled", 1: "cancelled"}
    n = [sum(e.get("index") == i and e["event"] == "token" for e in events) for i in range(2)]
    assert n[0] > n[1], "the other one went on"


def test_tokens_are_told_with_their_probabilities(serve_model: Serve) -> None:
    with serve_model().connect() as wire:
        events = ask(wire, max_tokens=10, logprobs=3)
        ones = [one for e in events for one in e.get("logprobs", ())]
        assert bytes(b for one in ones for b in one["bytes"]).decode() == text_of(events)
        assert len(ones) == 10 and all(one["top"][0]["id"] == one["id"] for one in ones)
        assert all(0 < sum(math.exp(other["logprob"]) for other in one["top"]) <= 1.0001 for one in ones)
        (eos,) = ask(wire, max_tokens=10, logprobs=20, temperature=1, top_k=4, post_sampling_probs=True, stream=False)
        for one in eos["logprobs"]:
            assert len(one["top"]) == 4 and math.isclose(
                sum(math.exp(o["logprob"]) for o in one["top"]), 1, abs_tol=1e-4
            )


def test_the_end_tells_what_it_was(serve_model: Serve) -> None:
    with serve_model().connect() as wire:
        text = text_of(ask(wire, max_tokens=30))
        stop = text[10:14]
        events = ask(wire, max_tokens=30, stop=["\x01", stop])
        assert text_of(events) == text[: text.index(stop)] and events[-1]["stop"] == {"text": stop}
        (token,) = wire.ask("tokenize", content=text)["tokens"][5:6]
        events = ask(wire, max_tokens=30, stop_token_ids=[token])
        assert events[-1]["stop"] == {"token_id": token} and text.startswith(text_of(events))


def test_prompts_in_parts_and_their_echo(serve_model: Serve) -> None:
    with serve_model().connect() as wire:
        plain = text_of(ask(wire, max_tokens=8))
        ids = wire.ask("tokenize", content=PROMPT, add_special=True)["tokens"]
        rest = wire.ask("detokenize", tokens=ids[4:])["content"]
        wire.send(id="p", prompt=[*ids[:4], rest], max_tokens=8, echo=True, n=2, stream=False)
        (eos,) = wire.until_final("p")
        assert {answer["text"] for answer in eos["answers"]} == {PROMPT + plain}
        wire.send(id="s", prompt=PROMPT, suffix="z")
        (error,) = wire.until_final("s")
        assert error["name"] == "unsupported"


@pytest.mark.parametrize("engine", ["llama", "graph"])
def test_banned_strings_are_taken_back_with_their_kv(serve_model: Serve, engine: str) -> None:
    daemon = serve_model("--engine", engine)
    with daemon.connect() as wire:
        free = text_of(ask(wire, max_tokens=60))
        words = [word for word in free.split() if len(word) > 3]
        banned = [words[3], words[5][1:], free[0:2], " " + words[1]]
        events = ask(wire, max_tokens=60, banned_strings=banned, logprobs=0)
        text, ones = text_of(events), [one for e in events for one in e.get("logprobs", ())]
        assert not any(b in text for b in banned) and len(ones) == 60
        assert bytes(b for one in ones for b in one["bytes"]).decode() == text
        ids = wire.ask("tokenize", content=PROMPT, add_special=True)["tokens"]
        for at in range(0, 60, 7):  # when the text is read again, the kept tokens have the same probabilities
            wire.send(id="p", tokens=[*ids, *(one["id"] for one in ones[:at])], max_tokens=1, logprobs=20)
            (best,) = (e["logprobs"][0] for e in wire.until_final("p") if e.get("logprobs"))
            found = {o["id"]: o["logprob"] for o in best["top"]}
            assert math.isclose(found[ones[at]["id"]], ones[at]["logprob"], abs_tol=0.02)
        assert text_of(ask(wire, max_tokens=60)) == free, "what was taken back has left no trace in the cache"
        assert daemon.ask("metrics")["metrics"]["taken_back_tokens_total"] > 0
        alone = [
            text_of(ask(wire, max_tokens=40, temperature=0.8, seed=5 + i, banned_strings=banned)) for i in range(2)
        ]
        (eos,) = ask(wire, max_tokens=40, temperature=0.8, seed=5, n=2, banned_strings=banned, stream=False)
        assert [answer["text"] for answer in eos["answers"]] == alone


@pytest.mark.parametrize("engine", ["llama", "graph"])
def test_log_probabilities_of_a_prompt(serve_model: Serve, engine: str) -> None:
    """Compare them with those of answers: each token of the prompt is generated as the next token after the ones before
    it.
    """
    daemon = serve_model("--engine", engine)
    long = "The scheduler of the kernel decides which process runs next, and for how long it may do so. " * 3
    with daemon.connect() as wire:
        ids = wire.ask("tokenize", content=long, add_special=True)["tokens"]
        wire.send(id="a", prompt=long, max_tokens=0, stream=False, prompt_logprobs=20)
        events = wire.until_final("a")
        ones = [one for e in events if e["event"] == "prompt" for one in e["logprobs"]]
        assert [one["id"] for one in ones] == ids and ones[0]["logprob"] is None
        assert bytes(b for one in ones for b in one["bytes"]).decode().endswith(long)
        assert events[-1]["usage"]["completion_tokens"] == 0 and events[-1]["reason"] == "length"
        for at in range(1, len(ids), 9):
            wire.send(id="b", tokens=ids[:at], max_tokens=1, logprobs=20)
            (row,) = (e["logprobs"][0] for e in wire.until_final("b") if e.get("logprobs"))
            found = {o["id"]: o["logprob"] for o in row["top"]}
            for other in ones[at]["top"]:
                assert math.isclose(found.get(other["id"], other["logprob"]), other["logprob"], abs_tol=0.05)
            assert math.isclose(found.get(ids[at], ones[at]["logprob"]), ones[at]["logprob"], abs_tol=0.05)
        chat = daemon.stream("The shell is", max_tokens=2000, ignore_eos=True).begun()
        wire.send(id="c", prompt=long, max_tokens=2, prompt_logprobs=0)
        beside = [one for e in wire.until_final("c") if e["event"] == "prompt" for one in e["logprobs"]]
        chat.cancel()
        for one, other in zip(ones[1:], beside[1:], strict=True):
            assert one["id"] == other["id"] and math.isclose(one["logprob"], other["logprob"], abs_tol=0.05)
