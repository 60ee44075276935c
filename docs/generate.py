"""Write the reference pages from the declarations: `python docs/generate.py`, or `--check` to fail when one is stale.

Whole pages: CONFIG.md, METRICS.md, ERRORS.md. In PROTOCOL.md only what stands between
`<!-- generated: ops -->` or `<!-- generated: events -->` and the next `<!-- end -->`; in GATEWAY.md the options and in
ENGINE.md the families likewise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from uma_core import errors  # noqa: E402
from uma_core.config import options as config  # noqa: E402
from uma_core.config import presets  # noqa: E402
from uma_core.config import schema as config_schema  # noqa: E402
from uma_core.config.load import SCHEMA  # noqa: E402
from uma_core.metrics import catalog as metrics  # noqa: E402
from uma_core.metrics import core as metrics_core  # noqa: E402
from uma_core.metrics import export as metrics_export  # noqa: E402
from uma_core.protocol import markdown  # noqa: E402
from uma_gateway import config as gateway_config  # noqa: E402

HEAD = "<!-- Written by docs/generate.py from {source}. Do not edit: run `python docs/generate.py`. -->\n"
RELOADS = {"live": "live", "engine": "new engine", "restart": "restart"}


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def config_page() -> str:
    """Describe every option, by section."""
    parts = [HEAD.format(source="uma_core/config/options.py"), _CONFIG_INTRO]
    for section in dict.fromkeys(opt.section for opt in config.OPTIONS):
        options = [opt for opt in config.OPTIONS if opt.section == section]
        purpose = vars(type(getattr(config.Config(), section)))["__doc__"]
        parts.append(f"\n## {section}\n\n{purpose}\n\n")
        parts.append(
            table(("key", "flag", "variable", "value", "default", "reload", "meaning"), map(_option_row, options))
        )
    return "".join((*parts, _PRESETS_INTRO, *map(_preset, presets.PRESETS)))


def _preset(name: str) -> str:
    preset = presets.PRESETS[name]
    rows = [
        (
            f"`{key}`",
            f"`{config_schema.write_value(value)}`",
            f"`{config_schema.write_value(SCHEMA.by_key[key].default)}`",
        )
        for key, value in preset.values.items()
    ]
    fixed = [f"`{key}`" for key in preset.values if SCHEMA.by_key[key].reload == "restart"]
    text = f"\n### `--preset {name}`\n\n{preset.help}\n\n" + table(("key", "value", "instead of the default"), rows)
    if fixed:
        text += f"\nA reload to or from `{name}` is refused, because only a restart can change {', '.join(fixed)}.\n"
    return text


def metrics_page() -> str:
    """Describe every metric, by its two names."""
    parts = [HEAD.format(source="uma_core/metrics/catalog.py and uma_core/metrics/export.py"), _METRICS_INTRO]
    parts.append(table(("Prometheus", "JSON", "kind", "unit", "labels", "meaning"), map(_metric_row, metrics.METRICS)))
    parts.append("\n## Derived values, in the JSON only\n\n")
    parts.append(
        table(("JSON", "meaning"), ((f"`{derived.name}`", derived.help) for derived in metrics_export.DERIVED))
    )
    return "".join(parts)


def errors_page() -> str:
    """Describe every error code."""
    parts = [HEAD.format(source="uma_core/errors.py"), _ERRORS_INTRO]
    columns = ("code", "name", "who must act", "retry", "closes the connection", "exit status", "meaning")
    parts.append(table(columns, (_error_row(error.spec) for error in errors.ErrorCode)))
    return "".join(parts)


def gateway_page() -> str:
    """Return GATEWAY.md with its table of options renewed. Raises ValueError where a marker is absent."""
    parts = []
    for section in dict.fromkeys(opt.section for opt in gateway_config.OPTIONS):
        options = [opt for opt in gateway_config.OPTIONS if opt.section == section]
        parts.append(f"### {section}\n\n{vars(type(getattr(gateway_config.Config(), section)))['__doc__']}\n\n")
        rows = ((*row[:5], row[6]) for row in map(_option_row, options))
        parts.append(table(("key", "flag", "variable", "value", "default", "meaning"), rows) + "\n")
    return _renewed("GATEWAY.md", options="".join(parts))


def engine_page() -> str:
    """Return ENGINE.md with its table of families renewed.

    Needs the compiled bindings. Raises ValueError where a marker is absent.
    """
    from uma_core.engine.graph.families import FAMILIES

    rows = ((f"`{arch}`", family.models, family.notes) for arch, family in FAMILIES.items())
    return _renewed("ENGINE.md", families=table(("architecture", "models", "beside Llama's layers"), rows))


def protocol_page() -> str:
    """Return PROTOCOL.md with its generated parts renewed. Raises ValueError where a marker is absent."""
    return _renewed("PROTOCOL.md", ops=markdown.ops_markdown(), events=markdown.events_markdown())


def _renewed(page: str, **contents: str) -> str:
    """Return the page with new contents between the markers of these names."""
    path = DOCS / page
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for name, content in contents.items():
        before, marker, rest = text.partition(f"<!-- generated: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not end or marker in after:
            raise ValueError(f"{page} needs exactly one `<!-- generated: {name} -->` with an `<!-- end -->`")
        text = f"{before}{marker}\n{content.strip()}\n\n{end}{after}"
    return text


PAGES: dict[str, Callable[[], str]] = {
    "CONFIG.md": config_page,
    "METRICS.md": metrics_page,
    "ERRORS.md": errors_page,
    "PROTOCOL.md": protocol_page,
    "GATEWAY.md": gateway_page,
    "ENGINE.md": engine_page,
}


def stale_pages() -> list[str]:
    """Name the pages that differ from what would be written."""
    wanted = {name: render() for name, render in PAGES.items()}
    return [
        name
        for name, text in wanted.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != text
    ]


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        stale = stale_pages()
        for name in stale:
            print(f"docs/{name} is stale: run `python docs/generate.py`", file=sys.stderr)
        return 1 if stale else 0
    if arguments:
        print("usage: python docs/generate.py [--check]", file=sys.stderr)
        return 2
    for name, render in PAGES.items():
        (DOCS / name).write_text(render(), encoding="utf-8")
    return 0


def _option_row(opt: config_schema.Option) -> tuple[str, ...]:
    value = f"`{config_schema.value_text(opt)}`"
    extra = [config_schema.range_text(opt) if not opt.choices else "", opt.unit]
    words = ", ".join(
        f"`{word}` = {config_schema.write_value(meaning)}" for word, meaning in opt.extra.get("words", {}).items()
    )
    value = ", ".join(filter(None, (value, *extra, words)))
    flag = f"`{opt.flag}`, `--no-{opt.flag[2:]}`" if opt.kind is bool else f"`{opt.flag}`"
    default = config_schema.write_value(opt.default)
    cap = opt.extra.get("cap")
    meaning = f"{opt.help}; at most `{cap}`, to which the default is lowered" if cap else opt.help
    return f"`{opt.key}`", flag, f"`{opt.env}`", value, f"`{default}`", RELOADS[opt.reload], meaning


def _metric_row(metric: metrics_core.Metric) -> tuple[str, ...]:
    labels = ", ".join(f"`{name}`: {_values(values)}" for name, values in metric.labels.items())
    unit = "seconds (JSON: ms)" if metric.unit == "seconds" else metric.unit
    return (
        f"`{metrics_export.PREFIX}{metric.name}`",
        f"`{metric.json_name}`",
        metric.kind.value,
        unit,
        labels,
        metric.help,
    )


def _values(values: tuple[str, ...]) -> str:
    return ", ".join(values) if len(values) <= 8 else f"{len(values)} values"


def _error_row(spec: errors.Spec) -> tuple[str, ...]:
    facts = (spec.side.value, _yes(spec.is_retryable), _yes(spec.closes), str(spec.exit_status))
    return (f"`{spec.code}`", f"`{spec.name}`", *facts, spec.summary)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


_PRESETS_INTRO = """
## Presets

A preset is a list of options for a kind of machine: `--preset NAME`, `UMA_PRESET=NAME`, or `preset: NAME` in the file.
A flag, a variable or the file overrides it. Presets do not depend on the model: [MEMORY.md](MEMORY.md) says how much
context fits beside a model, and [TUNING.md](TUNING.md) which options matter for which class of model.
"""

_CONFIG_INTRO = """# Configuration

This page lists every option of the daemon, by section, and the presets. [TUNING.md](TUNING.md) says which of them
matter for a model.

A value is taken from the first of these that sets it: the flag, the environment variable, the YAML file
(`--config FILE`, `UMA_CONFIG`), the preset, the default. `uma-core daemon --print-config` prints every value with its
origin, in the form of a valid file; `--check-config` only checks.

The file must be a regular file of at most 1 MiB, because a pipe could block the daemon. Nothing is guessed: an unknown
key, a wrong type or a value out of range is `E_CONFIG_001`, which names the key and its source, and a file with a YAML
alias (`*name`) is refused. In flags and variables, lists and maps are written as `a,b` and `1000=background`.

*reload* says what a reload does with a change: `live` takes effect between two ticks, `new engine` loads a new engine,
and `restart` is refused, because only a restart of the daemon can apply it.
"""

_METRICS_INTRO = """# Metrics

This page lists every metric of the daemon. There are two forms:

- JSON: `uma-ctl metrics`, the request `{"type": "metrics"}`, the line `/metrics`. Labels nest
  (`"errors_total": {"E_PROTO_001": 0, ...}`), and a histogram is an object of `count, mean, p50, p95, p99, max` since
  the start. Values of *last minute* cover the last 30 to 60 s.
- Prometheus' text, in base units: `uma-ctl metrics --prometheus`, the request with `"format": "prometheus"`, the line
  `/metrics prometheus`, and with [`metrics.listen`](CONFIG.md#metrics) `GET /metrics` over HTTP on this machine, which
  Prometheus can read directly ([DEPLOY.md](DEPLOY.md#logs-and-metrics)). `uma_info` describes the served model in its
  labels.

Quantiles come from histograms with 24 buckets a decade: a reported quantile is within 5 % of the true one (times from
0.1 ms to 100 s; planning and overhead from 1 us to 10 s). The Prometheus text shows every fourth bound. Figures for
single clients and requests are in `status`, not here, because their number is unbounded.

"""

_ERRORS_INTRO = """# Errors

This page lists every error code. An `error` event carries `code`, `name`, `message` and sometimes `detail`. Codes and
names are stable; messages are for people. If an accepted `generate` request is cancelled, times out or is drained, the
`reason` of its `eos` event says so; that is not an error.

- *who must act*: `client`: the same request fails again; `server`: it may succeed later; `engine`: the model or its
  backend failed; `ours`: a bug in UMA Serve.
- *exit status* is that of `uma-core`: 0 success, 1 could not start, 2 server error, 3 protocol error. `uma-ctl` and
  `uma-cli` exit with 3 where the table says 3, and with 2 for every other code that the daemon sends; their exit status
  1 means that they could not connect, or wrong usage.

"""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
