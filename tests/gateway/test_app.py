"""Keys in headers, and the form of errors by path."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from uma_gateway.app import family_of, presented_key
from uma_gateway.exchange import Exchange


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, ""),
        ({"authorization": "Bearer  k "}, "k"),
        ({"authorization": "bearer k", "x-api-key": "other"}, "k"),
        ({"x-api-key": "k"}, "k"),
        ({"api-key": "k"}, "k"),
        ({"authorization": "Basic dTpw", "x-api-key": "k"}, "k"),
        ({"authorization": "Bearer ", "x-api-key": "k"}, "k"),
        ({"authorization": "Basic dTpw"}, ""),
        ({"x-api-key": "clé".encode().decode("latin-1")}, "clé"),
        ({"x-api-key": "clé"}, "clé"),  # a client that writes Latin-1
    ],
)
def test_a_key_is_found_where_any_client_puts_it(headers: dict[str, str], key: str) -> None:
    exchange = SimpleNamespace(header=lambda name: headers.get(name.decode(), ""))
    assert presented_key(cast("Exchange", exchange)) == key


@pytest.mark.parametrize(
    ("path", "family"),
    [
        ("/v1/messages/none", "anthropic"),
        ("/v1/none", "openai"),
        ("/api/none", "ollama"),
        ("/none", "llama-server"),
    ],
)
def test_an_error_on_an_unknown_path_has_the_form_of_its_neighbours(path: str, family: str) -> None:
    assert family_of(path).name == family
