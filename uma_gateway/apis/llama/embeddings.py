"""llama-server's `/embedding` and `/rerank`, and `/embed` of Text Embeddings Inference. Reranking answers in Jina's
form, or in that of Text Embeddings Inference if the request has `texts`.
"""

from __future__ import annotations

from typing import Any

from uma_gateway.body import boolean, flag, integer, text
from uma_gateway.embedding import ask, documents_of, inputs_of, options_of, unpacked, usage, wants_cut
from uma_gateway.errors import invalid, unsupported
from uma_gateway.exchange import Exchange
from uma_gateway.fields import model_name


async def on_embedding(exchange: Exchange) -> None:
    """Return an array of objects, each with an array of vectors. It has one vector, or, if `pooling` is none, one for
    each token.
    """
    body = await exchange.json()
    name = "input" if body.get("input") is not None else "content"
    if body.get(name) is None:
        raise invalid("`input` or `content` must be provided", "input")
    await exchange.while_connected(_vectors(exchange, body, name))


async def _vectors(exchange: Exchange, body: dict[str, Any], name: str) -> None:
    pooling = text(body, "pooling")
    fields = {"input": inputs_of(body, name), **options_of(body), **({"pooling": pooling} if pooling else {})}
    reply = await ask(exchange, "embed", body, fields, {"input": name})
    rows = (item if isinstance(item, list) else [item] for item in reply["embeddings"])
    await exchange.send_json(
        [{"index": i, "embedding": [unpacked(item) for item in items]} for i, items in enumerate(rows)]
    )


async def on_embed(exchange: Exchange) -> None:
    """Answer in the form of Text Embeddings Inference: an array of vectors, one for each of `inputs`."""
    body = await exchange.json()
    if body.get("inputs") is None:
        raise invalid("`inputs` is required: a text, or an array of texts", "inputs")
    if text(body, "prompt_name"):
        message = "`prompt_name` is not supported: models' files have no named prompts; write its text before the input"
        raise unsupported(message, "prompt_name")
    _check_cut(body)
    await exchange.while_connected(_plain_vectors(exchange, body))


def _check_cut(body: dict[str, Any]) -> None:
    """Refuse to cut off the beginning of a long text, as Text Embeddings Inference can. Raises: GatewayError."""
    if (text(body, "truncation_direction") or "").lower() == "left" and boolean(body, "truncate"):
        message = "`truncation_direction` can only be right: a text that is too long loses its end"
        raise unsupported(message, "truncation_direction")


async def _plain_vectors(exchange: Exchange, body: dict[str, Any]) -> None:
    options, wish = options_of(body), flag(body, "normalize")
    if wish is not None:  # else the daemon decides, because a reranker's scores must not be normalised
        options["normalize"] = wish
    fields = {"input": inputs_of(body, "inputs"), **options}
    reply = await ask(exchange, "embed", body, fields, {"input": "inputs"})
    await exchange.send_json([unpacked(item) for item in reply["embeddings"]])


async def on_rerank(exchange: Exchange) -> None:
    body = await exchange.json()
    query = text(body, "query")
    if not query:
        raise invalid("`query` must be a text that is not empty", "query")
    is_tei = body.get("texts") is not None and body.get("documents") is None
    if is_tei:
        _check_cut(body)
    await exchange.while_connected(
        _scores(exchange, body, query, documents_of(body, "texts" if is_tei else "documents"), is_tei)
    )


async def _scores(exchange: Exchange, body: dict[str, Any], query: str, documents: list[str], is_tei: bool) -> None:
    model = await exchange.gateway.model()
    top_n = integer(body, "top_n", 1)
    fields = {
        "query": query,
        "documents": documents,
        "truncate": _may_cut(body),
        **({"top_n": top_n} if top_n else {}),
    }
    reply = await ask(exchange, "rerank", body, fields, {"documents": "texts"} if is_tei else {})
    if is_tei:
        has_text = boolean(body, "return_text")
        await exchange.send_json([tei_object(result, documents, has_text) for result in reply["results"]])
        return
    has_documents = boolean(body, "return_documents")
    results = [
        {**result, **({"document": {"text": documents[result["index"]]}} if has_documents else {})}
        for result in reply["results"]
    ]
    await exchange.send_json(
        {"model": model_name(body, model), "object": "list", "usage": usage(reply), "results": results}
    )


def _may_cut(body: dict[str, Any]) -> bool:
    """Whether long documents are cut to what the model takes. Cohere's clients ask for it with `max_tokens_per_doc`.
    Its number is ignored: many clients send one with every request, and it often exceeds the model's context.

    Raises: GatewayError.
    """
    most, wish = integer(body, "max_tokens_per_doc", 1), wants_cut(body)
    return most is not None if wish is None else wish


def tei_object(result: dict[str, Any], documents: list[str], has_text: bool) -> dict[str, Any]:
    made = {"index": result["index"], "score": result["relevance_score"]}
    return {**made, "text": documents[result["index"]]} if has_text else made
