"""The sampling fields of a generate request, and their conversion to SamplingParams."""

from __future__ import annotations

import math
from typing import Any

from uma_core.protocol.fields import Field, Kind, bad_field
from uma_core.types import USUAL_ORDER, SamplingParams

SAMPLERS = (*USUAL_ORDER, "infill", "adaptive_p")
INFILL_TOP_K = 100  # most candidates for `infill`, which compares the texts of every pair
BIAS = 1_000_000  # a larger bias would leave no precision for the logit itself
_OFF = SamplingParams()


def _number(name: str, low: float, high: float, help: str, is_open_low: bool = False) -> Field:
    return Field(name, Kind.NUMBER, help, getattr(_OFF, name), low, high, is_open_low=is_open_low)


def _count(name: str, low: int, high: int, help: str) -> Field:
    return Field(name, Kind.INTEGER, help, getattr(_OFF, name), low, high)


SAMPLING_FIELDS = (
    _number("temperature", 0, 100, "sampling temperature; 0: take the likeliest token after biases and penalties"),
    _number("dynatemp_range", 0, 100, "the temperature varies by this much: it is higher when many tokens are likely"),
    _number("dynatemp_exponent", 0, 100, "exponent that maps entropy to temperature"),
    _count("top_k", 0, 1 << 30, "keep this many of the likeliest tokens; 0: all"),
    _number("top_p", 0, 1, "keep the likeliest tokens that sum to this probability", is_open_low=True),
    _number("min_p", 0, 1, "drop tokens whose probability is below this fraction of the likeliest token's"),
    _number("typical_p", 0, 1, "keep tokens of typical surprise that sum to this probability; 1: "
                               "off", is_open_low=True),
    _count("min_keep", 0, 1 << 30, "`top_p`, `min_p`, `typical_p` and XTC keep at least this many tokens"),
    _number("top_n_sigma", -1, 1000, "keep logits within this many standard deviations of the best; 0 or less: off"),
    _number("xtc_probability", 0, 1, "probability that XTC drops all tokens above its threshold but the last"),
    _number("xtc_threshold", 0, 1, "threshold of XTC, a probability; above 0.5: off"),
    _number("repeat_penalty", 0.01, 100, "divide the logits of recent tokens by this; 1: off"),
    _count("repeat_last_n", -1, 65_536, "number of tokens that count as recent; -1: the whole context"),
    _number("frequency_penalty", -100, 100, "subtract this from a token's logit for each of its recent occurrences"),
    _number("presence_penalty", -100, 100, "subtract this from the logit of each recent token"),
    _number("dry_multiplier", 0, 100, "DRY: penalty for a token that would repeat a sequence; 0: off"),
    _number("dry_base", 0, 100, "DRY: multiply the penalty by this for each further token of the sequence"),
    _count("dry_allowed_length", 0, 65_536, "DRY: no penalty for repeated sequences up to this long"),
    _count("dry_penalty_last_n", -1, 65_536, "DRY: number of last tokens to search; -1: the whole context, 0: off"),
    Field("dry_sequence_breakers", Kind.STRINGS, "DRY: repeated sequences do not extend past these texts",
          list(_OFF.dry_sequence_breakers), 0, 32),
    _count("mirostat", 0, 2, "1 or 2: use that version of Mirostat instead of `samplers`"),
    _number("mirostat_tau", 0, 100, "surprise that Mirostat aims for, in bits"),
    _number("mirostat_eta", 0, 1, "learning rate of Mirostat"),
    _number("adaptive_target", -1, 1, "probability that adaptive-p, the last sampler, prefers; below 0: off"),
    _number("adaptive_decay", 0, 0.99, "how much adaptive-p remembers of earlier tokens"),
    Field("samplers", Kind.STRINGS, "samplers to apply, in this order", list(USUAL_ORDER), 0, len(SAMPLERS),
    SAMPLERS),
    Field("seed", Kind.INTEGER, "seed of the sampler; absent: drawn per request", None, 0, 0xFFFFFFFF),
    Field("logit_bias", Kind.BIASES,
          "number to add to the logit of a token, or of all tokens of a text; false: never drawn", None, -BIAS, BIAS),
    _count("min_tokens", 0, 1 << 30, "the answer cannot end by itself before it has this many tokens"),
)  # fmt: skip


def to_params(args: dict[str, Any]) -> SamplingParams:
    """Build the parameters from checked fields. Raises: BAD_REQUEST if they contradict each other."""
    values = {field.name: args[field.name] for field in SAMPLING_FIELDS}
    order = tuple(values.pop("samplers"))
    if args["adaptive_target"] >= 0.0 and order == USUAL_ORDER:
        order += ("adaptive_p",)
    if len(set(order)) != len(order):
        raise bad_field("samplers", "must not name a sampler twice")
    _check_infill(order, args["top_k"])
    breakers = tuple(values.pop("dry_sequence_breakers"))
    bias = tuple((token, -math.inf if value is False else value) for token, value in values.pop("logit_bias") or ())
    return SamplingParams(
        **values,
        samplers=order,
        dry_sequence_breakers=breakers,
        logit_bias=bias,
        stop_token_ids=args["stop_token_ids"] or (),
        logprobs=args["logprobs"],
        post_sampling_probs=args["post_sampling_probs"],
    )


def _check_infill(order: tuple[str, ...], top_k: int) -> None:
    if "infill" not in order:
        return
    is_cut = "top_k" in order[: order.index("infill")] and 0 < top_k <= INFILL_TOP_K
    if not is_cut:
        raise bad_field("samplers", f"must have `top_k` before `infill`, and `top_k` must be from 1 to {INFILL_TOP_K}")
