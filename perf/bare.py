"""llama-batched-bench: the rates of bare decode calls of the same library, without any server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from perf.peer_build import BENCH, peer_dir
from perf.servers import ServerError, Settings

N_PROMPT = 512
N_GENERATE = 128


def bare_rates(settings: Settings, counts: tuple[int, ...] = (1, 4)) -> dict[int, float]:
    """Return the tokens/s of decode calls by number of sequences. Blocks. Raises: ServerError, BuildError."""
    layers = 999 if settings.n_gpu_layers < 0 else settings.n_gpu_layers
    n_ctx = max(counts) * (N_PROMPT + N_GENERATE + 64)
    command = [str(peer_dir() / "bin" / BENCH), "-m", str(settings.model), "-c", str(n_ctx), "-ngl", str(layers)]
    command += ["-t", str(settings.threads), "-npp", str(N_PROMPT), "-ntg", str(N_GENERATE)]
    command += ["-npl", ",".join(map(str, counts)), "--output-format", "jsonl"]
    done = subprocess.run(command, capture_output=True, text=True)
    rates = parse(done.stdout)
    if done.returncode or set(rates) != set(counts):
        raise ServerError(f"{BENCH} ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return rates


def parse(output: str) -> dict[int, float]:
    """Read the lines of JSON among its other output: parallel sequences -> generated tokens/s."""
    rates = {}
    for line in output.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            rates[int(row["pl"])] = float(row["speed_tg"])
    return rates


def model_settings(model: Path, threads: int, n_gpu_layers: int) -> Settings:
    return Settings(model, threads, 4, 4096, n_gpu_layers)
