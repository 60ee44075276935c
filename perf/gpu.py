"""The whole measurement on a machine with CUDA and no network. perf/gpu.sh sets the environment and runs this.

One build of llama.cpp serves both sides: our bindings (UMA_LLAMA_DIR) and llama-server (UMA_PEER_DIR). Slow steps
keep their results in UMA_GPU_DIR, so that an interrupted command continues where it stopped.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import shutil
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from native import cmake_build
from native.pin import BuildError, load_pin
from native.progress import Progress
from native.toolchain import chosen_backend, find_toolchain
from perf import plots, report
from perf.bare import bare_rates, model_settings
from perf.criteria import labels_for, on_gpu
from perf.gguf_file import ensure
from perf.harness import Harness, Job, Plan
from perf.load import Sizing
from perf.peer_build import SERVER, TARGETS, collect, peer_flags, unpack
from perf.peers import OURS, make_server
from perf.results import Results, commit_id, machine_facts
from perf.scenarios import SCENARIOS
from perf.servers import ServerError

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(os.environ.get("UMA_GPU_DIR") or Path.home() / "uma-gpu")
PREFIX = Path(os.environ.get("UMA_LLAMA_DIR") or HOME / "llama-cuda")
USUAL = ("storm", "paste", "throughput", "solo")  # scenarios
GPU_LAYERS = -1


def say(text: str) -> None:
    print(f"[{time.monotonic() - _T0:5.0f} s] {text}", flush=True)


_T0 = time.monotonic()


def build(model: str) -> None:
    """Make libraries, llama-server, bindings and model; each only if it is missing.

    Model and build are made at the same time if the model's blocks can be made without the bindings (Q8_0 and Q4_0).
    """
    with ThreadPoolExecutor(1) as beside:
        made = beside.submit(ensure, model) if model.endswith(("q8_0", "q4_0")) else None
        _build_llama()
        if made is not None:
            say(f"model: {made.result().name}")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=ROOT, check=True)
    say("bindings built")
    if made is None:
        ensure(model)


def _build_llama() -> None:
    if (PREFIX / "bin" / SERVER).exists():
        say("llama.cpp: already built")
        return
    pin, progress = load_pin(), Progress()
    backend = chosen_backend()
    source, folder = HOME / "source", HOME / f"build-{backend}"
    if not (source / "CMakeLists.txt").exists():
        unpack(Path(os.environ["UMA_SDIST"]), pin, source)
    say(f"llama.cpp: building for {backend}")
    cmake_build.build(source, folder, peer_flags(pin, backend), find_toolchain(backend), progress, TARGETS)
    part = PREFIX.with_name(PREFIX.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    collect(source, folder, part)
    (part / "lib").symlink_to("bin")  # where UMA_LLAMA_DIR looks
    part.replace(PREFIX)
    say("llama.cpp: built")


def measure(arguments: argparse.Namespace) -> Results:
    """Run the scenarios at four times their lengths, then bare decode calls; tables are printed and stored."""
    out = Path(os.environ.get("UMA_GPU_OUT") or HOME / "out") / "run"
    scale = arguments.scale
    settings = {
        "model": arguments.model,
        "threads": arguments.threads,
        "scale": scale,
        "seed": 1,
        "gpu_layers": GPU_LAYERS,
    }
    settings |= {} if arguments.engine == "auto" else {"engine": arguments.engine}
    criteria = on_gpu(arguments.engine)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    results = Results(machine_facts(), commit_id(), today, settings)
    minutes = arguments.minutes - (time.monotonic() - _T0) / 60
    jobs = tuple(Job(name, labels_for(name, criteria), arguments.repeats) for name in arguments.scenarios)
    rates = bare_rates(model_settings(ensure(arguments.model), arguments.threads, GPU_LAYERS))
    results.settings["bare_decode_tok_s"] = ", ".join(f"{n} streams {rate:.0f}" for n, rate in rates.items())
    say(f"bare decode calls: {results.settings['bare_decode_tok_s']} tokens/s")
    plan = Plan(jobs, arguments.model, arguments.threads, out, Sizing(scale), GPU_LAYERS, minutes, math.inf)
    Harness(plan, make_server, results, say).run()
    for cell in results.cells.get("throughput", {}).values():
        for row in cell.figures:
            row["steady_x_bare"] = row["steady_tok_s"] / rates[4]
    results.save(out)
    return results


def graph(arguments: argparse.Namespace) -> int:
    """Compare the graph engine with llama_decode, in separate processes. This process does not load the bindings,
    which `build` may just have made.
    """
    command = [
        sys.executable,
        "-m",
        "perf.gpu_graph",
        "all",
        "--model",
        arguments.model,
        "--threads",
        str(arguments.threads),
    ]
    return subprocess.run(command, cwd=ROOT).returncode


def publish(results: Results) -> None:
    """Print the tables; leave results.json, summary.md and one archive of the rest in UMA_GPU_OUT."""
    out = Path(os.environ.get("UMA_GPU_OUT") or HOME / "out")
    text = report.summary(results, on_gpu(results.settings.get("engine", "auto")))
    (out / "summary.md").write_text(text)
    shutil.copyfile(out / "run" / "results.json", out / "results.json")
    if plots.can_plot():
        plots.draw(results, out / "run")
    with tarfile.open(out / "details.tar.gz", "w:gz") as archive:
        archive.add(out / "run", arcname="run")
    shutil.rmtree(out / "run")
    print(text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build and measure on a machine with CUDA.")
    parser.add_argument("phase", choices=("build", "measure", "all", "graph"))
    parser.add_argument("--model", default="8b-q8_0")
    parser.add_argument("--scenarios", nargs="+", default=list(USUAL), choices=tuple(SCENARIOS))
    parser.add_argument(
        "--engine",
        choices=("auto", "graph"),
        default="auto",
        help="graph: our daemon with that engine beside the default one",
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=int, default=4)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=9.2, help="start no repeat that would end later than this")
    arguments = parser.parse_args()
    try:
        if arguments.phase in ("build", "all"):
            build(arguments.model)
        if arguments.phase in ("measure", "all"):
            publish(measure(arguments))
        if arguments.phase == "graph":
            return graph(arguments)
    except (BuildError, ServerError) as error:
        print(error, file=sys.stderr)
        return 1
    say(f"done: {OURS} and its peer are kept in {HOME}" if arguments.phase == "build" else "done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
