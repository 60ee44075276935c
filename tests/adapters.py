"""Random LoRA adapters for a model's file, as converters write them, and damaged adapters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from perf.gguf_file import save
from uma_core.engine.header import Header
from uma_core.engine.lora import EMBEDDING

Shape = tuple[int, ...]


def write_adapter(
    model: str,
    path: Path,
    seed: int = 1,
    rank: int = 4,
    alpha: float = 8.0,
    strength: float = 0.3,
    kind: type = np.float32,
    wants: Callable[[str], bool] = lambda name: True,
    arch: str = "",
    meta: dict[str, str] | None = None,
    change: Callable[[str, np.ndarray], np.ndarray | None] = lambda name, data: data,
) -> str:
    """Write an adapter for all matrices that `wants` names. It includes the embedding if the model has an output matrix
    of its own.

    `strength`: roughly how far the adapter moves a product, in standard deviations of that product. `change` gets each
    tensor in numpy's order and returns a replacement, or None to leave the tensor out. `meta` replaces the usual
    general.type and adapter.type.
    """
    header = Header(model)
    draw = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, arch or header.arch)
    for key, value in {"general.type": "adapter", "adapter.type": "lora", **(meta or {})}.items():
        writer.add_string(key, value)
    writer.add_float32("adapter.lora.alpha", alpha)
    is_tied = "output.weight" not in header.tensors
    for place in header.tensors.values():
        n_in, n_out, n_each, _ = place.ne
        if n_out == 1 or (place.name == EMBEDDING and is_tied) or not wants(place.name):
            continue
        each = (n_each,) if n_each > 1 else ()
        if place.name == EMBEDDING:
            shapes: tuple[Shape, Shape] = (n_out, rank), (n_in, rank)
        else:
            shapes = (*each, rank, n_in), (*each, n_out, rank)
        scale = (rank / alpha * strength) ** 0.5 if alpha else strength**0.5
        for half, dims in zip(("lora_a", "lora_b"), shapes, strict=True):
            data = (
                draw.standard_normal(dims)
                * scale
                * (dims[-1] ** -0.5 if half == "lora_b" or place.name != EMBEDDING else 0.2)
            )
            changed = change(f"{place.name}.{half}", data.astype(kind))
            if changed is not None:
                writer.add_tensor(f"{place.name}.{half}", changed)
    header.close()
    save(writer)
    return str(path)
