"""SmolLM 3: Llama's layers; every fourth one does not rotate Q and K by their positions."""

from __future__ import annotations

from dataclasses import replace

from uma_core.engine.graph.shape import Meta, Rules, Shape

STEP = 4  # a constant of the model, which its files do not name


def adapt(shape: Shape, meta: Meta) -> Shape:
    return replace(
        shape,
        layers=tuple(
            replace(layer, rope=None) if (i + 1) % STEP == 0 else layer for i, layer in enumerate(shape.layers)
        ),
    )


RULES = Rules(adapt=adapt)
