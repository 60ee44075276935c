"""Draft tokens through the socket: answers stay the same, and the drafts are counted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf.gguf_file import ensure
from tests.daemon.support import DRAFT, MOE, SMALL, TINY, DaemonProcess, eventually, text_of
from tests.engine.graph.heads import DEEP, with_eagle, with_heads

Serve = Callable[..., DaemonProcess]

COPY = (
    "The shell reads commands and runs them. The kernel has many tasks. The shell reads commands and runs them. "
    "The kernel has"
)
SCHEMA = {
    "json_schema": {
        "type": "object",
        "properties": {"measurement": {"const": "temperature"}},
        "required": ["measurement"],
    }
}


def answer(daemon: DaemonProcess, **fields: Any) -> tuple[str, dict[str, Any]]:
    events = daemon.generate(COPY, **{"max_tokens": 60, "ignore_eos": True, **fields})
    return text_of(events), events[-1]["usage"]


def drafted(usage: dict[str, Any]) -> int:
    return usage.get("accepted_prediction_tokens", 0) + usage.get("rejected_prediction_tokens", 0)


@pytest.fixture
def daemon(serve_model: Serve) -> DaemonProcess:
    return serve_model("--engine", "graph", "--max-draft-tokens", "6", model=DRAFT)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "seed": 5}, {"repeat_penalty": 1.05}, {"logprobs": 2}])
def test_an_answer_that_repeats_itself(daemon: DaemonProcess, sampling: dict[str, Any]) -> None:
    plain, usage = answer(daemon, speculate="off", **sampling)
    assert not drafted(usage)
    fast, usage = answer(daemon, speculate="lookup", **sampling)
    assert fast == plain and usage["completion_tokens"] == 60


def test_predictions_and_schemas(daemon: DaemonProcess) -> None:
    plain, _ = answer(daemon, speculate="off")
    fast, _ = answer(daemon, prediction=plain, priority="background")
    assert fast == plain and daemon.status()["speculation"]["is_exact"]
    plain, _ = answer(daemon, constraint=SCHEMA, speculate="off", ignore_eos=False)
    fast, _ = answer(daemon, constraint=SCHEMA, speculate="auto", ignore_eos=False, priority="background")
    assert fast == plain


# on the simulated engine another row costs nothing, so every draft that is found is verified


def test_a_prediction_that_is_right(serve: Serve) -> None:
    daemon = serve()
    plain, usage = answer(daemon, priority="background")
    assert not drafted(usage), "off where nobody asks for it"
    fast, usage = answer(daemon, priority="background", prediction=plain)
    assert fast == plain and usage["accepted_prediction_tokens"] > 10
    eventually(lambda: daemon.status()["speculation"]["accepted"]["prediction"] > 10, "not counted")
    assert daemon.status()["speculation"]["saved_ms"]["prediction"] > 0


def test_an_answer_that_was_given_before(serve: Serve) -> None:
    daemon = serve("--speculate", "auto")
    with daemon.connect() as wire:  # one process is one account
        texts = []
        for _ in range(3):
            wire.send(id="g", prompt="Once upon a time", max_tokens=50, ignore_eos=True, priority="background")
            texts.append(text_of(wire.until_final("g")))
    assert len(set(texts)) == 1 and daemon.status()["speculation"]["mode"] == "auto"
    eventually(lambda: daemon.status()["speculation"]["accepted"]["history"] > 0, "not counted")


def test_nothing_is_kept_of_answers_where_none_shall_be(serve: Serve) -> None:
    daemon = serve("--speculate", "lookup", "--history-tokens", "0")
    for _ in range(3):
        answer(daemon, priority="background")
    assert daemon.status()["speculation"]["drafted"]["history"] == 0


def test_a_schema_leaves_no_choice(serve: Serve) -> None:
    daemon = serve("--speculate", "auto")
    answer(daemon, constraint=SCHEMA, ignore_eos=False, priority="background")
    eventually(lambda: daemon.status()["speculation"]["accepted"]["forced"] > 0, "not counted")


# the embedded model, and a model of an eighth of its size that was trained on its answers


@pytest.mark.parametrize("engine", ["graph", "llama"])
def test_a_draft_model_says_what_the_model_may_say(serve_model: Serve, engine: str) -> None:
    daemon = serve_model("--engine", engine, "--draft-model", str(DRAFT), "--max-draft-tokens", "4", model=TINY)
    plain, usage = answer(daemon, speculate="off", priority="background")
    assert not drafted(usage)
    fast, usage = answer(daemon, speculate="draft", priority="background")
    eventually(lambda: daemon.status()["speculation"]["drafted"]["draft"] == drafted(usage) > 0, "not counted")
    assert usage["completion_tokens"] == 60
    status = daemon.status()["speculation"]
    assert status["draft_model"]
    if status["is_exact"]:
        assert fast == plain
        fast, _ = answer(daemon, speculate="auto", priority="background", temperature=0.8, seed=3)
        assert fast == answer(daemon, speculate="off", temperature=0.8, seed=3)[0]


def test_a_draft_model_of_another_vocabulary_is_refused(folder: Path) -> None:
    other = ensure("tiny-q8_0", folder)
    daemon = DaemonProcess(folder, "--model", str(DRAFT), "--draft-model", str(other), *SMALL)
    assert daemon.process.wait(60) != 0
    assert "speculation.draft_model" in daemon.log and "cannot draft for this model" in daemon.log


def test_a_damaged_draft_model_is_refused(folder: Path) -> None:
    damaged = folder / "damaged.gguf"
    damaged.write_bytes(DRAFT.read_bytes()[:100_000])
    daemon = DaemonProcess(folder, "--model", str(DRAFT), "--draft-model", str(damaged), *SMALL)
    assert daemon.process.wait(60) != 0
    assert "E_MODEL_002" in daemon.log and "damaged.gguf" in daemon.log


def test_a_reload_keeps_the_draft_model(serve_model: Serve) -> None:
    daemon = serve_model("--engine", "graph", "--draft-model", str(DRAFT), model=TINY)
    before = daemon.status()["memory"]["weights"]
    assert daemon.ask("reload", model=str(MOE))["event"] == "reply"
    eventually(lambda: daemon.status()["memory"]["weights"] < before, "the larger model stayed")
    assert daemon.status()["memory"]["weights"] > MOE.stat().st_size + DRAFT.stat().st_size / 2, "both are counted"
    plain, _ = answer(daemon, speculate="off")
    fast, _ = answer(daemon, speculate="draft", priority="background")
    assert fast == plain and daemon.status()["speculation"]["draft_model"]


N_LOADS = 4  # loading a model times the cost of a draft: in a busy moment the result is that drafts do not pay


def drafted_answer(daemon: DaemonProcess, folder: Path, model: str) -> tuple[str, int]:
    """Return the answer to a request for drafts, and the number of verified drafts. If none were verified, reload
    and ask again.
    """
    for i in range(N_LOADS):
        text, usage = answer(daemon, speculate="draft", priority="background")
        eventually(
            lambda usage=usage: daemon.status()["speculation"]["drafted"]["draft"] == drafted(usage), "not counted"
        )
        if drafted(usage):
            return text, drafted(usage)
        assert daemon.ask("reload", model=str(shutil.copy(model, folder / f"{i}.gguf")))["event"] == "reply"
    return text, 0


@pytest.mark.parametrize("engine", ["graph", "llama"])
def test_prediction_heads_draft(serve_model: Serve, folder: Path, engine: str) -> None:
    path = with_heads(DEEP, folder / "heads.gguf", says_next=True)
    daemon = serve_model("--engine", engine, "--mtp", model=Path(path))
    plain, _ = answer(daemon, speculate="off")
    fast, n_drafted = drafted_answer(daemon, folder, path)
    assert fast == plain and n_drafted
    assert daemon.status()["speculation"]["prediction_heads"] == "on"


@pytest.mark.parametrize("engine", ["graph", "llama"])
def test_an_eagle_model_drafts(serve_model: Serve, folder: Path, engine: str) -> None:
    target, path = with_eagle(folder, says_next=True)
    daemon = serve_model("--engine", engine, "--draft-model", path, model=Path(target))
    plain, _ = answer(daemon, speculate="off")
    fast, n_drafted = drafted_answer(daemon, folder, target)
    assert fast == plain and n_drafted
    assert daemon.status()["speculation"]["draft_model"] == Path(path).name
    again = str(shutil.copy(target, folder / "again.gguf"))
    assert daemon.ask("reload", model=again)["event"] == "reply"
    eventually(lambda: not daemon.status()["retiring"], "what draft and verify is closed")
    assert answer(daemon, speculate="draft", priority="background")[0] == plain


def test_heads_that_a_file_does_not_have_are_refused(folder: Path) -> None:
    daemon = DaemonProcess(folder, "--model", str(DRAFT), "--mtp", *SMALL)
    assert daemon.process.wait(timeout=60)
    assert "engine.mtp" in daemon.log and "no prediction heads" in daemon.log
