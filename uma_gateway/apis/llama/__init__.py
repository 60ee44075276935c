"""llama-server's own endpoints."""

from __future__ import annotations

from uma_gateway.apis.base import Access, Family, Route
from uma_gateway.apis.llama.about import (
    error_object,
    on_adapters,
    on_health,
    on_metrics,
    on_props,
    on_set_adapters,
    on_set_props,
    on_slot,
    on_slots,
)
from uma_gateway.apis.llama.completion import on_completion, on_infill
from uma_gateway.apis.llama.embeddings import on_embed, on_embedding, on_rerank
from uma_gateway.apis.llama.tokens import on_apply_template, on_detokenize, on_tokenize, on_tokenizer_info

FAMILY = Family(
    "llama-server",
    (
        Route("GET", "/health", on_health, Access.PUBLIC),
        Route("GET", "/v1/health", on_health, Access.PUBLIC),
        Route("GET", "/props", on_props),
        Route("POST", "/props", on_set_props),
        Route("GET", "/slots", on_slots),
        Route("POST", "/slots/{id}", on_slot),
        Route("GET", "/metrics", on_metrics),
        Route("GET", "/lora-adapters", on_adapters),
        Route("POST", "/lora-adapters", on_set_adapters),
        Route("POST", "/completion", on_completion, is_work=True),
        Route("POST", "/completions", on_completion, is_work=True),
        Route("POST", "/infill", on_infill, is_work=True),
        Route("POST", "/embedding", on_embedding, is_work=True),
        Route("POST", "/embeddings", on_embedding, is_work=True),
        Route("POST", "/embed", on_embed, is_work=True),
        *(
            Route("POST", path, on_rerank, is_work=True)
            for path in ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking")
        ),
        Route("POST", "/tokenize", on_tokenize),
        Route("POST", "/detokenize", on_detokenize),
        Route("POST", "/apply-template", on_apply_template),
        Route("GET", "/tokenizer_info", on_tokenizer_info),
    ),
    error_object,
    (),
)
