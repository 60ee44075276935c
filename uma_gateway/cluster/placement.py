"""Chooses the node for a model. Pure: from the nodes' reports (`Node.about`) to names of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Abouts = Mapping[str, Mapping[str, Any]]  # reports by node


def place(model: str, nodes: Abouts) -> str | None:
    """Return the node that should load a model that no node has: the one with most free memory, which may have to evict
    idle models. Nodes that refused the model are left out. None: a node already has it, or there is no node.
    """
    if any(model in about["models"] for about in nodes.values()):
        return None
    return _best(model, nodes)


def _best(model: str, nodes: Abouts) -> str | None:
    fit = [
        name for name, about in nodes.items() if model not in about["models"] and model not in about.get("refused", {})
    ]
    return max(fit, key=lambda name: (nodes[name]["free_mb"], -len(nodes[name]["models"]), name), default=None)


def missing(wanted: Mapping[str, int], nodes: Abouts) -> Iterator[tuple[str, str]]:
    """Yield (model, node) for every replica that is wanted and missing. The largest models choose first."""
    free = {name: dict(about, models=dict(about["models"])) for name, about in nodes.items()}
    needs = {model: max((about["need_mb"].get(model, 0) for about in nodes.values()), default=0) for model in wanted}
    for model in sorted(wanted, key=lambda model: -needs[model]):
        n_there = sum(model in about["models"] for about in free.values())
        for _ in range(wanted[model] - n_there):
            name = _best(model, free)
            if name is None:
                break
            free[name]["models"][model] = {}
            free[name]["free_mb"] -= needs[model]
            yield model, name
