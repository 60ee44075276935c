"""Turns results into Markdown: one table per scenario with ratios and verdicts, and the acceptance table. Pure text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perf.criteria import ON_CPU, TICK_TARGETS, Criterion, Verdict, clean_rows, judge, judge_all
from perf.peers import HTTP, OURS, PEER
from perf.results import Results
from perf.stats import Spread, spread

# figure -> its name in tables, in the order of their rows
NAMES: dict[str, str] = {
    "ttft_ms": "TTFT, ms",
    "ttft_p50_ms": "TTFT p50, ms",
    "ttft_p95_ms": "TTFT p95, ms",
    "ttft_max_ms": "TTFT worst, ms",
    "ttft_x": "TTFT, x solo",
    "ttf5_ms": "TTF5, ms",
    "itl_p50_ms": "inter-token p50, ms",
    "itl_p95_ms": "inter-token p95, ms",
    "itl_p99_ms": "inter-token p99, ms",
    "p95_x": "inter-token p95, x solo",
    "together_p95_x": "inter-token p95, x the same chats unloaded",
    "chats_p95_x": "both chats' inter-token p95, x solo",
    "pause_3s_ms": "worst pause in the first 3 s, ms",
    "pause_3s_x": "worst pause in the first 3 s, x solo step",
    "pause_ms": "worst pause, ms",
    "pause_x": "worst pause, x solo step",
    "together_pause_3s_x": "worst pause in the first 3 s, x step of the same chats unloaded",
    "stream_ms": "stream time, ms",
    "stream_x": "stream time, x solo",
    "together_stream_x": "stream time, x the same chats unloaded",
    "free_p95_x": "inter-token p95, x beside free streams",
    "free_pause_3s_x": "worst pause in the first 3 s, x step beside free streams",
    "free_stream_x": "stream time, x beside free streams",
    "solo_ttft_ms": "solo TTFT, ms",
    "solo_itl_p50_ms": "solo inter-token p50, ms",
    "solo_itl_p95_ms": "solo inter-token p95, ms",
    "paste_ttft_ms": "the paste's TTFT, ms",
    "document_ttft_ms": "the document's TTFT, ms",
    "prompts_ms": "storm prompts done in, ms",
    "prompt_tok_s": "storm prompts, tokens/s",
    "prompt_ttft_p50_ms": "storm prompts' TTFT p50, ms",
    "alone_speed_x": "speed of a stream with a schema, x a free one",
    "streams_speed_x": "speed of four streams with a schema, x four free ones",
    "alone_ms": "chain alone, ms",
    "chain_ms": "chain loaded, ms",
    "slowdown_x": "chain slowdown",
    "done_n": "clients served",
    "swaps_beside_n": "documents that came back while the chat streamed",
    "one_itl_p50_ms": "one stream's inter-token p50, ms",
    "one_tok_s": "one stream, tokens/s",
    "one_steady_tok_s": "one stream while decoding, tokens/s",
    "tok_s": "aggregate, tokens/s",
    "steady_tok_s": "aggregate while all decode, tokens/s",
    "steady_x_bare": "aggregate while all decode, x bare decode calls",
    "total_tok_s": "prompt and generated tokens/s",
    "makespan_ms": "makespan, ms",
    "failed_n": "streams not completed",
    "token_us": "CPU time of the gateway per token, µs",
    "token_all_us": "CPU time of the gateway per token, requests included, µs",
    "request_us": "CPU time of the gateway for a request of 4 tokens, µs",
    "first_later_ms": "delay of the first token against the socket, ms",
    "first_ms": "first token through HTTP, ms",
    "server_cpu_cores": "server CPU, cores",
    "server_cpu_ms_per_token": "server CPU per generated token, ms",
    "client_cpu_us_per_token": "client CPU per token, µs",
    "client_cpu_share": "client CPU, cores",
    "idle_cpu_percent": "CPU without work, % of a core",
    "tick_overhead_us": "between decode calls, µs",
    "tick_overhead_share": "between decode calls, share of the ticks",
    "device_idle_share": "device idle, share of the time with requests",
    "copy_free_ratio": "prompt KV used in place, share",
    "memory_gb_s": "memory traffic of engine calls, GB/s",
    "foreign_cores": "other processes, cores",
    "rss_mb": "server RSS, MiB",
}


def number(value: float) -> str:
    """Write a number with three significant digits and no exponent; a dash for a missing one."""
    if math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 3)}f}"


def figure_name(figure: str) -> str:
    if figure in NAMES:
        return NAMES[figure]
    words = figure.split("_")
    if words[0] in TICK_TARGETS:  # greedy_4_us, greedy_4_p95_us
        return f"{words[0]}, {words[1]} sequences{', p95' if 'p95' in words else ''}, µs"
    count, _, rest = figure.partition("_")  # x4_tok_s of a sweep
    if count[:1] != "x" or not count[1:].isdigit():
        return figure
    return f"{count[1:]} {'stream' if count == 'x1' else 'streams'}: {NAMES.get(rest, rest)}"


def _order(figure: str) -> tuple[int, int, str]:
    names = list(NAMES)
    if figure in names:
        return (1, names.index(figure), "")
    count = next((int(word.lstrip("x")) for word in figure.split("_") if word.lstrip("x").isdigit()), 0)
    return (0, count, figure)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("---" for _ in header) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def with_spread(s: Spread, runs: Sequence[Sequence[float]] = ()) -> str:
    """Write the median, and the range if there were repeats; the median of each run if there were several."""
    if s.n < 2:
        return number(s.median)
    medians = [number(spread(run).median) for run in runs if run]
    more = f"; runs: {', '.join(medians)}" if len(medians) > 1 else ""
    return f"{number(s.median)} ({number(s.low)} to {number(s.high)}{more})"


def scenario_table(results: Results, scenario: str, criteria: Sequence[Criterion] = ON_CPU) -> str:
    """Return a table: rows are figures; columns are the servers, ours over the peer, and the verdict if there is a
    target.
    """
    row = results.cells[scenario]
    labels = list(row)
    figures = sorted({f for cell in row.values() for each in cell.figures for f in each}, key=_order)
    pairs = [(a, b) for a, b in ((OURS, PEER), (HTTP, OURS)) if a in labels and b in labels]
    header = ["", *labels, *(f"{a} / {b}" for a, b in pairs), "target", "verdict"]
    lines = []
    for figure in figures:
        if figure_name(figure) == figure:
            continue  # kept in the JSON; too detailed for the table
        cells = [with_spread(row[label].spread(figure), row[label].runs(figure)) for label in labels]
        ratio = [number(spread(results.ratios(scenario, figure, a, b)).median) for a, b in pairs]
        verdicts = [judge(results, c) for c in criteria if c.scenario == scenario and c.figure == figure]
        verdicts = [v for v in verdicts if v.is_met is not None]
        targets = "; ".join(v.criterion.target for v in verdicts)
        words = "; ".join(f"{v.word} ({number(v.value)})" for v in verdicts)
        lines.append([figure_name(figure), *cells, *ratio, targets, words])
    return markdown_table(header, lines)


def acceptance_table(verdicts: Sequence[Verdict], titles: dict[str, str]) -> str:
    rows = []
    for v in verdicts:
        c = v.criterion
        value = (
            "–"
            if v.is_met is None
            else number(v.value) + (f" ({number(v.low)} to {number(v.high)})" if v.n > 1 else "")
        )
        value += f"; runs: {', '.join(map(number, v.runs))}" if v.runs else ""
        rows.append([titles.get(c.scenario, c.scenario), c.what, c.target, value, f"{v.n_within} of {v.n}", v.word])
    return markdown_table(["scenario", "figure", "target", "measured", "repeats within", "verdict"], rows)


OWN_FIGURES = ("device_idle_share", "copy_free_ratio", "memory_gb_s")


def own_lines(results: Results) -> list[str]:
    """Return our daemon's figures about itself, scenario by scenario: reported, not judged."""
    lines = []
    for figure in OWN_FIGURES:
        cells = {scenario: row[OURS].spread(figure) for scenario, row in results.cells.items() if OURS in row}
        values = [f"{number(s.median)} ({scenario})" for scenario, s in cells.items() if not math.isnan(s.median)]
        lines += [f"{figure_name(figure)}: {', '.join(values)}"] if values else []
    return lines


def machine_lines(results: Results) -> str:
    """Return the conditions of the run: one bullet per fact."""
    facts = {**results.machine, **results.settings, "commit": results.commit or "unknown", "date": results.date}
    return "".join(
        f"- {key.replace('_', ' ')}: {_fact(value)}\n" for key, value in facts.items() if value not in (None, "", [])
    )


def _fact(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def summary(results: Results, criteria: Sequence[Criterion] = ON_CPU) -> str:
    """Return the whole run as one Markdown page."""
    measured = [v for v in judge_all(results, criteria) if v.is_met is not None]
    parts = ["# Measured side by side\n", machine_lines(results)]
    if measured:
        parts += ["\n## Acceptance\n\n", acceptance_table(measured, results.titles), "\n"]
        parts += [f"- {text}: {'met' if ok else 'MISSED'}\n" for text, ok in clean_rows(results)]
        parts += [f"- {line}\n" for line in own_lines(results)]
    for scenario, title in results.titles.items():
        parts += [f"\n## {scenario}: {title}\n\n", scenario_table(results, scenario, criteria)]
        errors = {label: cell.errors for label, cell in results.cells[scenario].items() if cell.errors}
        parts += [f"- {label}: {len(texts)} errors, the first: {texts[0]}\n" for label, texts in errors.items()]
    parts += [f"- {note}\n" for note in results.notes]
    return "".join(parts)
