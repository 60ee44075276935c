"""OpenAI's endpoints."""

from __future__ import annotations

from uma_gateway.apis.base import Family, Route
from uma_gateway.apis.openai import conversations, responses
from uma_gateway.apis.openai.chat import on_chat, on_input_tokens
from uma_gateway.apis.openai.completions import on_completions
from uma_gateway.apis.openai.embeddings import on_embeddings
from uma_gateway.apis.openai.errors import error_object
from uma_gateway.apis.openai.fim import on_fim
from uma_gateway.apis.openai.models import on_model, on_models

FAMILY = Family(
    "openai",
    (
        Route("POST", "/v1/chat/completions", on_chat, is_work=True),
        Route("POST", "/chat/completions", on_chat, is_work=True),
        Route("POST", "/v1/chat/completions/input_tokens", on_input_tokens),
        Route("POST", "/chat/completions/input_tokens", on_input_tokens),
        Route("POST", "/v1/completions", on_completions, is_work=True),
        Route("POST", "/v1/fim/completions", on_fim, is_work=True),
        Route("POST", "/v1/embeddings", on_embeddings, is_work=True),
        *(Route("POST", path, responses.on_responses, is_work=True) for path in ("/v1/responses", "/responses")),
        *(
            Route("POST", path, responses.on_input_tokens)
            for path in ("/v1/responses/input_tokens", "/responses/input_tokens")
        ),
        *(Route("POST", path, responses.on_compact) for path in ("/v1/responses/compact", "/responses/compact")),
        Route("GET", "/v1/responses/{id}", responses.on_get),
        Route("DELETE", "/v1/responses/{id}", responses.on_delete),
        Route("POST", "/v1/responses/{id}/cancel", responses.on_cancel),
        Route("GET", "/v1/responses/{id}/input_items", responses.on_input_items),
        Route("POST", "/v1/conversations", conversations.on_create),
        Route("GET", "/v1/conversations/{id}", conversations.on_get),
        Route("POST", "/v1/conversations/{id}", conversations.on_update),
        Route("DELETE", "/v1/conversations/{id}", conversations.on_delete),
        Route("POST", "/v1/conversations/{id}/items", conversations.on_add_items),
        Route("GET", "/v1/conversations/{id}/items", conversations.on_items),
        Route("GET", "/v1/conversations/{id}/items/{item}", conversations.on_item),
        Route("DELETE", "/v1/conversations/{id}/items/{item}", conversations.on_delete_item),
        Route("GET", "/v1/models", on_models),
        Route("GET", "/v1/models/{name:path}", on_model),
        Route("GET", "/models", on_models),
    ),
    error_object,
    ("/v1/", "/models", "/chat/", "/responses"),
)
