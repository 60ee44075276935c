"""Models whose prediction heads (MTP) are known to say what the model says, or what it said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from tests.engine.graph.models import MODELS, RECURRENT, Model, write

WITH_HEADS = {
    "qwen35": replace(RECURRENT["qwen35-next"], is_tied=False),
    "glm4moe": MODELS["glm4moe-drafting"],
}


# its step takes much longer than its heads, so that drafts pay on any machine
DEEP = replace(
    WITH_HEADS["glm4moe"],
    n_layer=33,
    model_tensors={name.replace("blk.3.", "blk.32."): n for name, n in WITH_HEADS["glm4moe"].model_tensors.items()},
)


def with_heads(model: Model, path: Path, says_next: bool) -> str:
    """A model whose tokens follow from the last one alone, as no layer adds anything.

    Its heads go by the token and so say what the model will say next, or by the state, and so say what it said.
    """
    write(replace(model, quant="f32"), path)
    reader = gguf.GGUFReader(path, "r+")
    for tensor in reader.tensors:
        if any(part in tensor.name for part in ("attn_output", "ffn_down", "ssm_out")):
            tensor.data[:] = 0
        elif tensor.name.endswith(("enorm.weight", "hnorm.weight", "output_norm.weight")):
            tensor.data[:] = 1
        elif tensor.name.endswith("eh_proj.weight"):
            n = tensor.data.shape[0]
            tensor.data[:] = 0
            tensor.data[:, :n] = np.eye(n) * says_next
            tensor.data[:, n:] = np.eye(n) * (not says_next)
    reader.data.flush()
    return str(path)
