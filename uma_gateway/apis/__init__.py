"""The API families. To add one, write a file with its handlers, routes and form of errors, and add a line here."""

from __future__ import annotations

from uma_gateway.apis import anthropic, llama, lmstudio, ollama, openai, pages
from uma_gateway.apis.base import Family

FAMILIES: tuple[Family, ...] = (
    openai.FAMILY,
    anthropic.FAMILY,
    ollama.FAMILY,
    lmstudio.FAMILY,
    pages.FAMILY,
    llama.FAMILY,
)
FALLBACK: Family = llama.FAMILY  # writes the errors of paths that belong to no family
