"""What people see, and that no data from the daemon can break them."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ctl.documented import PROTOCOL, STATUS
from uma_core.server.operations.status import PROMISED_SHARE
from uma_ctl import render

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


def paths(value, prefix=""):
    """Return the leaves of a dict as dotted names."""
    for key, item in value.items():
        if isinstance(item, dict) and item and not re.search(r"_ms$|residency|guard_detail$|bmt$|drain$|error$", key):
            yield from paths(item, f"{prefix}{key}.")
        else:
            yield prefix + key


def test_the_example_in_the_protocol_is_documented_field_by_field():
    for path in paths(STATUS):
        name = re.sub(r"^lanes\.\w+\.", "lanes.LANE.", path).split(".")
        last, whole = name[-1], ".".join(name)
        group = rf"\| `{re.escape(name[0])}\.?[^|]*`{re.escape(last)}`[^|]*\|"
        assert f"`{whole}`" in PROTOCOL or re.search(group, PROTOCOL) or f"| `{name[0]}` |" in PROTOCOL, whole


def test_every_figure_of_the_example_is_shown():
    shown = render.status(STATUS)
    for text in (
        "ready",
        "uma-work (demonstration model), llama architecture, 6c2f",
        "6c2f0d7b91aa40e3",
        "stream KV",
        "4 sequences",
        "tone, tone.gguf, only if a request names it",
        "background        3       1       812 ms",
        "inter-token  1.21 ms  1.38 ms  1.90 ms  2.20 ms",
        "one stream alone 1.17 ms; last minute: 97.1 % of gaps kept their limit (95 % are promised: met)",
        "1.40 ms budget",
        "guard active",
        "731 of 16,384 cells used (4 %), 1,420 reserved, 0 shared, 512 cached",
        "26.9 MiB weights",
        "26.9 MiB of the model mapped, 0 B of the model locked, GGML_CUDA_DISABLE_GRAPHS=1",
        "uid 1000 pid 5001       2       0   71 %",
    ):
        assert text in shown


@pytest.mark.parametrize(
    ("latency", "shown"),
    [
        (
            {"within_limit": 0.595, "slo_verdict": "missed"},
            "last minute: 59.5 % of gaps kept their limit (95 % are promised: missed)",
        ),
        ({"slo_verdict": "no data"}, "last minute: too few gaps to judge"),
        ({}, "promise -"),
    ],
)
def test_the_promise_is_shown_with_what_was_kept(latency, shown):
    assert render.promise_line(latency) == shown
    assert render.PROMISED == 100 * PROMISED_SHARE


def test_the_verbose_status_shows_why_the_last_tick_was_as_it_was():
    shown = render.status(STATUS, is_verbose=True)
    for text in (
        "1.17 ms round, 1.404 ms everyday, 2.34 ms long",
        "0.167 ms in an everyday gap, 0.819 ms in a long one, 0.487 ms needed",
        "error 0.05, credit 0.3",
        "28.2 MB in 1.18 ms, 23.9 GB/s, 28.2 MB expected, no budget",
        "piece 0.487 ms > room 0.167 (long 0.819), credit 0.30, 12 ms without progress, forced after 75 ms (64 rounds)",
    ):
        assert text in shown
        assert text not in render.status(STATUS)


@pytest.mark.parametrize(
    ("saved", "shown"),
    [
        ({"lookup": 2550.4}, "lookup 170 of 190 (saved 2.55 s)"),
        ({"lookup": -20.04}, "lookup 170 of 190 (lost 20.0 ms)"),
        ({}, "lookup 170 of 190"),
    ],
)
def test_drafts_are_shown_with_the_time_they_saved(saved, shown):
    counts = {"drafted": {"lookup": 190, "draft": 0}, "accepted": {"lookup": 170, "draft": 0}}
    assert render.drafts_line({**counts, "saved_ms": saved}) == shown
    assert render.drafts_line({**counts, "mode": "off", "saved_ms": saved}) == shown
    assert render.drafts_line({**counts, "mode": "auto", "saved_ms": saved}) == f"mode auto, {shown}"


def test_a_failed_reload_is_visible():
    error = {"code": "E_MODEL_002", "name": "model_load_failed", "message": "truncated"}
    shown = render.status({**STATUS, "reload": {"generation": 3, "last": "failed", "error": error}})
    assert "generation 3, last failed, the last one failed: E_MODEL_002 model_load_failed: truncated" in shown


def test_what_is_under_way_is_visible():
    starting = render.status({"state": "starting", "reason": "the model is loading", "load_share": 0.45})
    assert "starting: the model is loading, 45 % loaded" in starting
    assert "draining, 3 requests left" in render.status({"state": "draining", "drain": {"remaining": 3}})
    shown = render.status(
        {**STATUS, "retiring": [{"model": "old", "sessions": 2}], "reload": {"generation": 2, "is_under_way": True}}
    )
    assert "retiring  old, 2 streams" in shown
    assert "another one is under way" in shown
    one = render.status({"state": "draining", "drain": {"remaining": 1}, "engine": {"threads": 1, "n_seq_max": 1}})
    assert all(words in one for words in ("1 request left", "1 thread\n", "1 sequence\n"))


@pytest.mark.parametrize(
    ("gateway", "shown"),
    [
        ({"is_running": True, "restarts": 0}, "HTTP       127.0.0.1 port 8080, the gateway runs\n"),
        (
            {"is_running": False, "restarts": 2},
            "HTTP       127.0.0.1 port 8080, the gateway does not run, 2 restarts\n",
        ),
    ],
)
def test_the_http_gateway_is_shown(gateway, shown):
    assert shown in render.status({**STATUS, "http": {"host": "127.0.0.1", "port": 8080, **gateway}})
    assert "HTTP" not in render.status(STATUS)


@given(st.dictionaries(st.sampled_from([*STATUS, "load_share", "drain", "http"]), values))
def test_any_status_can_be_shown(fields):
    assert isinstance(render.status(fields), str)


@pytest.mark.parametrize("key", sorted(STATUS))
def test_any_field_may_be_absent_or_null(key):
    render.status({name: value for name, value in STATUS.items() if name != key})
    render.status({**STATUS, key: None})


@given(st.dictionaries(st.text(max_size=6), values, max_size=5))
def test_no_view_passes_control_characters_on(fields):
    for shown in (
        render.status(fields),
        render.metrics(fields),
        render.tree(fields),
        render.error_line(fields),
        render.sessions([fields]),
    ):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)


@pytest.mark.parametrize("text", ["a\x9b2J", "\x7f", "\x1b[31m\n", 'é\U0001f600 \\ "'])
def test_json_says_the_same_without_control_characters(text):
    shown = render.as_json({text: [text]})
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", shown)
    assert json.loads(shown) == {text: [text]}


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "conn",
                "request_id",
                "lane",
                "uid",
                "prefilled_tokens",
                "prompt_tokens",
                "age_ms",
                "queue_position",
                "wait_ms",
                "waits_for",
                "waits_for_conn",
            ]
        ),
        values,
    )
)
def test_any_session_can_be_listed(fields):
    assert render.sessions([fields])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"phase": "decode"}, "-"),
        ({"queue_position": 2, "wait_ms": 1500.0, "waits_for": "req_a"}, "the end of req_a, place 3, about 1.50 s"),
        ({"queue_position": 0, "waits_for": "r1", "waits_for_conn": 7}, "the end of r1 (conn 7), place 1"),
        ({"queue_position": 0, "wait_ms": 0.0, "waits_for": None}, "its turn, place 1"),
        ({"phase": "decode", "is_held": True}, "its client, which reads too slowly"),
    ],
)
def test_a_request_that_waits_says_for_what(fields, said):
    header, row = render.sessions([{"request_id": "r1", "uid": 0, "pid": 7, **fields}]).splitlines()
    assert header.endswith("waits for")
    assert row.endswith(f"uid 0 pid 7  {said:>{len('waits for')}}")


def test_metrics_show_distributions_in_a_line_and_leave_out_zero_labels():
    queue = {"interactive": {"count": 2, "mean": 1.5, "p50": 1.0, "max": 2.0}, "background": {"count": 0, "mean": 0.0}}
    shown = render.metrics(
        {"errors_total": {"E_A": 0, "E_B": 2}, "reloads_total": {"ok": 0}, "queue_ms": queue, "tokens_total": 1234567}
    )
    assert [re.split(r"\s{2,}", line) for line in shown.splitlines()] == [
        ["errors_total.E_B", "2"],
        ["reloads_total", "0"],
        ["queue_ms.interactive", "count 2, mean 1.5, p50 1, max 2"],
        ["tokens_total", "1,234,567"],
    ]


def test_an_answer_that_ended_before_its_first_token_has_no_time_to_it():
    timing = {"ttft_ms": 0.0, "total_ms": 4000.0}
    told = render.summary({"prompt_tokens": 3, "completion_tokens": 0}, timing, "timeout")
    assert told == "timeout, 3 + 0 tokens"
    told = render.summary({"prompt_tokens": 3, "completion_tokens": 8}, timing | {"ttft_ms": 5.0}, "stop")
    assert told == "stop, 3 + 8 tokens, 5.00 ms to the first, 2 tokens/s"
