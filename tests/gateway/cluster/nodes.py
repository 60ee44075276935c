"""Nodes that follow a test's script. This module needs Ray."""

from __future__ import annotations

from typing import Any

from uma_gateway.cluster.ray_transport import RayTransport


class Nodes(RayTransport):
    """Two nodes; `large` has the most memory, and refuses."""

    def __init__(self) -> None:
        super().__init__(None, "nodes", {"m": 1}, 60.0)
        self.asked: list[str] = []
        self.models: dict[str, dict[str, Any]] = {"large": {}, "small": {}}
        self.refusing = {"large"}

    async def _ask(self, method: str, replica: str, *args: Any, timeout_s: float = 60.0) -> dict[str, Any]:
        if method == "load":
            self.asked.append(replica)
            if replica in self.refusing:
                return {"error": "no such file"}
            self.models[replica]["m"] = {}
            return {"is_new": True}
        free = 100 if replica == "large" else 50
        return {"name": replica, "node": replica, "free_mb": free, "need_mb": {}, "models": dict(self.models[replica])}
