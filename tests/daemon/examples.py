"""The worked examples of docs/PROTOCOL.md."""

from __future__ import annotations

import json
import re

from tests.daemon.support import ROOT, Event

BLOCK = re.compile(r"<!-- example: (\w+)(?:, by (.*?))? -->\n```(\w*)\n(.*?)\n```", re.DOTALL)
MODELS = {"embed": "an encoder", "rerank": "a reranker", "lora": "a model with adapters"}


class Example:
    """`lines`: what the client sends (True) and what it receives (False), in order."""

    def __init__(self, name: str, model: str, kind: str, body: str) -> None:
        self.name = name
        self.model = model or MODELS.get(name, "uma-tiny")
        if kind == "json":
            self.lines = [(True, json.loads(body))]
        elif kind == "jsonl":
            self.lines = [(i % 2 == 0, json.loads(line)) for i, line in enumerate(body.split("\n"))]
        else:
            parts = re.split(r"^(?=[→←] )", body, flags=re.MULTILINE)[1:]
            self.lines = [(part[0] == "→", json.loads(part[2:])) for part in parts]

    @property
    def requests(self) -> list[Event]:
        return [line for is_sent, line in self.lines if is_sent]

    @property
    def answers(self) -> list[Event]:
        return [line for is_sent, line in self.lines if not is_sent]


EXAMPLES = {
    found[1]: Example(*found.groups(default="")) for found in BLOCK.finditer((ROOT / "docs/PROTOCOL.md").read_text())
}
