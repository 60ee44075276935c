"""Matrices that multiply the same input, laid out one after another: one product then makes all their outputs.

Rules: the file's own tensors become views of the whole, so that each is still available alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from uma_core.engine.graph.device import tensor_context
from uma_core.engine.header import Header, TensorPlace
from uma_core.engine.lib import lib

GROUPS = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"))  # of a layer


class Part(NamedTuple):
    """The place of a matrix's outputs among those of the whole."""

    whole: Any  # matrix (n_in, all outputs)
    bias: Any  # of all of them, or None
    first: int


class Joined:
    """Owns a ggml_context with the wholes. `close` after their data is freed."""

    def __init__(self, header: Header) -> None:
        groups = [
            group for layer in sorted(_layers(header)) for names in GROUPS if (group := _group(header, layer, names))
        ]
        self.context = tensor_context(2 * len(groups) + 1)
        self.parts: dict[str, Part] = {}  # by tensor name without its suffix
        for group in groups:
            self._join(header, group)

    def _join(self, header: Header, group: list[str]) -> None:
        whole = self._whole(header, [f"{name}.weight" for name in group])
        bias = self._whole(header, [f"{name}.bias" for name in group]) if f"{group[0]}.bias" in header.tensors else None
        first = 0
        for name in group:
            self.parts[name] = Part(whole, bias, first)
            first += header.tensors[f"{name}.weight"].ne[1]

    def _whole(self, header: Header, names: list[str]) -> Any:
        """Make a tensor of all these rows, or all these numbers; the tensors themselves become views of it."""
        places = [header.tensors[name] for name in names]
        ne = (
            [places[0].ne[0], sum(place.ne[1] for place in places)]
            if _is_matrix(places[0])
            else [sum(place.ne[0] for place in places), 1]
        )
        whole = lib.ggml_new_tensor_2d(self.context, places[0].type, *ne)
        at = 0
        for place in places:
            tensor = header.tensor(place.name)
            tensor.view_src, tensor.view_offs = whole, at
            at += place.n_bytes
        return whole

    def close(self) -> None:
        if self.context:
            lib.ggml_free(self.context)
            self.context = None


def _layers(header: Header) -> set[str]:
    return {".".join(name.split(".")[:2]) for name in header.tensors if name.startswith("blk.")}


def _group(header: Header, layer: str, names: tuple[str, ...]) -> list[str]:
    """The tensors' names without their suffix if they can be joined: all exist, with one type and input, and either
    all or none have biases.
    """
    group = [f"{layer}.{name}" for name in names]
    weights = [header.tensors.get(f"{name}.weight") for name in group]
    biases = [header.tensors.get(f"{name}.bias") for name in group]
    if None in weights or len({(place.type, place.ne[0], place.ne[2]) for place in weights if place}) > 1:
        return []
    n_biases = sum(place is not None for place in biases)
    is_plain = all(place.type == lib.GGML_TYPE_F32 and not _is_matrix(place) for place in biases if place)
    return group if n_biases in (0, len(group)) and is_plain else []


def _is_matrix(place: TensorPlace) -> bool:
    return place.ne[1] > 1
