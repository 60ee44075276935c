"""Streams that send request after request: each must be answered completely."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import Any

from perf.reliability.tally import Tally
from uma_ctl.client import Client
from uma_ctl.errors import CtlError

SUBJECTS = ("shell", "kernel", "file", "network", "package", "library", "process", "socket", "compiler", "directory")


def prompt_of(rng: random.Random, n_words: int = 0) -> str:
    """Return a prompt that the small models can continue."""
    words = " ".join(rng.choice(SUBJECTS) for _ in range(n_words))
    return f"{words} The {rng.choice(SUBJECTS)} is".strip()


@dataclass
class Taken:
    """One stream that has ended."""

    prompt: str
    tokens: list[int]
    reason: str
    n_wanted: int
    n_counted: int  # by the daemon's count
    has_reloaded: bool  # a reload began or ended during it


@dataclass
class Load:
    """Continuous streams, each on its own connection, until `stop`."""

    path: str
    n_streams: int
    n_tokens: int
    tally: Tally
    taken: list[Taken] = field(default_factory=list)
    epoch: int = 0  # increased by the trial when a reload begins and when it ends
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        self._threads = [
            threading.Thread(target=self._run, args=(seed,), daemon=True) for seed in range(self.n_streams)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the running streams end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            if thread.is_alive():
                self.tally.violate("a stream did not end")

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._stop.is_set():
            try:
                with Client(self.path, 60) as client:
                    self._ask(client, prompt_of(rng))
            except CtlError as error:
                self.tally.violate(f"a continuous stream was lost: {error}")

    def _ask(self, client: Client, prompt: str) -> None:
        epoch = self.epoch
        request: dict[str, Any] = {
            "id": client.new_id(),
            "prompt": prompt,
            "max_tokens": self.n_tokens,
            "ignore_eos": True,
        }
        tokens = []
        for event in client.generate(request):
            if event["event"] == "token":
                tokens.append(event["token_id"])
        self.tally.add(f"final/{event.get('reason') or event.get('name')}")
        if event["event"] == "error":
            if not event["detail"].get("retry_after_ms"):
                self.tally.violate(f"a continuous stream was refused without retry_after_ms: {event}")
            self._stop.wait(event["detail"].get("retry_after_ms", 0) / 1000)
            return
        n_counted = event["usage"]["completion_tokens"]
        self.taken.append(Taken(prompt, tokens, event["reason"], self.n_tokens, n_counted, epoch != self.epoch))
