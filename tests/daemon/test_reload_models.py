"""Model reloads under continuous streams of the real engine: no stream is lost or cut, and no token comes from the
wrong model.
"""

from __future__ import annotations

import itertools
import os

import pytest

from perf.judge import Judge
from tests.daemon.support import DRAFT, MOE, Stream, eventually, text_of

PROMPTS = [f"The {word} is" for word in ("shell", "kernel", "file", "network")]
N_TOKENS = 60


@pytest.fixture(scope="module")
def judges():
    with Judge(DRAFT) as draft, Judge(MOE) as moe:
        yield {DRAFT: draft, MOE: moe}


def check(stream: Stream, judge: Judge, prompt: str) -> None:
    """Check that the stream is complete, and that this model would choose each of its tokens."""
    final = stream.end()
    assert (final["reason"], final["usage"]["completion_tokens"]) == ("length", N_TOKENS)
    tokens = [event["token_id"] for event in stream.events if event["event"] == "token"]
    assert len(tokens) == N_TOKENS, "these prompts give text in which each token ends a character"
    assert judge.n_foreign(prompt, tokens) == 0


def test_the_judge_tells_the_models_apart(serve_model, judges):
    daemon = serve_model()
    n_foreign = 0
    for prompt in PROMPTS:
        stream = daemon.stream(prompt, max_tokens=N_TOKENS)
        check(stream, judges[DRAFT], prompt)
        n_foreign += judges[MOE].n_foreign(
            prompt, [event["token_id"] for event in stream.events if event["event"] == "token"]
        )
    assert n_foreign > len(PROMPTS)


def test_streams_finish_on_the_model_that_they_began_on(serve_model, judges):
    daemon = serve_model(has_levers=True)
    for model, other in itertools.islice(itertools.cycle([(DRAFT, MOE), (MOE, DRAFT)]), 4):
        daemon.pull(step_ms=20)
        streams = [daemon.stream(prompt, max_tokens=N_TOKENS).begun() for prompt in PROMPTS]
        assert daemon.ask("reload", model=str(other))["event"] == "reply"
        daemon.pull(step_ms=0)
        late = [daemon.stream(prompt, max_tokens=N_TOKENS) for prompt in PROMPTS]
        for early, after, prompt in zip(streams, late, PROMPTS, strict=True):
            check(early, judges[model], prompt)
            check(after, judges[other], prompt)
    assert daemon.eventually_idle()["kv"]["reserved"] == 0


def test_memory_comes_back_after_reloads(serve_model):
    """Old engines are closed, and their pages go back to the system."""
    daemon = serve_model()
    sizes = []
    for n in range(8):
        before = daemon.log.count("is closed")
        assert daemon.ask("reload", model=str((MOE, DRAFT)[n % 2]))["event"] == "reply"
        daemon.generate(PROMPTS[0], max_tokens=5)
        eventually(lambda before=before: daemon.log.count("is closed") == before + 1)
        sizes.append(daemon.rss_bytes())
    early, late = sizes[3], sizes[7]  # both sizes are of the same model; the first reloads fill allocators
    assert late <= early * 1.05 + (1 << 20)


def test_bad_files_leave_the_old_model_serving(serve_model, folder):
    daemon = serve_model()
    expected = text_of(daemon.generate(PROMPTS[0], max_tokens=20))
    good = MOE.read_bytes()
    files = {
        "absent": None,
        "text": b"hello",
        "empty": b"",
        "half": good[: len(good) // 2],
        "short": good[:-16],
        "head": good[:3000],
    }
    for name, data in files.items():
        path = folder / f"{name}.gguf"
        if data is not None:
            path.write_bytes(data)
        for is_check in (True, False):
            answer = daemon.ask("reload", model=str(path), check=is_check)
            assert (answer["event"], answer["name"]) == ("error", "model_load_failed"), name
            assert name in answer["message"]
    status = daemon.status()
    assert (status["state"], status["generation"], status["reload"]["last"]) == ("ready", 1, "failed")
    assert text_of(daemon.generate(PROMPTS[0], max_tokens=20)) == expected


def test_a_pipe_in_place_of_a_file_holds_no_reload_up(serve_model, folder):
    config = folder / "daemon.yaml"
    config.write_text("{}")
    pipe = folder / "pipe.gguf"
    os.mkfifo(pipe)
    daemon = serve_model("--config", str(config))
    wishes = (
        ("{}", {"model": str(pipe)}),
        (f"engine: {{lora: {{one: {pipe}}}}}", {}),
        (f"speculation: {{draft_model: {pipe}}}", {}),
    )
    for text, fields in wishes:
        config.write_text(text)
        answer = daemon.ask("reload", **fields)
        assert "not a regular file" in answer["message"], answer
    config.write_text("{}")
    assert daemon.ask("reload", model=str(MOE))["event"] == "reply"


def test_too_little_memory_is_refused_before_loading(serve_model, folder):
    config = folder / "config.yaml"
    config.write_text("engine:\n  memory_budget_mb: 0\n")
    daemon = serve_model("--config", str(config))
    config.write_text("engine:\n  memory_budget_mb: 1\n")
    assert daemon.ask("reload", model=str(DRAFT))["name"] == "insufficient_memory"
    assert daemon.generate(PROMPTS[0], max_tokens=3)[-1]["reason"] == "length"


def test_a_swap_of_real_models(serve_model, judges):
    daemon = serve_model(has_levers=True)
    daemon.pull(step_ms=20, available_mb=94)
    assert daemon.ask("reload", model=str(MOE), check=True)["fit"] == "swap"
    stream = daemon.stream(PROMPTS[0], max_tokens=N_TOKENS).begun()
    assert daemon.ask("reload", model=str(MOE))["event"] == "reply"
    daemon.pull(step_ms=0)
    check(stream, judges[DRAFT], PROMPTS[0])
    check(daemon.stream(PROMPTS[1], max_tokens=N_TOKENS), judges[MOE], PROMPTS[1])
