"""Makes a server from its label: `uma[:VARIANT]`, `uma-http[:VARIANT]`, `llama-server[:default|b64|kvu]`,
`llama-cpp-python`.
"""

from __future__ import annotations

from pathlib import Path

from perf.peer_build import SERVER, example_server, peer_dir
from perf.servers import LlamaCppPythonServer, LlamaServer, Server, ServerError, Settings, UmaHttpServer, UmaServer

OURS = "uma"
HTTP = "uma-http"  # ours through its gateway
PEER = "llama-server"
PEER_VARIANTS = (PEER, f"{PEER}:b64", f"{PEER}:kvu")
EXAMPLE = "llama-cpp-python"


def is_ours(label: str) -> bool:
    return label.partition(":")[0] in (OURS, HTTP)


def through_http(label: str) -> str:
    """Return the label of the same server of ours behind its gateway."""
    return label.replace(OURS, HTTP, 1)


def make_server(label: str, settings: Settings, folder: Path) -> Server:
    """Make a server; it is not started yet.

    Blocks: minutes if the peer must be built first. Raises: ServerError, BuildError.
    """
    name = label.partition(":")[0]
    folder.mkdir(parents=True, exist_ok=True)
    if name == OURS:
        return UmaServer(label, settings, folder)
    if name == HTTP:
        return UmaHttpServer(label, settings, folder)
    if name == PEER:
        return LlamaServer(label, settings, folder, peer_dir() / "bin" / SERVER)
    if name == EXAMPLE:
        return LlamaCppPythonServer(label, settings, folder, example_server())
    raise ServerError(
        f"no server {label!r}; choose from {OURS}[:VARIANT], {HTTP}[:VARIANT], {', '.join(PEER_VARIANTS)}, {EXAMPLE}"
    )
