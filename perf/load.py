"""The requests of clients and their times: values, and the text of unique prompts. No clock, no sockets."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, replace
from typing import Any

_ALPHABET = string.ascii_letters + string.digits + "     ,."


def _burdens() -> dict[str, dict[str, Any]]:
    """Return large requests, by name. A request that is too long for the context is refused only after it was read."""
    rng = random.Random(1)
    roles = ("user", "assistant")
    return {
        "messages": {"messages": [{"role": roles[i % 2], "content": f"message {i}"} for i in range(8_001)]},
        "text": {"prompt": "".join(rng.choices(string.ascii_letters + string.digits, k=256_000))},
        "tokens": {"tokens": [rng.randrange(100, 200) for _ in range(60_000)]},
        "filler": {"prompt": "Hello", "max_tokens": 1, "x_filler": [["word", i, {"a": i}] for i in range(30_000)]},
        "reload": {"type": "reload"},
        "status": {"type": "status"},
        "metrics": {"type": "metrics"},
    }


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    It starts at `at_ms`, counted from the phase's start or from when every name in `after` passed `gate`.
    """

    name: str
    n_prompt: int  # tokens; the models' tokenizer makes one token of each byte
    n_tokens: int  # to generate
    at_ms: float = 0.0
    after: tuple[str, ...] = ()
    gate: str = "done"  # "first" (token) or "done"
    is_interactive: bool = True  # a reader waits for its tokens; a column of the CSV
    priority: str | None = None  # sent with the request; None: the server infers it
    app: str = ""  # asks of one app share a connection if the protocol allows it; "": its own connection
    # (name, tokens): texts of the prompt; equal names have equal texts, which servers may find in their caches
    parts: tuple[tuple[str, int], ...] = ()
    burden: str = ""  # a name of BURDENS, sent instead of a prompt; done when it is answered, even by a refusal
    has_schema: bool = False  # a JSON Schema that does not let the answer end before its last token


@dataclass(frozen=True, slots=True)
class Phase:
    """Asks that run together on an otherwise idle server."""

    name: str
    asks: tuple[Ask, ...]
    timeout_s: float = 600.0
    lasts_s: float = 0.0  # least duration, even if all requests end sooner
    is_restarted: bool = False  # the server is restarted before the phase

    def __post_init__(self) -> None:
        names = [ask.name for ask in self.asks]
        if len(set(names)) != len(names):
            raise ValueError(f"phase {self.name}: two asks share a name")
        unknown = {needed for ask in self.asks for needed in ask.after} - set(names)
        if unknown:
            raise ValueError(f"phase {self.name}: waits for unknown asks: {', '.join(sorted(unknown))}")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a scenario requires of a server."""

    n_seq: int = 4
    n_ctx_seq: int = 4096  # cells of each sequence
    shape: str = ""  # "": the run's model
    has_disk: bool = False  # a cache directory, if the server supports one


@dataclass(frozen=True, slots=True)
class Sizing:
    """How a run scales a scenario: lengths, not times. `scale` is 4 on a large GPU, else 1."""

    scale: int = 1
    is_quick: bool = False
    seed: int = 1


def scaled(asks: tuple[Ask, ...], scale: int) -> tuple[Ask, ...]:
    """Return the same arrivals with all lengths multiplied; answers of one token stay (they only mark the end of a
    prompt).
    """
    if scale == 1:
        return asks
    return tuple(
        replace(
            a,
            n_prompt=a.n_prompt * scale,
            n_tokens=a.n_tokens * scale if a.n_tokens > 1 else 1,
            parts=tuple((name, n * scale) for name, n in a.parts),
        )
        for a in asks
    )


def composed(
    name: str, parts: tuple[tuple[str, int], ...], n_tokens: int, after: tuple[str, ...] = (), gate: str = "done"
) -> Ask:
    """Make an ask whose prompt consists of named parts, so that others can begin with the same text."""
    return Ask(name, sum(n for _, n in parts), n_tokens, after=after, gate=gate, parts=parts)


def text_of(seed: str, ask: Ask, phase: str = "") -> str:
    """Return the ask's prompt: unique in its phase, or made of the parts that it shares with others of the same
    seed.
    """
    if not ask.parts:
        return prompt(f"{seed}/{phase}/{ask.name}", ask.n_prompt)
    return "".join(prompt(f"{seed}/part/{name}", n) for name, n in ask.parts)


def prompt(seed: str, n: int) -> str:
    """Return n characters of printable ASCII. Texts of different seeds differ from the first characters on."""
    rng = random.Random(seed)
    return "".join(rng.choices(_ALPHABET, k=n))


BURDENS = _burdens()
