"""Every operation of the protocol, declared once: decoding, `help`, docs/PROTOCOL.md and uma-ctl follow from OPS."""

from __future__ import annotations

from typing import NamedTuple

from uma_core.protocol.constraint import FIELD as CONSTRAINT
from uma_core.protocol.embed import EMBED_FIELDS, EMBED_REPLY, RERANK_FIELDS, RERANK_REPLY
from uma_core.protocol.fields import Field, Kind
from uma_core.protocol.sampling import SAMPLING_FIELDS
from uma_core.types import Request

PROTOCOL_VERSION = 1
N_PREDICTION_MOST = 1 << 18  # characters: more than an answer has; each token of it takes 150 bytes of memory
# most characters of a stop text or a banned string: text that may still become one is held back from the reader
N_STOP_MOST = 1_024
DEFAULT_OP = "generate"  # of a request without `type`

_REQUEST = Request(id="")


class Op(NamedTuple):
    name: str  # the `type` of its requests
    help: str
    fields: tuple[Field, ...]  # besides `id` and `type`
    reply: tuple[Field, ...]  # besides `id`, `event` and `type`; there may be others
    is_admin: bool = False  # only for the daemon's owner, root and administrators


_SLO = (
    Field("target_ttft_ms", Kind.NUMBER, "time to first token, milliseconds", None, 0, 3_600_000),
    Field("target_tbt_ms", Kind.NUMBER, "time between tokens, milliseconds", None, 0, 3_600_000),
)

_FILE = (
    Field("filename", Kind.STRING, "", is_required=True),
    Field("text", Kind.STRING, "", is_required=True),
)
_INFILL = (
    Field("prefix", Kind.STRING, "what stands before the gap", is_required=True),
    Field("suffix", Kind.STRING, "what stands after it", is_required=True),
    Field(
        "extra",
        Kind.OBJECTS,
        "other files, the nearest last; where the context is short the first ones go",
        (),
        0,
        256,
        fields=_FILE,
    ),
)
_INPUTS = (
    Field("prompt", Kind.MIXED, "what to continue; exactly one of `prompt`, `tokens`, `messages`, `infill`", low=1),
    Field("tokens", Kind.INTEGERS, "the prompt as token ids"),
    Field("messages", Kind.MESSAGES, "a chat, put through the model's own template"),
    Field("suffix", Kind.STRING, "what follows the gap after `prompt` or `tokens`; needs a model for filling in"),
    Field("infill", Kind.OBJECT, "a gap in a file; needs a model for filling in", fields=_INFILL),
)
_WITH_PIECES = Field("with_pieces", Kind.BOOLEAN, "return what each token stands for", False)
_PIECES = Field(
    "pieces",
    Kind.LIST,
    "with `with_pieces`, for each token: its text, or an array of its bytes where they are not text alone",
)

_REASONING = (
    Field("start", Kind.STRING, "text that begins a thought; empty: the answer begins with one", "", 0, 256),
    Field("end", Kind.STRING, "text that ends it", is_required=True, low=1, high=256),
    Field(
        "budget_tokens",
        Kind.INTEGER,
        "most tokens of thinking; then `message` and `end` are forced, as soon as a `constraint` allows "
        "them; absent: no limit",
        None,
        0,
        1 << 30,
    ),
    Field("message", Kind.STRING, "what a forced end says first", "", 0, 1024),
)

_LORA = (
    Field("id", Kind.STRING, "as configured: `adapters` of `props` lists them", is_required=True, low=1, high=64),
    Field("scale", Kind.NUMBER, "how strongly it is applied; 0: not", 1.0, -1000, 1000),
)

_GENERATE = (
    *_INPUTS,
    Field(
        "max_tokens",
        Kind.INTEGER,
        "most tokens to generate; absent: the server's default",
        _REQUEST.max_tokens,
        0,
        1 << 30,
    ),
    Field(
        "n",
        Kind.INTEGER,
        "number of answers, at most the daemon's sequences (`n_seq_max` in `props`)",
        _REQUEST.n,
        1,
        1024,
    ),
    Field(
        "best_of",
        Kind.INTEGER,
        "answers to make, of which the `n` of likeliest tokens are given; not with `stream`",
        None,
        1,
        1024,
    ),
    Field("echo", Kind.BOOLEAN, "answers begin with their prompt; not with `messages` and `infill`", _REQUEST.echo),
    *SAMPLING_FIELDS,
    Field("stop", Kind.STRINGS, "end before any of these texts", high=16, each_high=N_STOP_MOST),
    Field(
        "banned_strings",
        Kind.STRINGS,
        "the answer has none of these texts: another token is drawn where one would begin",
        high=64,
        each_high=N_STOP_MOST,
    ),
    Field("stop_token_ids", Kind.INTEGERS, "end before any of these tokens", low=0, high=64),
    Field(
        "logprobs",
        Kind.INTEGER,
        "return log probabilities: of each token and of this many alternatives; absent: none",
        None,
        0,
        20,
    ),
    Field(
        "prompt_logprobs",
        Kind.INTEGER,
        "the same of the prompt's tokens, in `prompt` events; nothing of the prompt is restored then",
        None,
        0,
        20,
    ),
    Field(
        "post_sampling_probs",
        Kind.BOOLEAN,
        "`logprobs` of what the samplers left; else of the model's own distribution",
        False,
    ),
    Field("stream", Kind.BOOLEAN, "false: no token events, the text is in `eos`", _REQUEST.stream),
    Field("priority", Kind.STRING, "absent: inferred", None, choices=("interactive", "background")),
    Field("slo", Kind.OBJECT, "latency targets", None, fields=_SLO),
    Field("cache_prompt", Kind.BOOLEAN, "let later requests reuse this prompt's KV", _REQUEST.cache_prompt),
    Field("ignore_eos", Kind.BOOLEAN, "generate past the end-of-generation token", _REQUEST.ignore_eos),
    Field("timeout_ms", Kind.NUMBER, "end with reason `timeout` after this long; 0: never", 0, 0, 86_400_000),
    Field(
        "overflow",
        Kind.STRING,
        "when the context is full; absent: configured",
        None,
        choices=("error", "truncate-middle", "shift"),
    ),
    Field(
        "preserved_tokens",
        Kind.STRINGS,
        "texts of control tokens that may appear in the answer; others never do",
        high=256,
    ),
    Field(
        "model",
        Kind.STRING,
        "fingerprint of the model that the prompt is written for (`props`); another one refuses it",
        None,
        1,
        128,
    ),
    Field(
        "account",
        Kind.STRING,
        "whom a gateway asks for: fair shares are per account. Trusted peers only (`access.trusted_uids`)",
        None,
        1,
        128,
    ),
    Field("queue_updates", Kind.BOOLEAN, "send `queued` events", _REQUEST.queue_updates),
    Field("prompt_progress", Kind.BOOLEAN, "send `progress` events", _REQUEST.prompt_progress),
    CONSTRAINT,
    Field("reasoning", Kind.OBJECT, "count what the answer thinks apart, and limit it", None, fields=_REASONING),
    Field(
        "lora",
        Kind.OBJECTS,
        "LoRA adapters to answer with, and no others; absent: as configured",
        None,
        0,
        64,
        fields=_LORA,
    ),
    Field(
        "prediction",
        Kind.STRING,
        "text that the answer may repeat, in parts: draft tokens come from it",
        "",
        0,
        N_PREDICTION_MOST,
    ),
    Field(
        "speculate",
        Kind.STRING,
        "draft tokens, verified several at a time: `lookup` drafts what the text repeats, `draft` what the draft "
        "model says; absent: configured",
        None,
        choices=("auto", "lookup", "draft", "off"),
    ),
    Field(
        "metadata", Kind.TAGS, "shown with the request by `sessions`, to its own user and to administrators", high=16
    ),
)

_KEY = Field(
    "key", Kind.STRING, "secret that the hashes are made with, in hexadecimal", None, 32, 128, is_required=True
)

_STATE = Field("state", Kind.STRING, "", choices=("starting", "ready", "degraded", "draining", "stopping"))

_OPS = (
    Op("generate", "Generate text. Answered by `token` events and one `eos`, or by one `error`.", _GENERATE, ()),
    Op(
        "cancel",
        "End a request: its `eos` has the reason `cancelled`. `id` names that request.",
        (
            Field("conn", Kind.INTEGER, "connection of the request as `sessions` shows it; absent: this one", None, 0),
            Field("index", Kind.INTEGER, "end this one of its answers only", None, 0),
        ),
        (Field("found", Kind.BOOLEAN, "false: nothing with this id is in flight, or it has no answer of this index"),),
    ),
    Op(
        "embed",
        "Make a vector of each input. Answered when all are there, by one `reply`, or by one `error`.",
        EMBED_FIELDS,
        EMBED_REPLY,
    ),
    Op(
        "rerank",
        "Score documents by how well they answer a query. Needs a reranker: a model whose file says pooling rank.",
        RERANK_FIELDS,
        RERANK_REPLY,
    ),
    Op(
        "tokenize",
        "Turn text into token ids.",
        (
            Field("content", Kind.STRING, "", is_required=True),
            Field("add_special", Kind.BOOLEAN, "with what the model puts around a prompt, such as BOS", False),
            Field("parse_special", Kind.BOOLEAN, "false: the text of a control token is read as plain text", True),
            _WITH_PIECES,
        ),
        (Field("tokens", Kind.LIST, "ids"), _PIECES),
    ),
    Op(
        "detokenize",
        "Turn token ids into text.",
        (
            Field("tokens", Kind.INTEGERS, "", is_required=True),
            Field("unparse_special", Kind.BOOLEAN, "false: leave out the text of control tokens", True),
            _WITH_PIECES,
        ),
        (Field("content", Kind.STRING, "the tokens' bytes as text; what is not UTF-8 is U+FFFD"), _PIECES),
    ),
    Op(
        "count",
        "Tell how many tokens generate would read: its `prompt_tokens`. The same fields as there.",
        _INPUTS,
        (Field("n_tokens", Kind.INTEGER, ""),),
    ),
    Op(
        "prefix_hashes",
        "Return the hashes of what generate would read, one per whole page of 64 tokens, as `digest` does. The "
        "same fields as there.",
        (*_INPUTS, _KEY),
        (
            Field("n_tokens", Kind.INTEGER, ""),
            Field(
                "hashes", Kind.LIST, "strings of 16 hexadecimal digits; each stands for all tokens up to its page's end"
            ),
        ),
    ),
    Op(
        "apply_template",
        "Put a chat through the model's own template. As a `prompt` of generate, the result gives the tokens that the "
        "messages give.",
        (
            Field("messages", Kind.MESSAGES, "", is_required=True),
            Field("add_generation_prompt", Kind.BOOLEAN, "end with what begins an answer", True),
        ),
        (Field("prompt", Kind.STRING, ""),),
    ),
    Op("status", "Tell what the daemon is doing.", (), (_STATE,)),
    Op(
        "metrics",
        "Tell all metrics.",
        (Field("format", Kind.STRING, "", "json", choices=("json", "prometheus")),),
        (
            Field("metrics", Kind.OBJECT, "format json: name to value"),
            Field("text", Kind.STRING, "format prometheus: the exposition text"),
        ),
    ),
    Op(
        "health",
        "Tell whether generate requests would be taken now.",
        (),
        (_STATE, Field("is_ready", Kind.BOOLEAN, ""), Field("protocol", Kind.INTEGER, "version of this protocol")),
    ),
    Op(
        "sessions",
        "List the requests in flight.",
        (),
        (Field("sessions", Kind.LIST, "one object per request, with `conn` and `request_id`"),),
    ),
    Op(
        "digest",
        "Tell which beginnings are cached and how long a request would wait, for routers. Trusted peers only "
        "(`access.trusted_uids`).",
        (
            _KEY,
            Field(
                "since",
                Kind.INTEGER,
                "`generation` of the last reply: only differences are returned, where they are known",
                None,
                0,
            ),
            Field("n_pages", Kind.INTEGER, "most pages to return: the most recently used ones", 4096, 0, 65_536),
        ),
        (
            _STATE,
            Field("fingerprint", Kind.STRING, "of the model's weights, as in `props`"),
            Field("template", Kind.STRING, "hash of the chat templates; empty: the model has none"),
            Field("page", Kind.INTEGER, "tokens of a page: 64"),
            Field("generation", Kind.INTEGER, "number of this set of pages"),
            Field("is_whole", Kind.BOOLEAN, "`added` are all pages; false: the differences to `since`"),
            Field("added", Kind.LIST, "hashes of cached pages"),
            Field("removed", Kind.LIST, "hashes of pages that went"),
            Field(
                "wait_ms",
                Kind.OBJECT,
                "by priority: wait of a request that came now, until its prompt is read",
            ),
            Field("queued", Kind.OBJECT, "by priority: requests that wait"),
            Field("active", Kind.INTEGER, "requests that are read or answered"),
            Field("free_pages", Kind.INTEGER, "pages of KV that nobody reserved"),
            Field("total_pages", Kind.INTEGER, "pages of KV in all"),
            Field("n_seq_max", Kind.INTEGER, "requests that can be answered at once"),
            Field("max_requests", Kind.INTEGER, "requests that it takes at once, those that wait included"),
            Field("token_ms", Kind.NUMBER, "predicted time to read one prompt token"),
        ),
    ),
    Op(
        "props",
        "Tell what a program that writes prompts, or describes models, must know.",
        (),
        (
            Field(
                "model",
                Kind.OBJECT,
                "name, path, fingerprint, arch, description, n_params, n_bytes, n_ctx_train, n_vocab, n_embd, "
                "vocab_type",
            ),
            Field("n_ctx_seq", Kind.INTEGER, "tokens that one request can hold, prompt and answer together"),
            Field("n_seq_max", Kind.INTEGER, "requests that can be answered at once"),
            Field("n_embd_out", Kind.INTEGER, "numbers of an embedding; null: the engine makes none"),
            Field("n_input", Kind.INTEGER, "most tokens of an input to `embed`; null likewise"),
            Field("chat_template", Kind.STRING, "Jinja; null: the model has none"),
            Field("chat_template_tool_use", Kind.STRING, "another one for chats with tools; null: there is none"),
            Field(
                "adapters",
                Kind.LIST,
                "LoRA adapters that `lora` may name: `id`, `path`, the `scale` that requests without `lora` get, and "
                "the `task_name` and `prompt_prefix` of the file",
            ),
            Field("special", Kind.OBJECT, "special tokens by name (bos, eos, eot, fim_pre, …): `id` and `text`"),
            Field("add_bos", Kind.BOOLEAN, "`prompt` gets the bos token in front"),
            Field("add_eos", Kind.BOOLEAN, "and the eos token at its end"),
            Field("limits", Kind.OBJECT, "max_tokens, default_max_tokens, max_prompt_bytes: of your requests"),
            Field(
                "capabilities",
                Kind.OBJECT,
                "operations, generate (its fields), completion, chat, infill, embeddings, pooling (of embed by "
                "itself), poolings, rerank, constraints (the kinds)",
            ),
            Field(
                "generation",
                Kind.INTEGER,
                "number of the configuration in use: grows when model or limits may have changed",
            ),
        ),
    ),
    Op(
        "drain",
        "Take no new work and let running streams finish. Idempotent.",
        (
            Field(
                "timeout_ms",
                Kind.NUMBER,
                "then end the rest with reason `draining`; absent: configured",
                None,
                0,
                86_400_000,
            ),
            Field(
                "then",
                Kind.STRING,
                "what follows; `stay` waits for undrain",
                "stay",
                choices=("stay", "exit", "reload"),
            ),
        ),
        (
            _STATE,
            Field("remaining", Kind.INTEGER, "requests that still run"),
            Field("estimate_ms", Kind.NUMBER, "until the last one ends"),
        ),
        is_admin=True,
    ),
    Op("undrain", "Take new work again.", (), (_STATE,), is_admin=True),
    Op(
        "reload",
        "Read the configuration again and apply it; on any failure the old one stays.",
        (
            Field("check", Kind.BOOLEAN, "only validate and show the difference", False),
            Field("model", Kind.STRING, "path of another model", None, 1, 4096),
        ),
        (
            Field("generation", Kind.INTEGER, "number of the configuration in use"),
            Field("changes", Kind.LIST, "options that differ: name, old, new, is_live"),
        ),
        is_admin=True,
    ),
    Op(
        "cache",
        "Look after the prefix cache.",
        (
            Field("action", Kind.STRING, "", "stats", choices=("list", "clear", "pin", "unpin", "stats")),
            Field("key", Kind.STRING, "entry, as `list` shows it; clear without it clears all", None, 1, 256),
        ),
        (
            Field("entries", Kind.LIST, "action list"),
            Field("cleared", Kind.INTEGER, "action clear: entries dropped"),
            Field("stats", Kind.OBJECT, "action stats"),
        ),
        is_admin=True,
    ),
    Op(
        "trace",
        "Record ticks for some seconds; the reply comes after that.",
        (
            Field("seconds", Kind.NUMBER, "", 2.0, 0.01, 60),
            Field(
                "format",
                Kind.STRING,
                "`chrome` draws every tick; `jsonl` holds what a replay needs",
                "chrome",
                choices=("chrome", "jsonl"),
            ),
        ),
        (
            Field("traceEvents", Kind.LIST, "format chrome: Chrome trace event format"),
            Field(
                "lines",
                Kind.LIST,
                "format jsonl: objects, one a line of the file that `python -m uma_core.trace replay` reads",
            ),
            Field("n_ticks", Kind.INTEGER, "ticks in the reply"),
            Field("n_left_out", Kind.INTEGER, "later ticks for which the reply had no room"),
        ),
        is_admin=True,
    ),
    Op(
        "help",
        "List the operations.",
        (),
        (Field("ops", Kind.LIST, ""), Field("protocol", Kind.INTEGER, "version of this protocol")),
    ),
)

OPS: dict[str, Op] = {op.name: op for op in _OPS}

TYPE_FIELD = Field("type", Kind.STRING, "names the operation", DEFAULT_OP)
ID_FIELD = Field("id", Kind.ID, "names the request in its events; generate without one gets one", low=1, high=128)
