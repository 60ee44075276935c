"""The first examples of README.md and docs/GATEWAY.md run as they are written; only the port and the folders differ."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.support import ROOT, SMALL, TINY, WAIT_S
from tests.daemon.test_gateway import free_port
from tests.gateway.support import GatewayProcess
from tests.tools import need

HELD = "; status=$?; kill -TERM %1; wait %1; exit $status"  # what a user does at the end


def examples(page: str) -> tuple[list[str], str]:
    """Return the commands of the first block with curl, and the first program."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    commands = next(block for kind, block in blocks if kind in ("", "sh") and "curl" in block)
    return commands.splitlines(), next(block for kind, block in blocks if kind == "python")


@pytest.mark.parametrize("page", ["README.md", "docs/GATEWAY.md"])
def test_the_commands_give_an_answer(page: str, folder: Path) -> None:
    need("curl")
    commands, _ = examples(page)
    port = free_port()
    # everything is already built and installed; the embedded model stands for the user's own
    lines = [line for line in commands if not line.startswith(("make ", ". ", "pip "))]
    script = (
        "\n".join(lines)
        .replace("8080", str(port))
        .replace("model.gguf", str(TINY))
        .replace(" daemon ", f" daemon {' '.join(SMALL)} ")
    )
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "UMA_CACHE_DIR": str(folder / "cache")}
    environ |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["bash", "-m", "-c", script + HELD],
        cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, err.decode()
    assert json.loads(out)["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize("page", ["README.md", "docs/GATEWAY.md"])
def test_the_program_prints_an_answer(page: str, gateway: GatewayProcess, capsys: pytest.CaptureFixture[str]) -> None:
    _, program = examples(page)
    exec(compile(program.replace("8080", str(gateway.port)), page, "exec"), {})  # its import of openai takes 1 s
    assert capsys.readouterr().out.strip()
