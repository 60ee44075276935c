"""Fields of `embed` and `rerank`, and their conversion to a Request."""

from __future__ import annotations

from typing import Any

from uma_core.protocol.fields import Field, Kind
from uma_core.protocol.shared_fields import SHARED_FIELDS, shared_values
from uma_core.types import PRIORITIES, Embed, Request

N_INPUTS_MOST = 4096  # per request

_COMMON = (
    Field(
        "truncate",
        Kind.BOOLEAN,
        "shorten inputs that are too long for the model, keeping their last token; false: refuse them",
        False,
    ),
    Field(
        "priority",
        Kind.STRING,
        "absent: interactive for one short input, else background",
        None,
        choices=PRIORITIES,
    ),
    Field("timeout_ms", Kind.NUMBER, "end with the error `timed_out` after this long; 0: never", 0, 0, 86_400_000),
    *SHARED_FIELDS,
)
EMBED_FIELDS = (
    Field(
        "input",
        Kind.INPUTS,
        "a text, an array of token ids, or an array of both",
        is_required=True,
        low=1,
        high=N_INPUTS_MOST,
    ),
    Field(
        "pooling",
        Kind.STRING,
        "how to combine the tokens' vectors; none: return all of them; rank: return the classifier's scores. "
        "Absent: what the model file says, else `last` (`mean` for encoders)",
        None,
        choices=("none", "mean", "cls", "last", "rank"),
    ),
    Field(
        "normalize", Kind.BOOLEAN, "scale vectors to Euclidean length 1; absent: yes, unless pooling is none or rank"
    ),
    Field(
        "dimensions",
        Kind.INTEGER,
        "keep only this many leading numbers of each vector, before normalizing; absent: keep all",
        None,
        1,
        1 << 20,
    ),
    Field("encoding", Kind.STRING, "base64: little-endian 32-bit floats", "float", choices=("float", "base64")),
    *_COMMON,
)
RERANK_FIELDS = (
    Field("query", Kind.STRING, "the query to judge the documents by", is_required=True, low=1),
    Field("documents", Kind.STRINGS, "", is_required=True, low=1, high=N_INPUTS_MOST),
    Field("top_n", Kind.INTEGER, "return only this many, the best ones; absent: all", None, 1, 1 << 30),
    *_COMMON,
)
_USAGE = (
    Field("usage", Kind.OBJECT, "prompt_tokens: the sum over all inputs"),
    Field("timing", Kind.OBJECT, "queue_ms, total_ms"),
)
EMBED_REPLY = (
    Field(
        "embeddings",
        Kind.LIST,
        "the vector of each input: an array of numbers, or a string if `encoding` is base64; with pooling none, an "
        "array of vectors",
    ),
    *_USAGE,
)
RERANK_REPLY = (
    Field("results", Kind.LIST, "best first: `index` of the document, `relevance_score`, the model's raw score"),
    *_USAGE,
)
INPUT_FIELDS = ("input", "query", "documents")


def to_embed_request(op: str, id: str, args: dict[str, Any]) -> Request:
    """Build the Request from checked fields. The input may be missing from them, and then from the Request too."""
    embed = Embed(
        op=op,
        inputs=args.get("input") or (),
        query=args.get("query") or "",
        documents=args.get("documents") or (),
        pooling=args.get("pooling") or "",
        normalize=args.get("normalize"),
        dimensions=args.get("dimensions") or 0,
        is_base64=args.get("encoding") == "base64",
        truncate=args["truncate"],
        top_n=args.get("top_n") or 0,
    )
    return Request(id=id, embed=embed, stream=False, cache_prompt=False, **shared_values(args))
