"""The output of llama.cpp's own benchmark."""

from __future__ import annotations

from perf.bare import parse


def test_bench_output_is_read_among_other_lines() -> None:
    text = 'main: n_kv_max = 1\n{"pl": 1, "speed_tg": 62.5, "speed_pp": 300}\n{"pl": 4, "speed_tg": 71.0}\nllama_perf\n'
    assert parse(text) == {1: 62.5, 4: 71.0}
