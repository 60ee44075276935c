"""Figures and slots in llama-server's form."""

from __future__ import annotations

from uma_gateway.apis.llama.about import THEIRS, line_of, slot_object, sums


def test_large_counts_are_told_whole():
    """A counter that is rounded to six digits stands still, and so does its rate."""
    metric = next(each for each in THEIRS if each.name == "tokens_predicted_total")
    assert line_of(metric, sums('uma_tokens_generated_total{lane="x"} 1234567\numa_tokens_generated_total 1\n')) == (
        "llamacpp:tokens_predicted_total 1234568"
    )


def test_the_time_of_prompts_does_not_fall_when_a_request_only_waits():
    metric = next(each for each in THEIRS if each.name == "prompt_seconds_total")
    waited = 'uma_queue_seconds_sum{lane="x"} 30\numa_time_to_first_token_seconds_sum{lane="x"} 2\n'
    assert line_of(metric, sums(waited + "uma_prompt_seconds_total 1.5\n")) == "llamacpp:prompt_seconds_total 1.5"


def test_a_slot_tells_nothing_of_a_prompt() -> None:
    row = {"request_id": "r", "prompt_tokens": 9, "prefilled_tokens": 5, "cached_tokens": 2, "completion_tokens": 3}
    busy = slot_object(1, 64, {**row, "max_tokens": 10, "text": "secret"}, drafts=True)
    assert (busy["id"], busy["is_processing"], busy["speculative"], busy["id_task"]) == (1, True, True, "r")
    assert busy["next_token"] == [{"has_next_token": True, "n_decoded": 3, "n_remain": 7}]
    assert "secret" not in str(busy)
    assert slot_object(0, 64, None, drafts=False) == {
        "id": 0,
        "n_ctx": 64,
        "speculative": False,
        "is_processing": False,
    }


def test_rates_of_a_daemon_that_has_done_nothing_are_zero() -> None:
    none = sums("# HELP uma_x y\n\n")
    none["busy"] = 0
    assert {line_of(metric, none).rpartition(" ")[2] for metric in THEIRS} == {"0"}
