"""The commands of `python -m perf`. Parses and prints; the work is done elsewhere."""

from __future__ import annotations

import datetime
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from native.pin import BuildError
from perf import csv_files, plots, report, scorecard
from perf.criteria import (
    GATEWAY_CRITERIA,
    ON_CPU,
    ON_GPU,
    ON_HTTP,
    RATES,
    TICK_CRITERIA,
    Criterion,
    clean_rows,
    for_engine,
    judge_all,
    labels_for,
    of_many_streams,
    of_weights,
    on_gpu,
    with_isa,
)
from perf.gguf_file import ensure, model_file
from perf.harness import Harness, Job, Plan
from perf.lanes import run_beside
from perf.load import Sizing
from perf.peers import HTTP, OURS, PEER, make_server, through_http
from perf.results import MixedCommits, Results, commit_id, load, machine_facts
from perf.scenarios import SCENARIOS
from perf.servers import ServerError
from perf.shapes import SHAPES
from perf.stats import median, spread
from uma_core.errors import UmaError

ENGINES = ("auto", "llama", "graph")
Option = Callable[[Callable[..., Any]], Callable[..., Any]]

_OUT = Path("perf/out")
_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_COUNT = click.IntRange(min=1)


def _count(flag: str, default: int, help: str, *name: str) -> Option:
    return click.option(flag, *name, type=_COUNT, default=default, show_default=True, help=help)


def _out(default: Path, help: str = "Folder for results.") -> Option:
    return click.option("--out", type=_FOLDER, default=default, show_default=True, help=help)


def _known_model(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value not in SHAPES and not value.endswith(".gguf"):
        raise click.BadParameter(
            f"{value!r} is neither a shape nor a file whose name ends in .gguf; shapes: {', '.join(SHAPES)}"
        )
    return value


def _known_models(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_known_model(ctx, param, value) for value in values)


def _model(default: str) -> Option:
    return click.option(
        "--model",
        callback=_known_model,
        default=default,
        show_default=True,
        metavar="SHAPE|PATH",
        help="A shape, or a GGUF file.",
    )


_MODEL = _model("0.5b-q8_0")
_TRAINED = click.option("--model", required=True, metavar="PATH", help="A trained GGUF.")
_TEXT = click.argument("text", type=_FILE, nargs=-1, required=True)
_ISA = click.option(
    "--isa", envvar="UMA_ISA", default="auto", show_default=True, help="Instruction set of our kernels."
)
_GPU_LAYERS = click.option(
    "--gpu-layers", type=click.IntRange(min=-1), default=0, show_default=True, help="Layers on the GPU; -1: all."
)
_THREADS = _count("--threads", 2, "Compute threads.")
_SERVER_THREADS = _count("--threads", 2, "Compute threads of every server.")
_REPEATS = _count("--repeats", 5, "Number of repeats of everything.")
_ROUNDS = _count("--rounds", 9, "Calls of each engine per case; the median is shown.")


def _counts(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    try:
        counts = [int(n) for n in value.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise click.BadParameter(f"{value!r} is not a list of positive whole numbers, such as 1,4")
    return counts


def _prices(ctx: click.Context, param: click.Parameter, value: str) -> dict[int, float]:
    """Read the times of calls, in the order of their rows."""
    try:
        prices = {int(n): float(price) for n, price in (each.split(":") for each in value.split(","))}
    except ValueError:
        prices = {}
    if not prices or min(prices) < 2 or not all(0 < price < float("inf") for price in prices.values()):
        raise click.BadParameter(f"{value!r} is not a list of ROWS:TIME from 2 rows on, such as 2:1.05,4:1.2")
    return dict(sorted(prices.items()))


class _Group(click.Group):
    """Reports in one line what was refused, such as a missing model, or what failed, such as a server's start."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (UmaError, ServerError, BuildError, MixedCommits) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def main() -> None:
    """Measure UMA Serve beside its peers: same model, same threads, one run."""


@main.command(short_help="Make a random-weight GGUF in the SHAPE of a real model.")
@click.argument("shape", type=click.Choice(sorted(SHAPES)), metavar="SHAPE")
@click.option("--out", type=_FOLDER, help="Folder for the file (default: the cache).")
def model(shape: str, out: Path | None) -> None:
    """Make a random-weight GGUF in the SHAPE of a real model, and print its path."""
    click.echo(ensure(shape, out))


@main.command(name="list")
def list_() -> None:
    """List scenarios and model shapes."""
    for name, scenario in SCENARIOS.items():
        click.echo(f"{name:14} {scenario.title}")
    click.echo("shapes: " + ", ".join(SHAPES))


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that all commands with servers share."""
    for option in (
        _MODEL,
        _SERVER_THREADS,
        _REPEATS,
        click.option(
            "--peer-repeats",
            type=click.FloatRange(min=0),
            default=float("inf"),
            help="Repeats in which other servers take part; for scenarios that take them minutes.",
        ),
        _count("--scale", 1, "Multiply all lengths (4 for a large GPU)."),
        click.option("--seed", default=1, show_default=True, help="Seed of prompts and arrivals."),
        _GPU_LAYERS,
        click.option("--max-minutes", default=float("inf"), help="Start no repeat that would end after this time."),
        _count("--beside", 1, "Repeats to run at once, each on its own cores (Linux)."),
        _out(_OUT),
    ):
        command = option(command)
    return command


@main.command(short_help="Run SCENARIOs on our daemon and on others, interleaved.")
@click.argument("scenarios", nargs=-1, required=True, metavar="SCENARIO...")
@click.option(
    "--against",
    multiple=True,
    default=(PEER,),
    show_default=True,
    help="A server beside ours: NAME[:VARIANT]. Repeatable.",
)
@click.option(
    "--ours",
    multiple=True,
    default=(OURS,),
    show_default=True,
    help="Ours, as uma[:VARIANT]; `--ours none` to leave it out.",
)
@click.option(
    "--http", "has_http", is_flag=True, help="Also run each of ours through its HTTP gateway, as uma-http[:VARIANT]."
)
@_shared
def run(
    scenarios: tuple[str, ...], against: tuple[str, ...], ours: tuple[str, ...], has_http: bool, **options: Any
) -> None:
    """Run SCENARIOs on our daemon and on others, interleaved; write CSV, JSON, Markdown and plots."""
    if has_http:
        ours += tuple(through_http(label) for label in ours if label.partition(":")[0] == OURS)
    _check_names(scenarios, (*SCENARIOS, "all"))
    names = tuple(SCENARIOS) if "all" in scenarios else scenarios
    labels = tuple(label for label in (*ours, *against) if label != "none")
    if not labels:
        raise click.UsageError("--ours none and --against none leave no server to measure")
    jobs = tuple(Job(name, labels, options["repeats"], options["peer_repeats"]) for name in names)
    _execute(_plan(jobs, options), ON_GPU if options["gpu_layers"] else (*ON_CPU, *ON_HTTP), options["beside"])


@main.command(short_help="Run the acceptance table and print a verdict per row.")
@click.option("--quick", is_flag=True, help="One repeat, without the 16k and 32k contexts: a quick look, not evidence.")
@_count("--long-repeats", 2, "Repeats of the 16k and 32k contexts, which take minutes each.")
@click.option("--only", multiple=True, help="Judge only these scenarios. Repeatable.")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="Engine of our daemon; graph: compared with --engine llama too.",
)
@click.option("--http", "has_http", is_flag=True, help="Add the rows for the HTTP gateway.")
@click.option("--also-isa", "isas", multiple=True, help="Also run our daemon with these kernels. Repeatable.")
@_shared
def accept(
    quick: bool,
    long_repeats: int,
    only: tuple[str, ...],
    engine: str,
    has_http: bool,
    isas: tuple[str, ...],
    **options: Any,
) -> None:
    """Run the acceptance table and print a verdict per row; exit status 1 when a row is missed."""
    repeats = 1 if quick else options["repeats"]
    on_one = on_gpu(engine) if options["gpu_layers"] else for_engine(engine)
    rows = tuple(c for c in on_one if c.figure != "steady_x_bare")  # bare calls are measured by perf/gpu.py only
    smaller = (row for isa in isas for row in with_isa(isa, rows))
    criteria = (*rows, *(ON_HTTP if has_http else ()), *smaller)
    judged = tuple(dict.fromkeys(c.scenario for c in criteria))
    _check_names(only, judged)
    names = [name for name in judged if not only or name in only]
    slow = {"context-16k", "context-32k"}
    often = {n: min(repeats, long_repeats) if n in slow else repeats for n in names if not (quick and n in slow)}
    jobs = [Job(n, labels_for(n, criteria), n_repeats, options["peer_repeats"]) for n, n_repeats in often.items()]
    results = _execute(
        _plan(tuple(jobs), options, quick), criteria, options["beside"], {} if engine == "auto" else {"engine": engine}
    )
    verdicts = [v for v in judge_all(results, criteria) if v.criterion.scenario in names]
    is_clean = all(ok for _, ok in clean_rows(results))
    sys.exit(0 if is_clean and all(v.is_met for v in verdicts if not (quick and v.is_met is None)) else 1)


@main.command(short_help="Compare our daemon with itself without each stage of the policy.")
@click.argument("stages", nargs=-1)
@click.option(
    "--scenario",
    "names",
    multiple=True,
    default=("storm", "paste", "chain", "throughput"),
    show_default=True,
    help="Scenarios to run. Repeatable.",
)
@_shared
def stages(stages: tuple[str, ...], names: tuple[str, ...], **options: Any) -> None:
    """Compare our daemon with itself without each of the policy's STAGES (default: all optional ones)."""
    from uma_core.policy.config import DEFAULT_STAGES
    from uma_core.policy.pipeline import NEEDED_STAGES

    _check_names(names, tuple(SCENARIOS))
    optional = [stage for stage in DEFAULT_STAGES if stage not in NEEDED_STAGES]
    labels = (OURS, *(f"{OURS}:no-{stage}" for stage in stages or optional))
    _execute(_plan(tuple(Job(name, labels, options["repeats"]) for name in names), options), ON_CPU, options["beside"])


@main.command(short_help="Switch off parts of the scheduler: which figures move.")
@click.argument("mechanisms", nargs=-1)
@click.option(
    "--daemon",
    "is_daemon",
    is_flag=True,
    help="Use the real daemon, interleaved with the complete one, instead of the simulator.",
)
@click.option("--constants", "are_constants", is_flag=True, help="Halve and double the policy's tuned numbers instead.")
@_count("--seeds", 4, "In the simulator: runs of each case on a noisy machine.")
@_count("--processes", 2, "In the simulator: runs at once.")
@click.option(
    "--scenario",
    "names",
    multiple=True,
    default=("storm", "two-chats", "paste", "chain", "mixed", "crowd"),
    show_default=True,
    help="With --daemon: scenarios to run. Repeatable.",
)
@_shared
def ablate(
    mechanisms: tuple[str, ...],
    is_daemon: bool,
    are_constants: bool,
    seeds: int,
    processes: int,
    names: tuple[str, ...],
    **options: Any,
) -> None:
    """Switch off one of the scheduler's MECHANISMS (default: all) at a time, and report which figures that moves.

    The simulator has its own cases and machines: the options of servers, such as --model, are for --daemon.
    """
    from perf.ablation import MECHANISMS, constants, moved, row, simulate

    if are_constants and (mechanisms or is_daemon):
        raise click.UsageError("--constants goes with neither MECHANISMS nor --daemon")
    unknown = [name for name in mechanisms if name not in MECHANISMS]
    if unknown:
        raise click.BadParameter(f"no mechanism {', '.join(unknown)}; known: {', '.join(MECHANISMS)}")
    real = [name for name in mechanisms if not MECHANISMS[name].is_simulated]
    if real and not is_daemon:
        raise click.UsageError(f"the simulator does not show the effect of {', '.join(real)}: --daemon does")
    _check_names(names, tuple(SCENARIOS))
    chosen = mechanisms or tuple(name for name, m in MECHANISMS.items() if is_daemon or m.is_simulated)
    if is_daemon:
        labels = (OURS, *(f"{OURS}:without-{name}" for name in chosen))
        _execute(
            _plan(tuple(Job(name, labels, options["repeats"]) for name in names), options),
            ON_CPU,
            options["beside"],
        )
        return
    if are_constants:
        cases = [(constant, value) for constant in constants() for value in constant.others]
        rows = [(constant.name, f"{constant.value:g} becomes {value:g}") for constant, value in cases]
        click.echo("| constant | change | what moves |\n| --- | --- | --- |")
        found = simulate(cases, seeds, processes)
    else:
        rows = [(name, MECHANISMS[name].what) for name in chosen]
        click.echo("| mechanism | what | without it |\n| --- | --- | --- |")
        found = simulate(chosen, seeds, processes)
    whole = next(found)
    for (name, what), figures in zip(rows, found, strict=True):
        click.echo(row(name, what, moved(whole, figures)))


@main.command(short_help="Measure the time between decode calls.")
@_MODEL
@_THREADS
@_count("--repeats", 3, "Number of repeats of everything.")
@_out(_OUT / "tick")
def tick(model: str, threads: int, repeats: int, out: Path) -> None:
    """Measure the time between decode calls for 1, 4 and 16 sequences, inside our executor."""
    from perf.tick import measure  # loads the engine

    results = _results({"model": model, "threads": threads})
    results.titles["tick"] = "between a decode call's return and the next call"
    for _ in range(repeats):
        figures: dict[str, float] = {}
        for cost in measure(model, threads):
            figures |= {f"{cost.kind}_{cost.n_seq}_us": cost.p50_us, f"{cost.kind}_{cost.n_seq}_p95_us": cost.p95_us}
            click.echo(
                f"{cost.kind:8} {cost.n_seq:3} sequences: {cost.p50_us:7.1f} us, p95 {cost.p95_us:7.1f}, target "
                f"{cost.target_us:5.0f}"
                f"  ({cost.calls_per_tick:.2f} calls of {cost.call_ms:.1f} ms a tick)"
            )
        results.cell("tick", OURS).figures.append(figures)
    results.save(out)
    _write(results, out, TICK_CRITERIA)


@main.command(short_help="Measure what the HTTP gateway costs.")
@_REPEATS
@click.option("--step-ms", default=5.0, show_default=True, help="Time between two tokens of a stream, as with a model.")
@_out(_OUT / "gateway")
def gateway(repeats: int, step_ms: float, out: Path) -> None:
    """Measure the HTTP gateway's CPU time per token, and how much later the first token comes through it, on an engine
    that costs nothing.
    """
    from perf.gateway import measure

    results = _results({"step_ms": step_ms})
    results.titles["gateway"] = "what the gateway adds to the socket"
    for figures in measure(repeats, step_ms, out / "logs"):
        click.echo("  ".join(f"{name} {value:.4g}" for name, value in figures.items()))
        results.cell("gateway", HTTP).figures.append(figures)
    results.save(out)
    _write(results, out, GATEWAY_CRITERIA)


@main.command(short_help="Time decode ticks and prompt chunks of both engines.")
@_MODEL
@_THREADS
@_ROUNDS
@click.option("--only", multiple=True, help="Only cases whose name contains this. Repeatable.")
@_ISA
def engines(model: str, threads: int, rounds: int, only: tuple[str, ...], isa: str) -> None:
    """Time decode ticks and prompt chunks of both engines, alternating call by call."""
    from perf.engines import BASE, CASES, VARIANTS, Bench  # loads the engine

    cases = tuple(case for case in CASES if not only or any(part in case.name for part in only))
    if not cases:
        known = ", ".join(case.name for case in CASES)
        raise click.BadParameter(f"no case's name contains {' or '.join(only)}; cases: {known}", param_hint="--only")
    bench = Bench(model, threads, cases, VARIANTS, replace(BASE, isa=isa))
    for case in cases:
        rows = list(bench.measure(case, rounds))
        for row in rows:
            speed = f"{row.ms:8.1f} ms ({row.p10_ms:.1f} to {row.p90_ms:.1f}), {row.tokens_per_s:7.1f} tokens/s"
            click.echo(f"{case.name:30} {row.variant:24} {speed}, {rows[0].ms / row.ms:5.2f}x")
    bench.close()


@main.command(short_help="Show the cost of batch sizes on this machine.")
@_MODEL
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Compute threads; 0: chosen for the machine.",
)
@click.option(
    "--engine", default="graph", show_default=True, type=click.Choice(["llama", "graph"]), help="Which engine."
)
@_GPU_LAYERS
@click.option(
    "--depth", type=click.IntRange(min=0), default=512, show_default=True, help="Positions that each sequence holds."
)
@_count("--rounds", 7, "Calls of each size; the fastest counts.")
@_ISA
def batches(model: str, threads: int, engine: str, gpu_layers: int, depth: int, rounds: int, isa: str) -> None:
    """Show the cost of steps by streams and of prompt chunks by size, and the options to choose (docs/TUNING.md)."""
    from perf.batches import advice, measure, table  # loads the engine
    from uma_core.config.options import EngineOptions

    options = EngineOptions(engine=engine, threads=threads, n_gpu_layers=gpu_layers, isa=isa)
    found = measure(model, options, depth, rounds)
    click.echo(f"{table(found)}\n\n{advice(found)}")


@main.command(short_help="Compare speed with and without speculation.")
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...")
@_MODEL
@_THREADS
@click.option(
    "--streams", metavar="N,...", callback=_counts, default="1,2,4,8", show_default=True, help="How many at a time."
)
@click.option("--storm/--no-storm", "has_storm", default=True, help="Also measure beside a prefill storm.")
@_REPEATS
@click.option(
    "--mode",
    type=click.Choice(("auto", "lookup", "draft")),
    default="auto",
    show_default=True,
    help="Speculation; if rows are not exact, as on a GPU, auto drafts nothing.",
)
@_GPU_LAYERS
@_out(_OUT / "replay")
def replay(
    workloads: tuple[str, ...],
    model: str,
    threads: int,
    streams: list[int],
    has_storm: bool,
    repeats: int,
    mode: str,
    gpu_layers: int,
    out: Path,
) -> None:
    """Compare tokens a second with and without speculation, in turn, on recorded texts. WORKLOADs: edit, agent, json,
    summary, prose (default: all).
    """
    from perf import replay as replaying
    from perf.recorded import WORKLOADS
    from perf.servers import running

    _check_names(workloads, WORKLOADS)
    path = model_file(model)
    storms = (False, True) if has_storm else (False,)
    cases = [replaying.Case(w, n, s) for w in workloads or WORKLOADS for n in streams for s in storms]
    results = _results({"model": model, "threads": threads, **({"gpu_layers": gpu_layers} if gpu_layers else {})})
    server = replaying.ReplayServer(OURS, replaying.settings(path, threads, gpu_layers), out / "logs")
    rows: dict[tuple[replaying.Case, str], list[dict[str, float]]] = {}
    try:
        with running([server]):
            for case, each, figures in replaying.compare(server, cases, mode, repeats):
                rows.setdefault((case, each), []).append(figures)
                label = f"{OURS}:speculate={each}"
                results.titles[case.name] = case.title
                results.cell(case.name, label).figures.append(figures)
                results.save(out)
    except (ServerError, OSError) as error:
        raise click.ClickException(f"{error}\n{server.log_tail()}") from error
    solo = [
        row["step_p50_ms"]
        for (c, each), found in rows.items()
        if each == replaying.OFF and c.n_streams == 1 and not c.has_storm
        for row in found
    ]
    alone_ms = median(solo)
    click.echo(f"times are in steps; a step of one stream without drafts takes {alone_ms:.2f} ms")
    for case in cases:
        click.echo(replaying.words(case, rows[case, mode], rows[case, replaying.OFF], alone_ms))


@main.command(short_help="Compare tokens a second of a trained MODEL that answers TASKS.")
@click.argument("model", type=_FILE)
@click.argument("tasks", nargs=-1, required=True, type=_FILE)
@click.option("--draft", type=_FILE, help="A draft model's GGUF.")
@click.option("--kinds", default="edit,tools,json,chat", show_default=True, help="Which tasks.")
@click.option(
    "--streams", metavar="N,...", callback=_counts, default="1,4", show_default=True, help="How many at a time."
)
@_count("--repeats", 5, "Number of repeats, each with its own tasks.")
@_out(_OUT / "answers", "Folder for logs.")
def answers(
    model: Path, tasks: tuple[Path, ...], draft: Path | None, kinds: str, streams: list[int], repeats: int, out: Path
) -> None:
    """Compare tokens a second of a trained MODEL that answers TASKS (JSON lines of kind, messages, tools, answer), with
    speculation and without, beside llama-server's own modes.
    """
    from perf import answers as answering

    rows = [row for path in tasks for row in _tasks(path) if row["kind"] in kinds.split(",")]
    if not rows:
        raise click.BadParameter(f"no task is of the kind {kinds.replace(',', ' or ')}", param_hint="--kinds")
    n_least = max(streams) * len(streams) * repeats  # with fewer, some streams would have nothing to answer
    few = [f"{n} of {kind}" for kind, n in Counter(row["kind"] for row in rows).items() if n < n_least]
    if few:
        raise click.UsageError(f"these --streams and --repeats need {n_least} tasks of each kind; {', '.join(few)}")
    named = answering.labels(draft)
    found: dict[tuple[str, int, str], list[answering.Figures]] = {}
    try:
        for kind, n, name, figures in answering.measure(model, rows, named, streams, repeats, out / "logs"):
            found.setdefault((kind, n, name), []).append(figures)
    except (ServerError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(answering.table(found, list(named)))


@main.command(short_help="Replay recorded texts through the lookups and the policy.")
@click.option(
    "--prices",
    metavar="ROWS:TIME,...",
    callback=_prices,
    default="2:1.05,4:1.17,8:1.37,16:2",
    show_default=True,
    help="Time of a call with this many rows, in steps of one row; the default is 0.5B Q8_0's on two cores of a Xeon.",
)
def drafts(prices: dict[int, float]) -> None:
    """Replay recorded texts through the lookups and the policy, without an engine. Prints the gain of four streams and
    of one, how many draft tokens are accepted, by the length of the match too, and the gain with other constants.
    """
    from perf.drafts import study

    for line in study(prices):
        click.echo(line)


@main.command(short_help="Compare two simulated daemons behind the router with one.")
@_count("--repeats", 5, "Measurements of one and of two daemons, in turn.")
def cluster(repeats: int) -> None:
    """Compare the tokens a second of two simulated daemons behind the cluster's router with those of one. 20 s a
    repeat.
    """
    from perf.cluster import rate

    found: dict[int, list[float]] = {1: [], 2: []}
    for i in range(repeats):
        for n_daemons in (1, 2) if i % 2 == 0 else (2, 1):  # so that drift affects both alike
            found[n_daemons].append(rate(n_daemons))
        one, two = found[1][-1], found[2][-1]
        click.echo(f"one daemon {one:7.1f} tokens/s, two {two:7.1f}: {two / one:.3f}x")
    ratios = spread(two / one for one, two in zip(found[1], found[2], strict=True))
    click.echo(f"{ratios.n} repeats: median {ratios.median:.3f}x, from {ratios.low:.3f}x to {ratios.high:.3f}x")


@main.command(short_help="Measure each type of weights beside llama-server.")
@click.argument("shapes", nargs=-1, metavar="[SHAPE...]")
@_SERVER_THREADS
@_REPEATS
@click.option("--engine", type=click.Choice(ENGINES), default="auto", show_default=True, help="Engine of our daemon.")
@_out(_OUT / "quants", "Folder for results, with one folder for each shape.")
def quants(shapes: tuple[str, ...], threads: int, repeats: int, engine: str, out: Path) -> None:
    """Measure our daemon beside llama-server for each type of weights: one, four and eight streams, and prompts
    (about 3 minutes a SHAPE); with 8 threads or more, four and sixteen streams.
    """
    scenario = "rates" if threads < 8 else "rates-16"
    unknown = [name for name in shapes if name not in RATES]
    if unknown:
        raise click.BadParameter(f"no bound for {', '.join(unknown)}; known: {', '.join(RATES)}")
    ours = OURS if engine == "auto" else f"{OURS}:engine={engine}"
    for shape in shapes or RATES:
        plan = Plan((Job(scenario, (ours, PEER), repeats),), shape, threads, out / shape)
        bounds = of_weights(shape) if scenario == "rates" else of_many_streams(on_gpu=False)
        criteria = tuple(replace(c, ours=ours) for c in bounds)
        _execute(plan, criteria, 1, {} if engine == "auto" else {"engine": engine})


@main.command(short_help="Show the share of the memory bandwidth that one stream reaches.")
@click.argument("models", nargs=-1, callback=_known_models, metavar="[SHAPE|PATH...]")
@_count("--threads", 2, "Compute threads, and threads of the plain read.")
@_count("--rounds", 15, "Steps and reads, in turn.")
@_ISA
def bandwidth(models: tuple[str, ...], threads: int, rounds: int, isa: str) -> None:
    """Show the share of the memory bandwidth that one stream's steps reach; default: 1B Q8_0 and Q4_K_M."""
    from perf.bandwidth import measure  # loads the engine

    click.echo("| model | kernels | weights, GB | a step reads, GB/s | a plain read, GB/s | share |")
    click.echo("| --- | --- | --- | --- | --- | --- |")
    for model in models or ("1b-q8_0", "1b-q4_k_m"):
        try:
            found = measure(model, threads, rounds, isa)
        except ValueError as error:
            raise click.ClickException(str(error)) from error
        columns = (f"{s.median:.3g} ({s.low:.3g} to {s.high:.3g})" for s in (found.step, found.read, found.share))
        click.echo(f"| {_name_of(model)} | {found.isa} | {found.n_bytes / 1e9:.3f} | {' | '.join(columns)} |")


@main.command(name="threads", short_help="Show how decode steps and prompts scale with threads.")
@_model("1b-q4_k_m")
@click.option(
    "--counts",
    metavar="N,...",
    callback=_counts,
    default="1,2,4,8,16,32",
    show_default=True,
    help="Numbers of threads; those above the number of processors are left out.",
)
@_ROUNDS
def threads_(model: str, counts: list[int], rounds: int) -> None:
    """Show how decode steps and prompts scale with threads, beside llama.cpp's."""
    from perf.threads import measure, table  # loads the engine
    from uma_core.config.options import EngineOptions
    from uma_core.engine.llama.params import n_threads_of

    n_most = n_threads_of(EngineOptions())
    chosen = tuple(n for n in counts if n <= n_most)
    if not chosen:
        raise click.BadParameter(f"this machine has {n_most} processors", param_hint="--counts")
    click.echo(table(list(measure(model, chosen, rounds))))


@main.command(short_help="Simulate the cluster's router.")
@_count("--sessions", 200, "Agents of the first trace.")
@click.option(
    "--nodes",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Also simulate this many daemons; 0: none. 1000 take minutes.",
)
@_count("--requests", 1_000_000, "Requests to these daemons.")
def router(sessions: int, nodes: int, requests: int) -> None:
    """Simulate the cluster's router and other ways to route: cached tokens, times to the first token, and the processor
    time of a choice.
    """
    from perf import routing

    for trace, run in (("agents", lambda p: routing.agent(p, n_sessions=sessions)), ("uniform", routing.uniform)):
        for policy in routing.POLICIES:
            click.echo(f"{trace:8} {policy:13} {routing.words(run(policy))}")
    if nodes:
        click.echo(f"{nodes} daemons, {requests} requests: {routing.words(routing.big(nodes, requests))}")


@main.command()
@_TEXT
@_TRAINED
@_count("--tokens", 20_000, "Most tokens of the text to use.", "n_tokens")
@_THREADS
def perplexity(text: tuple[Path, ...], model: str, n_tokens: int, threads: int) -> None:
    """Compare the engines' perplexities over the TEXT files."""
    from perf.perplexity import perplexities  # loads the engine

    found = perplexities(model, _joined(text), n_tokens, threads)
    base = next(iter(found.values()))[0]
    for name, (value, n) in found.items():
        click.echo(f"{name:24} {value:9.4f} over {n} tokens, {100 * (value / base - 1):+.4f} %")


@main.command(short_help="Measure the error of predictions with quantised weights.")
@_TEXT
@_TRAINED
@click.option("--type", "kinds", multiple=True, help="Only these types of weights. Repeatable.")
@_count("--tokens", 3_000, "Most tokens of the text to use.", "n_tokens")
@_THREADS
def fidelity(text: tuple[Path, ...], model: str, kinds: tuple[str, ...], n_tokens: int, threads: int) -> None:
    """Measure over the TEXT files how far predictions with quantised weights are from exact ones with the same weights,
    for our kernels and for ggml's.
    """
    from perf.fidelity import TYPES, fidelities  # loads the engine

    unknown = [kind for kind in kinds if kind not in TYPES]
    if unknown:
        raise click.BadParameter(f"no type {', '.join(unknown)}; known: {', '.join(TYPES)}", param_hint="--type")
    words = _joined(text)
    click.echo("| type | tokens | mean KL, ggml | mean KL, ours | ours / ggml | perplexity, exact | ggml | ours |")
    click.echo("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for f in fidelities(model, words, kinds or TYPES, n_tokens, threads):
        base = f.perplexity_exact
        against = [f"{100 * (value / base - 1):+.3f} %" for value in (f.perplexity_ggml, f.perplexity_ours)]
        ratio = f"{f.ratio:.3f} ± {f.error:.3f}"
        click.echo(
            f"| {f.kind} | {f.n_tokens} | {f.kl_ggml:.3e} | {f.kl_ours:.3e} | {ratio} | {base:.4f} | {against[0]} | "
            f"{against[1]} |"
        )


@main.command(short_help="Compare greedy continuations with llama.cpp's.")
@_TEXT
@_TRAINED
@_count("--prompts", 200, "Number of prompts: pieces of the text, of 5 to 400 tokens.", "n_prompts")
@_count("--tokens", 32, "Tokens to continue each prompt with.", "n_new")
@_THREADS
def greedy(text: tuple[Path, ...], model: str, n_prompts: int, n_new: int, threads: int) -> None:
    """Continue pieces of the TEXT files greedily, and compare with llama.cpp's continuations. Where they differ,
    compare the gap between the two tokens' logits with the noise of llama.cpp's own kernels.
    """
    from perf.greedy import compare, noise  # loads the engine

    found = compare(model, _joined(text), (n_prompts, n_new), threads)
    bound = noise(found)
    click.echo(f"noise: llama.cpp's own modes move the difference of two logits by up to {bound:.3f}")
    for name, tally in found.items():
        gaps = tally.partings
        near = sum(gap < bound for gap in gaps)
        parted = (
            f"; {near} of {len(gaps)} partings in {len(tally.choices)} tokens within the noise, widest {gaps[0]:.3f}"
            if gaps
            else ""
        )
        click.echo(
            f"{name:34} {tally.n_same} of {n_prompts} the same{parted}; moved {tally.rms_moved:.4f} rms, "
            f"{tally.most_moved:.3f} most"
        )


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise click.ClickException(f"{path} is not UTF-8 text: {error}") from error


def _joined(paths: Sequence[Path]) -> str:
    return "\n".join(_text_of(path) for path in paths)


def _tasks(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the tasks of a file, one a line."""
    for number, line in enumerate(_text_of(path).splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not {"kind", "messages", "answer"} <= row.keys():
            raise click.ClickException(
                f"{path}, line {number} is not a task, which is an object with kind, messages and answer"
            )
        yield row


def _load(folder: Path) -> Results:
    try:
        return load(folder)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{folder} has no results: {error}") from error


@main.command(name="report")
@click.argument("folder", type=_FOLDER)
def report_(folder: Path) -> None:
    """Rewrite the tables and plots of stored results."""
    results = _load(folder)
    _write(results, folder, scorecard.criteria_of(results))


@main.command(name="scorecard", short_help="Generate the pages of findings, benchmarks and scorecard.")
@click.argument("folders", nargs=-1, type=_FOLDER)
@click.option("--docs", type=_FOLDER, default=Path("docs"), show_default=True, help="Where the pages go.")
def scorecard_(folders: tuple[Path, ...], docs: Path) -> None:
    """Generate docs/FINDINGS.md, docs/BENCHMARKS.md and docs/SCORECARD.md from the results in FOLDERS (default:
    those of perf/measured).
    """
    for path in scorecard.write([_load(folder) for folder in folders or scorecard.measured()], docs):
        click.echo(path)


def _plan(jobs: tuple[Job, ...], options: dict[str, Any], quick: bool = False) -> Plan:
    sizing = Sizing(options["scale"], quick, options["seed"])
    return Plan(
        jobs,
        options["model"],
        options["threads"],
        options["out"],
        sizing,
        options["gpu_layers"],
        options["max_minutes"],
    )


def _name_of(model: str) -> str:
    """Return the name of a shape or of a file; names of shapes have dots, so `Path.stem` would cut them."""
    return Path(model).name.removesuffix(".gguf")


def _execute(plan: Plan, criteria: tuple[Criterion, ...], n_lanes: int, more: dict[str, Any] | None = None) -> Results:
    settings = {
        "model": _name_of(plan.model),
        "threads": plan.threads,
        "scale": plan.sizing.scale,
        "seed": plan.sizing.seed,
    }
    settings |= {"gpu_layers": plan.n_gpu_layers} if plan.n_gpu_layers else {}
    settings |= {"repeats_at_a_time": n_lanes} if n_lanes > 1 else {}
    settings |= more or {}
    results = _results(settings)
    if n_lanes > 1:
        run_beside(plan, n_lanes, make_server, results, click.echo)
    else:
        Harness(plan, make_server, results, click.echo).run()
    _write(results, plan.out, criteria)
    return results


def _check_names(names: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.BadParameter(f"no scenario {', '.join(unknown)} here; known: {', '.join(known)}")


def _results(settings: dict[str, Any]) -> Results:
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return Results(machine_facts(), commit_id(), today, settings)


def _write(results: Results, folder: Path, criteria: tuple[Criterion, ...]) -> None:
    text = report.summary(results, criteria)
    (folder / "summary.md").write_text(text)
    click.echo(text)
    tables = ", ".join(path.name for path in csv_files.write(results, folder))
    pictures = plots.draw(results, folder) if plots.can_plot() else []
    click.echo(
        f"{folder}: results.json, summary.md, {tables}, tokens/*.csv" + (f", {len(pictures)} plots" if pictures else "")
    )
