"""`python -m perf.reliability [--minutes 30] [--reloads 100]`: every trial, then docs/RELIABILITY.md."""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from perf.reliability import reloads, report, short, soak
from perf.results import commit_id, machine_facts

PAGE = Path(__file__).resolve().parents[2] / "docs" / "RELIABILITY.md"
OUT = Path("perf/out/reliability.json")


def say(text: str) -> None:
    click.echo(f"{datetime.datetime.now():%H:%M:%S} {text}", err=True)


@click.command()
@click.option("--minutes", default=30.0, show_default=True, help="Length of the soak; 0 leaves it out.")
@click.option("--reloads", "n_reloads", default=100, show_default=True)
@click.option("--drains", "n_drains", default=10, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Of the soak's chances.")
@click.option("--only", multiple=True, help="Run only these trials, and keep the other results of the last run. Repeatable.")
@click.option("--no-page", is_flag=True, help="Do not write docs/RELIABILITY.md.")
def main(minutes: float, n_reloads: int, n_drains: int, seed: int, only: tuple[str, ...], no_page: bool) -> None:
    """Try to break the daemon; the exit status is 0 when every promise was kept."""
    trials: dict[str, Callable[[], dict[str, Any]]] = {
        "second_daemon": lambda: short.second_daemon(say),
        "restarts": lambda: short.restarts(say),
        "thousands": lambda: short.thousands(say),
        "status_latency": lambda: short.status_latency(say),
        "idle": lambda: short.idle(say),
        "drains": lambda: short.drains(n_drains, say),
        "reloads": lambda: reloads.run(n_reloads, say),
        "soak": lambda: soak.run(minutes, seed, say),
    }
    unknown = set(only) - set(trials)
    if unknown:
        raise click.BadParameter(f"no trial {', '.join(sorted(unknown))}; there are: {', '.join(trials)}")
    results = json.loads(OUT.read_text()) if only and OUT.exists() else {}
    results["machine"] = _machine()
    for name, trial in trials.items():
        if (not only or name in only) and (name != "soak" or minutes > 0):
            results[name] = trial()
            OUT.parent.mkdir(parents=True, exist_ok=True)
            OUT.write_text(json.dumps(results, indent=1))
    text = report.page(results)
    if not no_page:
        PAGE.write_text(text, encoding="utf-8")
    click.echo(text)
    sys.exit(0 if report.is_kept(results) else 1)


def _machine() -> dict[str, Any]:
    facts = machine_facts()
    return {"cpu": facts.get("cpu", "unknown"), "n_cores": os.cpu_count(), "date": f"{datetime.date.today()}", "commit": commit_id()}


if __name__ == "__main__":
    main()
