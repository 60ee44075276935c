"""Recent answers to a client account, parts of which its next answers may repeat.

Never shared across accounts: an answer's speed would reveal another client's answers.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

import numpy as np

from uma_core.speculation.suffix import N_FEED, SuffixText
from uma_core.types import TokenId

# Most accounts to keep, the most recent ones. At 150 bytes a token and the default of 32,768 tokens each, they make 310
# MB at most.
N_ACCOUNTS = 64


class _Account:
    """Two texts: when the newer one is full, the older one is dropped. This keeps both lookups and dropping fast."""

    def __init__(self) -> None:
        self.texts: tuple[SuffixText, ...] = (SuffixText(),)
        self.n_answers = 0


class History:
    """Answers of all accounts. Owned by the compute thread. Holds up to `n_tokens` tokens per account (150 bytes each);
    0: none.
    """

    def __init__(self, n_tokens: int) -> None:
        self._n_tokens = n_tokens
        self._accounts: OrderedDict[int, _Account] = OrderedDict()
        self._waiting: deque[tuple[SuffixText, np.ndarray]] = deque()  # tokens not added yet

    def add(self, client: int, answer: Sequence[TokenId]) -> None:
        """Add an answer that has ended. Its first part is added at once; `feed` adds the rest, so that no tick waits
        for it.
        """
        if not self._n_tokens or not answer:
            return
        account = self._accounts.setdefault(client, _Account())
        self._accounts.move_to_end(client)
        n_waiting = sum(len(tokens) for text, tokens in self._waiting if text is account.texts[0])
        n_held = account.texts[0].n + n_waiting
        if n_held and n_held + len(answer) > self._n_tokens // 2:
            account.texts = (SuffixText(), account.texts[0])
        account.n_answers += 1
        separator = -1 - account.n_answers
        tokens = np.array([*answer[-self._n_tokens // 2 :], separator], np.int32)
        self._waiting.append((account.texts[0], tokens))
        self.feed()
        while len(self._accounts) > N_ACCOUNTS:
            self._accounts.popitem(last=False)

    def feed(self) -> None:
        """Add some of the waiting tokens, in a fraction of a millisecond."""
        if self._waiting:
            text, tokens = self._waiting.popleft()
            text.extend(tokens[:N_FEED])
            if len(tokens) > N_FEED:
                self._waiting.appendleft((text, tokens[N_FEED:]))

    def texts(self, client: int) -> tuple[SuffixText, ...]:
        """Return the account's texts, the newest first."""
        account = self._accounts.get(client)
        return account.texts if account is not None else ()
