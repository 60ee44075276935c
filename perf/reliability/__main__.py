"""`python -m perf.reliability [--minutes 30] [--reloads 100]`: every trial, then docs/RELIABILITY.md.

On a shared machine, `--gate 'flock FILE' --segment-s 150 --pause-s 20` takes turns with other work.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from perf.reliability import promises, reloads, report, short, soak
from perf.reliability.turns import Turns
from perf.results import commit_id, machine_facts

PAGE = Path(__file__).resolve().parents[2] / "docs" / "RELIABILITY.md"
OUT = Path("perf/out/reliability.json")


def say(text: str) -> None:
    click.echo(f"{datetime.datetime.now():%H:%M:%S} {text}", err=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", default=30.0, show_default=True, help="Active time of the soak; 0 leaves it out.")
@click.option("--reloads", "n_reloads", default=100, show_default=True)
@click.option("--drains", "n_drains", default=10, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Seed of the soak's random choices.")
@click.option(
    "--segment-s",
    default=0.0,
    help="Cut the soak into segments of this length; the daemon stays up between them. 0: one.",
)
@click.option("--pause-s", default=0.0, help="Rest between two segments.")
@click.option(
    "--gate",
    default="",
    metavar="COMMAND",
    help="Each trial and segment waits until COMMAND runs the command that is appended to it.",
)
@click.option(
    "--only", multiple=True, help="Run only these trials, and keep the other results of the last run. Repeatable."
)
@click.option("--no-page", is_flag=True, help="Do not write docs/RELIABILITY.md.")
def main(n_reloads: int, n_drains: int, only: tuple[str, ...], no_page: bool, **how: Any) -> None:
    """Try to break the daemon; the exit status is 0 when every promise was kept."""
    turns = Turns(how["gate"], how["segment_s"], how["pause_s"])
    trials: dict[str, Callable[[], dict[str, Any]]] = {
        "second_daemon": lambda: short.second_daemon(say),
        "restarts": lambda: short.restarts(say),
        "thousands": lambda: short.thousands(say),
        "status_latency": lambda: short.status_latency(say),
        "idle": lambda: short.idle(say),
        "drains": lambda: short.drains(n_drains, say),
        "reloads": lambda: reloads.run(n_reloads, say),
        "faults": lambda: promises.run(promises.FAULTS, say),
        "supervision": lambda: promises.run(promises.SUPERVISION, say),
        "soak": lambda: soak.run(how["minutes"], how["seed"], turns, say),
    }
    unknown = set(only) - set(trials)
    if unknown:
        raise click.BadParameter(f"no trial {', '.join(sorted(unknown))}; choose from {', '.join(trials)}")
    results = json.loads(OUT.read_text()) if only and OUT.exists() else {}
    results["machine"] = _machine()
    for name, trial in trials.items():
        if (not only or name in only) and (name != "soak" or how["minutes"] > 0):
            with contextlib.nullcontext() if name == "soak" else turns.turn():  # the soak waits for its own turns
                results[name] = {**trial(), "date": f"{datetime.date.today()}", "commit": commit_id()}
            OUT.parent.mkdir(parents=True, exist_ok=True)
            OUT.write_text(json.dumps(results, indent=1))
    text = report.page(results)
    if not no_page:
        PAGE.write_text(text, encoding="utf-8")
    click.echo(text)
    sys.exit(0 if report.is_kept(results) else 1)


def _machine() -> dict[str, Any]:
    facts = machine_facts()
    return {
        "cpu": facts.get("cpu", "unknown"),
        "n_cores": os.cpu_count(),
        "date": f"{datetime.date.today()}",
        "commit": commit_id(),
    }


if __name__ == "__main__":
    main()
