"""The reply of the `props` operation: facts for programs that write prompts or describe models, such as gateways."""

from __future__ import annotations

from typing import Any

from uma_core.config.options import Config
from uma_core.constraint.lib import is_installed
from uma_core.engine.api import Engine, ModelFacts
from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol.constraint import KINDS
from uma_core.protocol.ops import OPS

INFILL = ("fim_pre", "fim_suf", "fim_mid")


def props(engine: Engine | None, is_demo: bool, config: Config, generation: int, is_trusted: bool) -> dict[str, Any]:
    """Raises: MODEL_NOT_LOADED."""
    if engine is None:
        raise UmaError(ErrorCode.MODEL_NOT_LOADED)
    info, facts, limits = engine.info, engine.facts(), config.limits
    return {
        "model": {
            "name": info.model_name,
            "path": info.model_path,
            "fingerprint": info.fingerprint,
            "arch": info.arch,
            "description": facts.description,
            "n_params": facts.n_params,
            "n_bytes": info.weight_bytes,
            "n_ctx_train": info.n_ctx_train,
            "n_vocab": info.n_vocab,
            "n_embd": facts.n_embd,
            "vocab_type": facts.vocab_type,
            "is_demo": is_demo,
        },
        "n_ctx_seq": info.n_ctx_seq,
        "n_seq_max": info.n_seq_max,
        "chat_template": facts.chat_template,
        "chat_template_tool_use": facts.chat_template_tool_use,
        "adapters": [
            {name: getattr(each, name) for name in ("id", "path", "scale", "task_name", "prompt_prefix")}
            for each in info.adapters
        ],
        "special": {name: {"id": token, "text": text} for name, (token, text) in facts.special.items()},
        "add_bos": facts.add_bos,
        "add_eos": facts.add_eos,
        "limits": {
            "max_tokens": limits.max_tokens,
            "default_max_tokens": limits.default_max_tokens,
            "max_prompt_bytes": max(limits.max_prompt_bytes, limits.trusted_prompt_bytes if is_trusted else 0),
            "overflow": limits.overflow,
        },
        "n_embd_out": info.embedding.n_embd if info.embedding is not None else None,
        "n_input": info.embedding.n_input if info.embedding is not None else None,
        "capabilities": _capabilities(engine, facts),
        "generation": generation,
    }


def _capabilities(engine: Engine, facts: ModelFacts) -> dict[str, Any]:
    embedding = engine.info.embedding
    return {
        "operations": sorted(OPS),
        "generate": sorted(field.name for field in OPS["generate"].fields),
        "chat": facts.chat_template is not None and engine.info.can_generate,
        "infill": all(name in facts.special for name in INFILL),
        "completion": engine.info.can_generate,
        "embeddings": embedding is not None,
        "rerank": embedding is not None and "rank" in embedding.poolings,
        "pooling": embedding.pooling if embedding is not None else None,
        "poolings": list(embedding.poolings) if embedding is not None else [],
        "constraints": list(KINDS) if is_installed() else [],
    }
