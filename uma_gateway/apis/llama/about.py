"""llama-server's reports about itself (health, properties, slots, metrics), and its form of errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from uma_gateway.apis.llama.completion import SHOWN
from uma_gateway.chat.errors import ChatError
from uma_gateway.errors import GatewayError, Kind, unsupported
from uma_gateway.exchange import Exchange
from uma_gateway.fields import PARAMS, RANDOM_SEED, UNLIMITED
from uma_gateway.model import Model


async def on_health(exchange: Exchange) -> None:
    """Return 200 while requests are accepted, else 503: for load balancers, and for programs that wait until the daemon
    is ready.
    """
    health = await exchange.gateway.daemon.call("health")
    if health["is_ready"]:
        await exchange.send_json({"status": "ok"})
        return
    error = GatewayError(Kind.UNAVAILABLE, f"the daemon is not ready: {health['state']}")
    await exchange.send_json({"status": health["state"], **error_object(error)}, error.status)


async def on_props(exchange: Exchange) -> None:
    model = await exchange.gateway.model(is_new=True)
    props = model.props
    await exchange.send_json(
        {
            "default_generation_settings": {"n_ctx": model.n_ctx, "params": default_params(exchange)},
            "total_slots": props["n_seq_max"],
            "model_alias": model.name,
            "model_path": props["model"]["path"],
            "modalities": {"vision": False, "audio": False, "video": False},
            "chat_template": model.chat_template,
            **({"chat_template_tool_use": props["chat_template_tool_use"]} if props["chat_template_tool_use"] else {}),
            "chat_template_caps": await _template_caps(model),
            "bos_token": model.special("bos"),
            "eos_token": model.special("eos"),
            "build_info": model.system_fingerprint,
            "is_sleeping": False,
            "endpoint_slots": True,
            "endpoint_props": False,  # whether they can be set
            "endpoint_metrics": True,
            "ui": True,
        }
    )


async def on_set_props(exchange: Exchange) -> None:
    raise unsupported("properties are not set here: they are the daemon's configuration")


async def _template_caps(model: Model) -> dict[str, bool]:
    """Return the template's abilities. Empty if the model has no usable template; chat requests get the reason as their
    error.
    """
    try:
        return (await model.templates()).capabilities if model.has_chat else {}
    except ChatError:
        return {}


async def on_adapters(exchange: Exchange) -> None:
    """List the LoRA adapters that requests may name by `id` or by `name`. `scale` applies to requests without
    `lora`.
    """
    model = await exchange.gateway.model(is_new=True)
    adapters = model.props.get("adapters", ())
    await exchange.send_json([{**each, "id": i, "name": each["id"]} for i, each in enumerate(adapters)])


async def on_set_adapters(exchange: Exchange) -> None:
    """Refuse to set scales. In llama-server this changes the answers of all clients, which only the operator may do
    here.
    """
    message = (
        "scales for everybody are configured (engine.lora_scale, then a reload); a request names its own with `lora`"
    )
    raise unsupported(message, "scale")


def default_params(exchange: Exchange) -> dict[str, Any]:
    answers = exchange.gateway.config.answers
    n_predict = answers.max_tokens or UNLIMITED
    return {
        **{param.name: param.neutral for param in PARAMS if param.name in SHOWN},
        "temperature": answers.temperature,
        "top_k": answers.top_k,
        "top_p": answers.top_p,
        "min_p": answers.min_p,
        "n_predict": n_predict,
        "max_tokens": n_predict,
        "seed": RANDOM_SEED,
        "n_probs": 0,
        "stream": False,
        "lora": [],
    }


def error_object(error: GatewayError) -> dict[str, Any]:
    """Return an error in llama-server's form: the body has the status too."""
    return {"error": {"code": error.status, "message": error.message, "type": error.kind.type, **error.extra}}


async def on_slots(exchange: Exchange) -> None:
    """Return the daemon's requests as llama-server shows its slots: one row for each sequence, busy ones first."""
    model, busy = await exchange.gateway.model(), await _busy(exchange)
    speculation = (await exchange.gateway.daemon.call("status")).get("speculation", {})
    drafts = speculation.get("mode", "off") != "off"
    rows = [slot_object(i, model.n_ctx, row, drafts) for i, row in enumerate(busy)]
    rows += [slot_object(i, model.n_ctx, None, drafts) for i in range(len(rows), model.props["n_seq_max"])]
    if "fail_on_no_slot" in exchange.query and len(busy) >= len(rows):
        raise GatewayError(Kind.UNAVAILABLE, "no slot available", code="no_slot_available")
    await exchange.send_json(rows)


async def _busy(exchange: Exchange) -> list[dict[str, Any]]:
    """Return the requests that are being computed, as `sessions` lists them."""
    sessions = (await exchange.gateway.daemon.call("sessions"))["sessions"]
    return [row for row in sessions if row["phase"] in ("prefill", "decode")]


async def on_slot(exchange: Exchange) -> None:
    raise unsupported("there are no slots to save, restore or erase: the prefix cache keeps prompts automatically")


def slot_object(number: int, n_ctx: int, row: dict[str, Any] | None, drafts: bool) -> dict[str, Any]:
    """Return one slot. It contains nothing of a prompt."""
    made: dict[str, Any] = {"id": number, "n_ctx": n_ctx, "speculative": drafts, "is_processing": row is not None}
    if row is not None:
        made |= {
            "id_task": row["request_id"],
            "n_prompt_tokens": row["prompt_tokens"],
            "n_prompt_tokens_processed": row["prefilled_tokens"],
            "n_prompt_tokens_cache": row["cached_tokens"],
            "next_token": [
                {
                    "has_next_token": True,
                    "n_decoded": row["completion_tokens"],
                    "n_remain": row["max_tokens"] - row["completion_tokens"],
                }
            ],
        }
    return made


BUSY = "busy"  # number of requests that are being computed, which is no metric of ours


class Theirs(NamedTuple):
    """A metric under llama-server's name. `value` computes it from our metrics, by their names, and `BUSY`."""

    name: str
    kind: str
    help: str
    value: Callable[[Mapping[str, float]], float]


def sums(text: str) -> dict[str, float]:
    """Return each metric of a text in Prometheus's form, summed over its labels."""
    found: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if line and line[0] != "#":
            found[line.partition("{")[0].partition(" ")[0].removeprefix("uma_")] += float(line.rpartition(" ")[2])
    return found


def _per(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else 0.0


THEIRS = (
    Theirs("requests_processing", "gauge", "Requests being processed.", itemgetter(BUSY)),
    Theirs("prompt_tokens_total", "counter", "Prompt tokens processed.", itemgetter("prefill_tokens_total")),
    Theirs(
        "prompt_tokens_cached_total",
        "counter",
        "Prompt tokens that the cache had.",
        itemgetter("cache_tokens_saved_total"),
    ),
    Theirs("prompt_seconds_total", "counter", "Time of reading prompts.", itemgetter("prompt_seconds_total")),
    Theirs("tokens_predicted_total", "counter", "Generated tokens.", itemgetter("tokens_generated_total")),
    Theirs(
        "tokens_predicted_seconds_total", "counter", "Time of generating tokens.", itemgetter("inter_token_seconds_sum")
    ),
    Theirs("n_decode_total", "counter", "Calls of llama_decode.", itemgetter("batch_calls_total")),
    Theirs(
        "spec_decode_num_draft_tokens_total",
        "counter",
        "Draft tokens that were verified.",
        itemgetter("draft_tokens_total"),
    ),
    Theirs(
        "spec_decode_num_accepted_tokens_total",
        "counter",
        "Draft tokens that were accepted.",
        itemgetter("accepted_draft_tokens_total"),
    ),
    Theirs(
        "prompt_tokens_seconds",
        "gauge",
        "Prompt tokens a second.",
        lambda ours: _per(ours["prefill_tokens_total"], ours["prompt_seconds_total"]),
    ),
    Theirs(
        "predicted_tokens_seconds",
        "gauge",
        "Generated tokens a second of a stream.",
        lambda ours: _per(ours["inter_token_seconds_count"], ours["inter_token_seconds_sum"]),
    ),
    Theirs("requests_deferred", "gauge", "Requests that wait.", itemgetter("queue_depth")),
)


def line_of(metric: Theirs, ours: Mapping[str, float]) -> str:
    return f"llamacpp:{metric.name} {metric.value(ours):.15g}"


async def on_metrics(exchange: Exchange) -> None:
    """Return the daemon's metrics in Prometheus's text form, and under llama-server's names those that its dashboards
    read.
    """
    text = (await exchange.gateway.daemon.call("metrics", format="prometheus"))["text"]
    ours = sums(text)
    ours[BUSY] = len(await _busy(exchange))
    lines = []
    for metric in THEIRS:
        name = f"llamacpp:{metric.name}"
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}", line_of(metric, ours)]
    started = str(exchange.gateway.started_at).encode()
    headers = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8"), (b"process-start-time-unix", started)]
    await exchange.send_bytes(200, (text.rstrip("\n") + "\n" + "\n".join(lines) + "\n").encode(), headers)
