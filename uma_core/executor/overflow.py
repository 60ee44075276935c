"""What to do when a prompt, or prompt and answer, exceed the context. Pure.

Sources: the head stays because models rely on the first positions ("attention sinks", arXiv 2309.17453) and on the
system message. Of the rest, the latest part stays.
"""

from __future__ import annotations

import numpy as np

ERROR, TRUNCATE, SHIFT = "error", "truncate-middle", "shift"
N_SINK = 4  # tokens kept at the front if no message ends early enough
ANSWER_SHARE = 4  # 1 / this of the context stays free for the answer to a prompt that is cut, unless it needs less


def room_for_answer(n_ctx: int, n_wanted: int) -> int:
    """Return the number of cells that a truncated prompt leaves to its answer."""
    return max(1, min(n_wanted, n_ctx // ANSWER_SHARE))


def head_of(message_ends: tuple[int, ...], n_most: int) -> int:
    """Return how many tokens at the front are never dropped: the first message if it has at most `n_most` tokens, else
    at most N_SINK.
    """
    first = message_ends[0] if message_ends else 0
    return first if 0 < first <= n_most else min(N_SINK, n_most)


def without_middle(
    tokens: np.ndarray, message_ends: tuple[int, ...], n_kept: int
) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the head and the tail of a prompt, `n_kept` tokens in all, and the message ends that remain."""
    n_head = head_of(message_ends, n_kept // 2)
    n_dropped = len(tokens) - n_kept
    ends = [
        end if end <= n_head else end - n_dropped for end in message_ends if end <= n_head or end >= n_head + n_dropped
    ]
    return np.concatenate([tokens[:n_head], tokens[n_head + n_dropped :]]), tuple(dict.fromkeys(ends))


def without_oldest(tokens: np.ndarray, n_head: int) -> np.ndarray:
    """Return a full context's tokens without the older half of the part after the head."""
    n_tail = (len(tokens) - n_head) // 2
    return np.concatenate([tokens[:n_head], tokens[len(tokens) - n_tail :]])


def newest(tokens: np.ndarray, n_head: int, n_ctx: int) -> np.ndarray:
    """Return the tokens of a text that shifts of the context would leave. The last token is not computed yet."""
    n_tail = (n_ctx - n_head) // 2 + 1
    return tokens if len(tokens) <= n_ctx else np.concatenate([tokens[:n_head], tokens[len(tokens) - n_tail :]])
