"""Sentences about a run, computed from its numbers. A sentence whose numbers are missing is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from perf.criteria import GUARD_OFF, best_peer
from perf.peers import OURS, PEER
from perf.report import number
from perf.results import Results
from perf.stats import spread

Sentence = Callable[[Results], str]


class _Missing(Exception):
    """A number that a sentence needs was not measured."""


def sentences(results: Results) -> list[str]:
    """Return all sentences that this run supports, in the order of the scenarios."""
    return list(_said(results))


def _said(results: Results) -> Iterator[str]:
    for sentence in _SENTENCES:
        try:
            yield sentence(results)
        except _Missing:
            continue


def _value(results: Results, scenario: str, label: str, figure: str) -> float:
    row = results.cells.get(scenario, {})
    value = row[label].spread(figure).median if label in row else math.nan
    if math.isnan(value):
        raise _Missing
    return value


def _ratio(results: Results, scenario: str, figure: str, peer: str = PEER, ours: str = OURS) -> float:
    value = spread(results.ratios(scenario, figure, ours, peer)).median
    if math.isnan(value):
        raise _Missing
    return value


def _solo(r: Results) -> str:
    return (
        f"A step of a stream alone takes {number(_value(r, 'solo', OURS, 'itl_p50_ms'))} ms with UMA Serve and "
        f"{number(_value(r, 'solo', PEER, 'itl_p50_ms'))} ms with llama-server "
        f"({number(_ratio(r, 'solo', 'itl_p50_ms'))}x). "
        f"The first token comes after {number(_value(r, 'solo', OURS, 'ttft_ms'))} ms instead of "
        f"{number(_value(r, 'solo', PEER, 'ttft_ms'))}."
    )


def _loaded(name: str, when: str, whose: str) -> Sentence:
    """Make the sentences about chats in a loaded scenario; of several chats, the one that fared worst."""

    def sentence(r: Results) -> str:
        best = best_peer(r, name, "makespan_ms")
        return (
            f"{when}, {whose} longest pause is {number(_value(r, name, OURS, 'pause_ms'))} ms "
            f"({number(_value(r, name, OURS, 'pause_x'))}x its step alone) with UMA Serve and "
            f"{number(_value(r, name, PEER, 'pause_ms'))} ms "
            f"({number(_value(r, name, PEER, 'pause_x'))}x) with llama-server. Its inter-token p95 is "
            f"{number(_value(r, name, OURS, 'p95_x'))}x that of the chat alone. All the work takes "
            f"{number(_ratio(r, name, 'makespan_ms', best))}x the time of {best}."
        )

    return sentence


def _paste(r: Results) -> str:
    return (
        "A chat that arrives during a big paste gets its first token after "
        f"{number(_value(r, 'paste', OURS, 'ttft_ms'))} ms "
        f"({number(_value(r, 'paste', OURS, 'ttft_x'))}x its time alone) with UMA Serve and after "
        f"{number(_value(r, 'paste', PEER, 'ttft_ms'))} ms with llama-server. The paste's own first token takes "
        f"{number(_ratio(r, 'paste', 'paste_ttft_ms'))}x llama-server's time."
    )


def _chain(r: Results) -> str:
    return (
        "An agent's chain of requests beside three background streams takes "
        f"{number(_value(r, 'chain', OURS, 'slowdown_x'))}x its time alone with UMA Serve and "
        f"{number(_value(r, 'chain', PEER, 'slowdown_x'))}x with llama-server. All the work takes "
        f"{number(_ratio(r, 'chain', 'makespan_ms'))}x llama-server's time."
    )


def _throughput(r: Results) -> str:
    return (
        f"Four streams together get {number(_value(r, 'throughput', OURS, 'tok_s'))} tokens/s with UMA Serve and "
        f"{number(_value(r, 'throughput', PEER, 'tok_s'))} with llama-server "
        f"({number(_ratio(r, 'throughput', 'tok_s'))}x)."
    )


def _guard_cost(r: Results) -> str:
    return (
        "Without the latency guard the same four streams get "
        f"{number(_ratio(r, 'throughput', 'tok_s', OURS, GUARD_OFF))}x the tokens/s that they get with it."
    )


def _crowd(r: Results) -> str:
    return (
        f"Of 24 clients over 4 sequences, {_value(r, 'crowd', OURS, 'done_n'):.0f} are served. Half of them get their "
        f"first token within {number(_value(r, 'crowd', OURS, 'ttft_p50_ms') / 1000)} s with UMA Serve and within "
        f"{number(_value(r, 'crowd', PEER, 'ttft_p50_ms') / 1000)} s with llama-server. All the work takes "
        f"{number(_ratio(r, 'crowd', 'makespan_ms'))}x llama-server's time."
    )


def _context(name: str, size: str) -> Sentence:
    def sentence(r: Results) -> str:
        return (
            f"Beside a document of {size} tokens, chats of 2k tokens have an inter-token p95 of "
            f"{number(_value(r, name, OURS, 'chats_p95_x'))}x that of a chat alone with UMA Serve and "
            f"{number(_value(r, name, PEER, 'chats_p95_x'))}x with llama-server. Prompts and answers together get "
            f"{number(_ratio(r, name, 'total_tok_s'))}x llama-server's tokens/s."
        )

    return sentence


def _moe(r: Results) -> str:
    return (
        "With a mixture of experts, up to seven background streams raise an interactive stream's p95 to "
        f"{number(_value(r, 'moe-sweep', OURS, 'p95_x'))}x that of the stream alone with UMA Serve and "
        f"{number(_value(r, 'moe-sweep', PEER, 'p95_x'))}x with llama-server. Eight streams together get "
        f"{number(_ratio(r, 'moe-sweep', 'x8_tok_s'))}x llama-server's tokens/s."
    )


def _ipc(r: Results) -> str:
    return (
        "With a model that costs nothing, a request's first token takes "
        f"{number(_value(r, 'ipc', OURS, 'ttft_p50_ms'))} ms over frames "
        f"and {number(_value(r, 'ipc', PEER, 'ttft_p50_ms'))} ms over llama-server's HTTP; a token costs the server "
        f"{number(_value(r, 'ipc', OURS, 'server_cpu_ms_per_token'))} against "
        f"{number(_value(r, 'ipc', PEER, 'server_cpu_ms_per_token'))} ms of CPU."
    )


_SENTENCES: tuple[Sentence, ...] = (
    _solo,
    _loaded("storm", "When a storm of long prompts arrives beside a chat", "the chat's"),
    _loaded("two-chats", "When the same storm arrives beside two chats", "the worse chat's"),
    _loaded("mixed", "With three chats and a long document", "the worst chat's"),
    _paste,
    _chain,
    _throughput,
    _guard_cost,
    _crowd,
    _context("context-8k", "8k"),
    _context("context-16k", "16k"),
    _context("context-32k", "32k"),
    _moe,
    _ipc,
)
