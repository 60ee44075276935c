"""What a client account was answered lately: its next answers may say it again.

Never across accounts: how fast an answer comes would tell one client what another was answered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from uma_core.speculation.suffix import SuffixText
from uma_core.types import TokenId

N_ACCOUNTS = 64  # the ones that ended an answer last


class _Account:
    """Two texts: when the newer one is full, the older one is forgotten. Looking up and forgetting both stay short."""

    def __init__(self) -> None:
        self.texts: tuple[SuffixText, ...] = (SuffixText(),)
        self.n_answers = 0


class History:
    """Owned by the compute thread. Holds up to `n_tokens` tokens an account (130 bytes each); 0: nothing."""

    def __init__(self, n_tokens: int) -> None:
        self._n_tokens = n_tokens
        self._accounts: OrderedDict[int, _Account] = OrderedDict()

    def add(self, client: int, answer: Sequence[TokenId]) -> None:
        """An answer has ended."""
        if not self._n_tokens or not answer:
            return
        account = self._accounts.setdefault(client, _Account())
        self._accounts.move_to_end(client)
        if account.texts[0].n and account.texts[0].n + len(answer) > self._n_tokens // 2:
            account.texts = (SuffixText(), account.texts[0])
        account.n_answers += 1
        separator = -1 - account.n_answers
        account.texts[0].extend(np.array([*answer[-self._n_tokens // 2 :], separator], np.int32))
        while len(self._accounts) > N_ACCOUNTS:
            self._accounts.popitem(last=False)

    def texts(self, client: int) -> tuple[SuffixText, ...]:
        """The newest first."""
        account = self._accounts.get(client)
        return account.texts if account is not None else ()
