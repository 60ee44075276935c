"""The screen of `uma-ctl top`, drawn with rich. The only file that imports it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from uma_ctl import render, units
from uma_ctl.dashboard import Cell, Dashboard

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
STATE_STYLE = {
    "ready": "bold green",
    "degraded": "bold red",
    "draining": "bold yellow",
    "stopping": "bold red",
    "starting": "bold cyan",
}
HELP = "↑↓ select  c cancel  d drain/undrain  q quit"
HEAD, PACE, MEMORY, FOOT = 5, 7, 5, 1  # lines of these parts; the requests get the others
ROOMY = 24  # lines of a terminal from which drafts have a line; below, the requests need it
FRAME = 3  # lines of the requests' part that hold none: its borders and headings


def screen(board: Dashboard, width: int, height: int) -> Layout:
    """Compose the whole screen for a terminal of this width and height."""
    drafts = render.drafts_line(render.sub(board.status, "speculation")) if height >= ROOMY else ""
    n_pace = PACE + bool(drafts)
    layout = Layout()
    layout.split_column(
        Layout(_head(board), name="head", size=HEAD),
        Layout(_pace(board, width, drafts), name="pace", size=n_pace),
        Layout(_memory(board, width), name="memory", size=MEMORY),
        Layout(_streams(board, max(1, height - HEAD - n_pace - MEMORY - FOOT - FRAME)), name="streams"),
        Layout(_foot(board), name="foot", size=FOOT),
    )
    return layout


def _head(board: Dashboard) -> RenderableType:
    status, model = board.status, render.sub(board.status, "model")
    state = units.text(status.get("state"))
    facts = f"  {units.text(model.get('name'))}  up {units.span(status.get('uptime_s'))}"
    title = Text.assemble((state, STATE_STYLE.get(state, "bold")), facts, no_wrap=True, overflow="ellipsis")
    queues = [_line(_queue(name, queue)) for name, queue in render.sub(status, "lanes").items()]
    return Panel(Group(title, *queues))


def _queue(name: str, queue: object) -> str:
    fields = queue if isinstance(queue, dict) else {}
    counts = f"{units.count(fields.get('active'))} active, {units.count(fields.get('queued'))} queued"
    return f"{units.text(name)}: {counts}, oldest {units.ms(fields.get('oldest_wait_ms'))}"


def _pace(board: Dashboard, width: int, drafts: str) -> RenderableType:
    tick, latency = render.sub(board.status, "tick"), render.sub(board.status, "latency")
    gaps = render.sub(latency, "itl_ms")
    room = max(10, width - 30)
    budget = tick.get("budget_ms")
    values = list(board.tick_ms)[-room:]
    ceiling = max(budget, max(values, default=0.0)) if units.is_number(budget) else None
    rate = list(board.tokens_per_s)[-room:]
    return Panel(
        Group(
            Text(
                f"tick     {units.ms(tick.get('ms_last')):>9}  {units.sparkline(values, ceiling)}",
                style=_tick_style(tick),
            ),
            Text(
                f"tokens/s {units.count(round(rate[-1]) if rate else None):>9}  {units.sparkline(rate)}", style="cyan"
            ),
            _line(f"guard {units.text(tick.get('guard'))}, {render.tick_line({**tick, 'guard': None})}"),
            _line(
                f"inter-token p50 {units.ms(gaps.get('p50'))}, p95 {units.ms(gaps.get('p95'))}, max "
                f"{units.ms(gaps.get('max'))}, alone {units.ms(latency.get('solo_itl_ms'))}"
            ),
            _line(render.promise_line(latency)),
            *([_line(f"drafts {drafts}")] if drafts else []),
        ),
        title="pace",
    )


def _line(text: str) -> Text:
    """One line of a panel, truncated on a narrow terminal so that the lines below it stay in view."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _tick_style(tick: render.Fields) -> str:
    last, budget = tick.get("ms_last"), tick.get("budget_ms")
    is_over = units.is_number(last) and units.is_number(budget) and budget > 0 and last > budget
    return "red" if is_over else "green"


def _memory(board: Dashboard, width: int) -> RenderableType:
    kv, memory = render.sub(board.status, "kv"), render.sub(board.status, "memory")
    cells = Text()
    for cell, owner in board.kv_map(max(10, width - 4)):
        cells.append(cell.value, style="dim" if cell is Cell.FREE else COLOURS[owner % len(COLOURS)])
    named = {"cells_total": "cells", "used": "used", "reserved": "reserved", "shared": "shared", "cached": "cached"}
    counts = ", ".join(f"{units.count(kv.get(key))} {name}" for key, name in named.items())
    sizes = ", ".join(f"{key} {units.size(memory.get(key))}" for key in ("weights", "kv", "compute", "cache", "rss"))
    return Panel(Group(cells, _line(counts), _line(sizes)), title="KV and memory")


def _streams(board: Dashboard, n_rows: int) -> RenderableType:
    """List as many requests as there is room for. The selected one is among them: keys act on it."""
    n = len(board.sessions)
    first = max(0, min(board.position - n_rows // 2, n - n_rows))
    shown = range(first, min(n, first + n_rows))
    table = Table(expand=True, box=None)
    for heading in ("request", "conn", "client", "priority", "phase", "prompt", "answer", "age"):
        table.add_column(heading, no_wrap=True)
    for i in shown:
        s = board.sessions[i]
        cells = (
            units.text(s.get("request_id")),
            units.text(s.get("conn")),
            render.client_name(s),
            units.text(s.get("lane")),
            units.text(s.get("phase")),
            f"{units.bar(s.get('prefilled_tokens'), s.get('prompt_tokens'), 8)} {units.count(s.get('prompt_tokens'))}",
            f"{units.count(s.get('completion_tokens'))}/{units.count(s.get('max_tokens'))}",
            units.ms(s.get("age_ms")),
        )
        style = "reverse" if i == board.position else COLOURS[i % len(COLOURS)]
        table.add_row(*(Text(cell) for cell in cells), style=style)
    part = f", {first + 1} to {shown.stop} are shown" if len(shown) < n else ""
    return Panel(table, title=units.counted(n, "request") + part)


def _foot(board: Dashboard) -> RenderableType:
    return Text(
        f"{board.message}   {HELP}" if board.message else HELP,
        style="bold yellow" if board.message else "dim",
        no_wrap=True,
    )
