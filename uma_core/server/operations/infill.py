"""Fill-in-the-middle prompts, laid out as in llama.cpp's server (tools/server/server-common.cpp,
format_prompt_infill).

[FIM_REP]project [FIM_SEP]name0 text0 ... [FIM_SEP]name [FIM_PRE]prefix[FIM_SUF]suffix[FIM_MID], as in arXiv 2409.12186.
"""

from __future__ import annotations

from uma_core.errors import ErrorCode, UmaError
from uma_core.executor.overflow import room_for_answer
from uma_core.server.io.ports import TextPort
from uma_core.types import Infill, TokenId

SNIPPET = "\n\n--- snippet ---\n\n"  # before an extra file, if the model has no token that separates files
PROJECT, FILE = "myproject\n", "filename\n"
PREFIX_SHARE = 0.75  # of the room for prefix and suffix, if both are too long
N_MARKERS = 4  # special tokens around and between the parts


def gap_tokens(text: TextPort, before: list[TokenId], after: list[TokenId]) -> list[TokenId]:
    """Return the tokens of a prompt for a gap between two texts. Raises: UNSUPPORTED."""
    pre, suf, mid = _special(text, "fim_pre"), _special(text, "fim_suf"), _special(text, "fim_mid")
    return [*_bos(text), pre, *before, suf, *after, mid]


def infill_tokens(text: TextPort, infill: Infill, n_answer: int | None) -> list[TokenId]:
    """Return the tokens of a prompt for a gap in a file of a project.

    Text that does not fit into the context is left out, extra files first. Raises: UNSUPPORTED.
    """
    before, after = (text.tokenize(part, False, False) for part in (infill.prefix, infill.suffix))
    extra = _extra(text, infill)
    n_ctx = text.info.n_ctx_seq
    room = max(0, n_ctx - room_for_answer(n_ctx, n_answer or n_ctx) - N_MARKERS)
    if len(before) + len(after) > room:
        n_before = min(len(before), max(int(room * PREFIX_SHARE), room - len(after)))
        before = before[len(before) - n_before :]
        after = after[: room - n_before]
    n_extra = min(len(extra), room - len(before) - len(after))
    bos, gap = _bos(text), gap_tokens(text, before, after)
    return [*bos, *extra[len(extra) - n_extra :], *gap[len(bos) :]]


def _extra(text: TextPort, infill: Infill) -> list[TokenId]:
    special = text.facts().special
    tokens: list[TokenId] = []
    if "fim_rep" in special:
        tokens += [special["fim_rep"][0], *text.tokenize(PROJECT, False, False)]
    for name, content in infill.extra:
        if "fim_sep" in special:
            tokens += [special["fim_sep"][0], *text.tokenize(name + "\n", False, False)]
        else:
            tokens += text.tokenize(SNIPPET, False, False)
        tokens += text.tokenize(content, False, False)
    if "fim_sep" in special:
        tokens += [special["fim_sep"][0], *text.tokenize(FILE, False, False)]
    return tokens


def _special(text: TextPort, name: str) -> TokenId:
    special = text.facts().special
    if name not in special:
        raise UmaError(ErrorCode.UNSUPPORTED, "this model has no tokens for filling in a gap", token=name)
    return special[name][0]


def _bos(text: TextPort) -> list[TokenId]:
    facts = text.facts()
    return [facts.special["bos"][0]] if facts.add_bos and "bos" in facts.special else []
