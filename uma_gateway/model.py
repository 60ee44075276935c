"""The served model as clients see it."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any

from uma_core._version import __version__
from uma_gateway.chat.templates import Templates
from uma_gateway.large import begin

_KIND = re.compile(r"\b(?:F|BF|Q|IQ|TQ|MXFP|NVFP)[0-9]\w*")
_OTHER_NAMES = {"IQ3_S mix": "IQ3_M", "Q2_K - Medium": "Q2_K"}  # of file types that llama.cpp describes otherwise


class Model:
    """One `props` reply of the daemon. If anything in the reply changes, a new Model replaces this one."""

    def __init__(self, props: dict[str, Any], alias: str = "", known: Model | None = None) -> None:
        """`known`: the Model that this one replaces. Its templates are kept if they are the same."""
        self.props = props
        facts = props["model"]
        self.name: str = alias or _plain_name(facts["name"], facts["path"])
        self.fingerprint: str = facts["fingerprint"]
        self.n_ctx: int = props["n_ctx_seq"]
        self.n_ctx_train: int = facts["n_ctx_train"]
        self.n_vocab: int = facts["n_vocab"]
        self.system_fingerprint = f"b{__version__}-{self.fingerprint[:12]}"
        self.max_tokens: int = props["limits"]["max_tokens"]
        capabilities = props["capabilities"]
        self.generate_fields = frozenset(capabilities["generate"])
        self.has_chat: bool = capabilities["chat"]
        self.has_infill: bool = capabilities["infill"]
        self.is_reranker: bool = capabilities["rerank"]
        self.has_completion: bool = capabilities.get("completion", True)  # encoders and rerankers have none
        self.has_embeddings: bool = capabilities["embeddings"]
        # LoRA adapters, in the order of llama-server's ids
        self.adapters: list[str] = [each["id"] for each in props.get("adapters", ())]
        self._templates: asyncio.Future[Templates] | None = None
        if known is not None and known._templates is not None and known._template_facts == self._template_facts:
            self._keep(known._templates)

    @property
    def names(self) -> list[str]:
        """Return the names that requests may use: the model's, and those of its LoRA adapters."""
        return [self.name, *self.adapters]

    @property
    def chat_template(self) -> str:
        """Return the text of the template; "" if the model has none."""
        return self.props["chat_template"] or ""

    @property
    def abilities(self) -> list[str]:
        """Return the abilities of the model, in Ollama's words.

        In Ollama a model that makes vectors does nothing else, and clients do not offer such a model for chats.
        """
        template = self.chat_template
        can = ["completion"] if self.has_completion else []
        can += ["tools"] if "tools" in template else []
        can += ["thinking"] if "reasoning_content" in template or "<think>" in template else []
        can += ["insert"] if self.has_infill else []
        can += ["embedding"] if self.has_embeddings and not self.is_reranker and not self.has_completion else []
        return can

    @property
    def details(self) -> dict[str, Any]:
        """Return the description of the model, in Ollama's form."""
        facts = self.props["model"]
        return {
            "parent_model": "",
            "format": "gguf",
            "family": facts["arch"],
            "families": [facts["arch"]],
            "parameter_size": size_text(facts["n_params"]),
            "quantization_level": quantisation(facts["description"]),
        }

    def prepare(self) -> None:
        """Begin to load the templates: trying them takes a third of a second, and no chat should wait for that."""
        if self._templates is None:
            self._keep(begin(self._load_templates))

    def _keep(self, templates: asyncio.Future[Templates]) -> None:
        self._templates = templates
        templates.add_done_callback(self._tried)

    def _tried(self, done: asyncio.Future[Templates]) -> None:
        """Keep the result. An error is raised for each request that needs the templates, except after a shortage of
        system resources, which may have passed by the next request.
        """
        if not done.cancelled() and isinstance(done.exception(), OSError):
            self._templates = None

    async def templates(self) -> Templates:
        """Return the chat templates. Raises: ChatError, the same each time; OSError if the system had no descriptor,
        process or thread to try them with.
        """
        self.prepare()
        assert self._templates is not None
        return await asyncio.shield(self._templates)

    @property
    def _template_facts(self) -> tuple[str, str, str, str, bool, bool]:
        props = self.props
        tool_use = props["chat_template_tool_use"] or ""
        special = self.special("bos"), self.special("eos")
        return self.chat_template, tool_use, *special, props["add_bos"], props["add_eos"]

    def _load_templates(self) -> Templates:
        return Templates(*self._template_facts)

    def special(self, name: str) -> str:
        """Return the text of a special token; "" if the model has none."""
        return str(self.props["special"].get(name, {}).get("text", ""))

    def special_id(self, *names: str) -> int | None:
        """Return the id of the first of these special tokens that the model has."""
        special = self.props["special"]
        return next((special[name]["id"] for name in names if "id" in special.get(name, {})), None)

    def can(self, field: str) -> bool:
        """Whether the daemon's generate operation has a field."""
        return field in self.generate_fields


def size_text(n: int) -> str:
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M"


def quantisation(description: str) -> str:
    """Return the quantisation type from llama.cpp's description of a model, such as `llama 1B Q4_K - Medium`."""
    for words, name in _OTHER_NAMES.items():
        if words in description:
            return name
    name, _, more = description.partition(" - ")
    kinds = _KIND.findall(name)
    if not kinds:
        return "unknown"  # as in Ollama
    return f"{kinds[-1]}_{more[0]}" if more in ("Small", "Medium", "Large") else kinds[-1]


def _plain_name(name: str, path: str) -> str:
    """Return the name, or the file's if the name has characters such as spaces and slashes, which confuse clients that
    put names into URLs.
    """
    if name and all(c.isalnum() or c in "-_.:" for c in name):
        return name
    return os.path.basename(path).removesuffix(".gguf") or "model"
