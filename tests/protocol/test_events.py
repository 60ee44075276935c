"""How several answers, and facts about tokens, look on the wire."""

from __future__ import annotations

import json
from typing import Any

from tests.protocol.conftest import Driver
from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol import events
from uma_core.types import Ended, FinishReason, TokenLogprob

USAGE, TIMING = {"completion_tokens": 2}, {"total_ms": 1.0}
ONE = TokenLogprob(65, b"A\xc3", -0.1234567, ((65, b"A\xc3", -0.1234567), (66, b"", float("-inf"))))
ONE_JSON = {
    "id": 65,
    "bytes": [65, 0xC3],
    "logprob": -0.123457,
    "top": [{"id": 65, "bytes": [65, 0xC3], "logprob": -0.123457}, {"id": 66, "bytes": [], "logprob": -9999.0}],
}


def sent(*wire_events: events.Event, **request: Any) -> list[dict[str, Any]]:
    """Return what a client reads when these events of its request `a` are sent."""
    driver = Driver().frame(json.dumps({"id": "a", "prompt": "x", **request}).encode())
    frames = [driver.connection.send(event) for event in wire_events]
    return [json.loads(frame[4:]) for frame in frames]


def test_a_token_tells_its_answer_and_its_log_probabilities() -> None:
    plain, full = sent(events.Token("a", "A", 65), events.Token("a", "A", 65, (ONE,), 2))
    assert plain == {"id": "a", "event": "token", "text": "A", "token_id": 65}
    assert full == {**plain, "index": 2, "logprobs": [ONE_JSON]}
    assert sent(events.Token("a", "A", 65, n_tokens=3)) == [{**plain, "n_tokens": 3}]


def test_an_end_is_that_of_one_answer() -> None:
    answer = Ended(1, FinishReason.STOP, "", USAGE, TIMING, None, {"text": "\n"}, (ONE,))
    end, eos = sent(events.End("a", answer), events.Eos("a", FinishReason.STOP, "", USAGE, TIMING), n=2)
    rest = {"reason": "stop", "usage": USAGE, "timing": TIMING}
    assert end == {"id": "a", "event": "end", "index": 1, "stop": {"text": "\n"}, "logprobs": [ONE_JSON], **rest}
    assert eos == {"id": "a", "event": "eos", **rest}


def test_without_a_stream_the_end_holds_all_answers() -> None:
    error = UmaError(ErrorCode.SAMPLER_FAILED).to_dict()
    answers = (
        Ended(0, FinishReason.STOP, "A", USAGE, TIMING, None, {"token_id": 3}, (ONE,)),
        Ended(1, FinishReason.ERROR, "", USAGE, TIMING, error),
    )
    (eos,) = sent(events.Eos("a", FinishReason.ERROR, "", USAGE, TIMING, answers=answers), n=2, stream=False)
    assert "text" not in eos
    first, second = eos["answers"]
    assert (first["index"], first["text"], first["stop"], first["logprobs"]) == (0, "A", {"token_id": 3}, [ONE_JSON])
    assert (second["index"], second["text"], second["error"]["name"]) == (1, "", "sampler_failed")
