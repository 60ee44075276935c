"""Every operation of the protocol, declared once: OPS drives decoding, `help`, docs/PROTOCOL.md and uma-ctl."""

from __future__ import annotations

from typing import NamedTuple

from uma_core.protocol.constraint import FIELD as CONSTRAINT
from uma_core.protocol.embed import EMBED_FIELDS, EMBED_REPLY, RERANK_FIELDS, RERANK_REPLY
from uma_core.protocol.fields import Field, Kind
from uma_core.protocol.sampling import SAMPLING_FIELDS
from uma_core.protocol.shared_fields import SHARED_FIELDS
from uma_core.types import PRIORITIES, Request

PROTOCOL_VERSION = 1
N_PREDICTION_MOST = 1 << 18  # characters, more than an answer has; limited because each token takes 150 bytes
# longest stop text or banned string, in characters: text that may still become one is held back from the reader
N_STOP_MOST = 1_024
N_STOPS_MOST = 32  # room for those that a chat template adds to a client's
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
    Field("prefix", Kind.STRING, "the text before the gap", is_required=True),
    Field("suffix", Kind.STRING, "the text after the gap", is_required=True),
    Field(
        "extra",
        Kind.OBJECTS,
        "other files, the most relevant last: the first ones are left out if the context is too small",
        (),
        0,
        256,
        fields=_FILE,
    ),
)
_INPUTS = (
    Field(
        "prompt", Kind.MIXED, "text to continue; give exactly one of `prompt`, `tokens`, `messages`, `infill`", low=1
    ),
    Field("tokens", Kind.INTEGERS, "the prompt as token ids", low=1),
    Field("messages", Kind.MESSAGES, "a chat; the model's own template turns it into a prompt"),
    Field(
        "suffix", Kind.STRING, "text after the gap that follows `prompt` or `tokens`; needs a fill-in-the-middle model"
    ),
    Field("infill", Kind.OBJECT, "a gap in a file; needs a fill-in-the-middle model", fields=_INFILL),
)
_WITH_PIECES = Field("with_pieces", Kind.BOOLEAN, "also return the text of each token", False)
_PIECES = Field(
    "pieces",
    Kind.LIST,
    "with `with_pieces`, for each token: its text, or an array of its bytes if they are not valid UTF-8 on their own",
)

_REASONING = (
    Field("start", Kind.STRING, "text that begins a thought; empty: the answer begins with a thought", "", 0, 256),
    Field("end", Kind.STRING, "text that ends a thought", is_required=True, low=1, high=256),
    Field(
        "budget_tokens",
        Kind.INTEGER,
        "most tokens of thinking; then the answer must continue with `message` and `end`, as soon as a `constraint` "
        "allows it; absent: no limit",
        None,
        0,
        1 << 30,
    ),
    Field("message", Kind.STRING, "text to put before a forced `end`", "", 0, 1024),
)

_LORA = (
    Field(
        "id",
        Kind.STRING,
        "id of a configured adapter; `props` lists them as `adapters`",
        is_required=True,
        low=1,
        high=64,
    ),
    Field("scale", Kind.NUMBER, "strength of the adapter; 0: not applied", 1.0, -1000, 1000),
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
        "number of answers, at most `n_seq_max` of `props`",
        _REQUEST.n,
        1,
        1024,
    ),
    Field(
        "best_of",
        Kind.INTEGER,
        "number of answers to generate; the `n` with the likeliest tokens are returned; not with `stream`",
        None,
        1,
        1024,
    ),
    Field("echo", Kind.BOOLEAN, "begin each answer with its prompt; not with `messages` or `infill`", _REQUEST.echo),
    *SAMPLING_FIELDS,
    Field("stop", Kind.STRINGS, "end the answer before any of these texts", high=N_STOPS_MOST, each_high=N_STOP_MOST),
    Field(
        "banned_strings",
        Kind.STRINGS,
        "texts that the answer never contains: when one would appear, another token is drawn",
        high=64,
        each_high=N_STOP_MOST,
    ),
    Field("stop_token_ids", Kind.INTEGERS, "end the answer before any of these tokens", low=0, high=64),
    Field(
        "logprobs",
        Kind.INTEGER,
        "return the log probability of each token and of this many alternatives; absent: none",
        None,
        0,
        20,
    ),
    Field(
        "prompt_logprobs",
        Kind.INTEGER,
        "the same for the prompt's tokens, in `prompt` events; the whole prompt is then computed, nothing restored",
        None,
        0,
        20,
    ),
    Field(
        "post_sampling_probs",
        Kind.BOOLEAN,
        "true: take `logprobs` from the candidates that the samplers left; false: from the model's own distribution",
        False,
    ),
    Field("stream", Kind.BOOLEAN, "false: no `token` events; `eos` has the text", _REQUEST.stream),
    Field("priority", Kind.STRING, "class of the request; absent: inferred", None, choices=PRIORITIES),
    Field("slo", Kind.OBJECT, "latency targets", None, fields=_SLO),
    Field("cache_prompt", Kind.BOOLEAN, "let later requests reuse this prompt's KV", _REQUEST.cache_prompt),
    Field("ignore_eos", Kind.BOOLEAN, "generate past the end-of-generation token", _REQUEST.ignore_eos),
    Field("timeout_ms", Kind.NUMBER, "end with reason `timeout` after this long; 0: never", 0, 0, 86_400_000),
    Field(
        "overflow",
        Kind.STRING,
        "what to do when the context is full; absent: as configured",
        None,
        choices=("error", "truncate-middle", "shift"),
    ),
    Field(
        "preserved_tokens",
        Kind.STRINGS,
        "texts of control tokens that may appear in the answer; other control tokens never do",
        high=256,
    ),
    Field("queue_updates", Kind.BOOLEAN, "send `queued` events", _REQUEST.queue_updates),
    Field("prompt_progress", Kind.BOOLEAN, "send `progress` events", _REQUEST.prompt_progress),
    CONSTRAINT,
    Field("reasoning", Kind.OBJECT, "count the tokens of thoughts separately, and limit them", None, fields=_REASONING),
    Field(
        "lora",
        Kind.OBJECTS,
        "use these LoRA adapters and no others; absent: as configured",
        None,
        0,
        64,
        fields=_LORA,
    ),
    Field(
        "prediction",
        Kind.STRING,
        "text that the answer may repeat in part: draft tokens are taken from it",
        "",
        0,
        N_PREDICTION_MOST,
    ),
    Field(
        "speculate",
        Kind.STRING,
        "source of draft tokens, which are verified several at a time: `lookup` drafts text that repeats, `draft` asks "
        "the draft model; absent: as configured",
        None,
        choices=("auto", "lookup", "draft", "off"),
    ),
    *SHARED_FIELDS,
)

_KEY = Field("key", Kind.STRING, "secret key of the hashes, in hexadecimal", None, 32, 128, is_required=True)

_STATE = Field("state", Kind.STRING, "", choices=("starting", "ready", "degraded", "draining", "stopping"))

_OPS = (
    Op("generate", "Generate text. Answered by `token` events and one `eos`, or by one `error`.", _GENERATE, ()),
    Op(
        "cancel",
        "End the generate, embed or rerank request that `id` names. The `eos` of generate has the reason `cancelled`; "
        "the others end with the error `cancelled`.",
        (
            Field(
                "conn",
                Kind.INTEGER,
                "connection of the request, as `sessions` shows it; absent: this connection",
                None,
                0,
            ),
            Field("index", Kind.INTEGER, "end only the answer with this index; absent: all of them", None, 0),
        ),
        (
            Field(
                "found",
                Kind.BOOLEAN,
                "false: no such request with this id is in flight, or it has no answer with this index",
            ),
        ),
    ),
    Op(
        "embed",
        "Compute the embedding of each input. Answered by one `reply` when all vectors are ready, or by one `error`.",
        EMBED_FIELDS,
        EMBED_REPLY,
    ),
    Op(
        "rerank",
        "Score documents by how well they answer a query. Needs a reranker: a model whose file sets pooling to rank.",
        RERANK_FIELDS,
        RERANK_REPLY,
    ),
    Op(
        "tokenize",
        "Turn text into token ids.",
        (
            Field("content", Kind.STRING, "", is_required=True),
            Field(
                "add_special", Kind.BOOLEAN, "add the tokens that the model puts around a prompt, such as BOS", False
            ),
            Field("parse_special", Kind.BOOLEAN, "false: read the text of a control token as plain text", True),
            _WITH_PIECES,
        ),
        (Field("tokens", Kind.LIST, "ids"), _PIECES),
    ),
    Op(
        "detokenize",
        "Turn token ids into text.",
        (
            Field("tokens", Kind.INTEGERS, "", is_required=True, low=0),
            Field("unparse_special", Kind.BOOLEAN, "false: leave out the text of control tokens", True),
            _WITH_PIECES,
        ),
        (Field("content", Kind.STRING, "the tokens' bytes as text; bytes that are not UTF-8 become U+FFFD"), _PIECES),
    ),
    Op(
        "count",
        "Count the tokens that generate would read: its `prompt_tokens`. Takes generate's input fields.",
        _INPUTS,
        (Field("n_tokens", Kind.INTEGER, ""),),
    ),
    Op(
        "prefix_hashes",
        "Return the hashes of the tokens that generate would read, one per whole page of 64 tokens, as `digest` does. "
        "Takes generate's input fields.",
        (*_INPUTS, _KEY),
        (
            Field("n_tokens", Kind.INTEGER, ""),
            Field(
                "hashes", Kind.LIST, "strings of 16 hexadecimal digits; each covers all tokens to the end of its page"
            ),
        ),
    ),
    Op(
        "apply_template",
        "Turn a chat into a prompt with the model's own template. Generate gets the same tokens from this `prompt` as "
        "from the messages.",
        (
            Field("messages", Kind.MESSAGES, "", is_required=True),
            Field("add_generation_prompt", Kind.BOOLEAN, "end with the text that begins an answer", True),
        ),
        (Field("prompt", Kind.STRING, ""),),
    ),
    Op("status", "Report what the daemon is doing.", (), (_STATE,)),
    Op(
        "metrics",
        "Return all metrics.",
        (Field("format", Kind.STRING, "", "json", choices=("json", "prometheus")),),
        (
            Field("metrics", Kind.OBJECT, "format json: name to value"),
            Field("text", Kind.STRING, "format prometheus: the exposition text"),
        ),
    ),
    Op(
        "health",
        "Report whether generate requests would be accepted now.",
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
        "Tell routers which prefixes are cached and how long a request would wait. Trusted peers only "
        "(`access.trusted_uids`).",
        (
            _KEY,
            Field(
                "since",
                Kind.INTEGER,
                "`generation` of the last reply: only the changes since then are returned, if they are known",
                None,
                0,
            ),
            Field("n_pages", Kind.INTEGER, "most pages to return: the most recently used ones", 4096, 0, 65_536),
        ),
        (
            _STATE,
            Field("fingerprint", Kind.STRING, "fingerprint of the model's weights, as in `props`"),
            Field("template", Kind.STRING, "hash of the chat templates; empty: the model has none"),
            Field("page", Kind.INTEGER, "tokens per page: 64"),
            Field("generation", Kind.INTEGER, "number of this set of pages"),
            Field(
                "is_whole",
                Kind.BOOLEAN,
                "true: `added` has all pages; false: `added` and `removed` are the changes since `since`",
            ),
            Field("added", Kind.LIST, "hashes of cached pages"),
            Field("removed", Kind.LIST, "hashes of pages that are no longer cached"),
            Field(
                "wait_ms",
                Kind.OBJECT,
                "by priority: predicted time until prefill of a prompt that arrives now begins",
            ),
            Field("queued", Kind.OBJECT, "by priority: number of waiting requests"),
            Field("active", Kind.INTEGER, "requests whose prompt is being read or whose answer is being generated"),
            Field("free_pages", Kind.INTEGER, "pages of KV that are not reserved"),
            Field("total_pages", Kind.INTEGER, "pages of KV in all"),
            Field("n_seq_max", Kind.INTEGER, "requests that can be answered at once"),
            Field("max_requests", Kind.INTEGER, "most requests that the daemon holds at once, waiting ones included"),
            Field("token_ms", Kind.NUMBER, "predicted time to read one prompt token"),
        ),
    ),
    Op(
        "props",
        "Describe the model and the daemon to programs that write prompts or list models.",
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
            Field("n_embd_out", Kind.INTEGER, "numbers in an embedding; null: the engine makes no embeddings"),
            Field("n_input", Kind.INTEGER, "most tokens of one input to `embed`; null: the engine makes no embeddings"),
            Field("chat_template", Kind.STRING, "Jinja template; null: the model has none"),
            Field(
                "chat_template_tool_use", Kind.STRING, "Jinja template for chats with tools; null: the model has none"
            ),
            Field(
                "adapters",
                Kind.LIST,
                "LoRA adapters that `lora` may name: `id`, `path`, the `scale` that requests without `lora` get, and "
                "the `task_name` and `prompt_prefix` of the file",
            ),
            Field("special", Kind.OBJECT, "special tokens by name (bos, eos, eot, fim_pre, …): `id` and `text`"),
            Field("add_bos", Kind.BOOLEAN, "the daemon puts the bos token before a `prompt`"),
            Field("add_eos", Kind.BOOLEAN, "the daemon puts the eos token after it"),
            Field(
                "limits",
                Kind.OBJECT,
                "max_tokens, default_max_tokens, max_prompt_bytes, overflow: limits on your requests",
            ),
            Field(
                "capabilities",
                Kind.OBJECT,
                "operations, generate (its fields), completion, chat, infill, embeddings, pooling (embed's "
                "default), poolings, rerank, constraints (the kinds)",
            ),
            Field(
                "generation",
                Kind.INTEGER,
                "number of the configuration in use: it grows when the model or limits may have changed",
            ),
        ),
    ),
    Op(
        "drain",
        "Accept no new work and let running streams finish. Idempotent.",
        (
            Field(
                "timeout_ms",
                Kind.NUMBER,
                "after this long, end the remaining requests with reason `draining`; absent: as configured",
                None,
                0,
                86_400_000,
            ),
            Field(
                "then",
                Kind.STRING,
                "what to do afterwards; `stay` waits for undrain",
                "stay",
                choices=("stay", "exit", "reload"),
            ),
        ),
        (
            _STATE,
            Field("remaining", Kind.INTEGER, "requests that are still running"),
            Field("estimate_ms", Kind.NUMBER, "estimated time until the last one ends"),
        ),
        is_admin=True,
    ),
    Op("undrain", "Accept new work again.", (), (_STATE,), is_admin=True),
    Op(
        "reload",
        "Read the configuration again and apply it; on any failure the old one stays in use.",
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
        "Inspect or change the prefix cache.",
        (
            Field("action", Kind.STRING, "", "stats", choices=("list", "clear", "pin", "unpin", "stats")),
            Field("key", Kind.STRING, "entry, as `list` shows it; absent: `clear` clears all entries", None, 1, 256),
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
        "Record ticks for `seconds`, then reply with them.",
        (
            Field("seconds", Kind.NUMBER, "", 2.0, 0.01, 60),
            Field(
                "format",
                Kind.STRING,
                "`chrome`: a timeline of every tick; `jsonl`: what a replay needs",
                "chrome",
                choices=("chrome", "jsonl"),
            ),
        ),
        (
            Field("traceEvents", Kind.LIST, "format chrome: Chrome trace event format"),
            Field(
                "lines",
                Kind.LIST,
                "format jsonl: objects, one per line of the file that `python -m uma_core.trace replay` reads",
            ),
            Field("n_ticks", Kind.INTEGER, "ticks in the reply"),
            Field("n_left_out", Kind.INTEGER, "later ticks that did not fit into the reply"),
            Field(
                "is_cut_short", Kind.BOOLEAN, "true: the daemon stopped before `seconds` were over; otherwise absent"
            ),
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
ID_FIELD = Field(
    "id", Kind.ID, "names the request in its events; a generate request without an id gets one", low=1, high=128
)
