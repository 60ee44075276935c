"""The gateway's options."""

from __future__ import annotations

from typing import Any

import pytest

from uma_gateway.config import OPTIONS, AccessOptions, Config, ServeOptions, conflicts, is_loopback


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(host: str, is_own: bool) -> None:
    assert is_loopback(host) is is_own


@pytest.mark.parametrize(
    ("serve", "access", "keys"),
    [
        ({}, {}, []),
        ({"tls_cert": "a"}, {}, ["serve.tls_key"]),
        ({"tls_key": "a"}, {}, ["serve.tls_cert"]),
        ({"tls_cert": "a", "tls_key": "b"}, {}, []),
        ({"host": "0.0.0.0"}, {}, ["serve.host"]),
        ({"host": "0.0.0.0", "insecure": True}, {}, []),
        ({"host": "0.0.0.0"}, {"api_key": "k"}, []),
        ({"host": "0.0.0.0"}, {"api_key_file": "k"}, []),
        ({}, {"cors_origins": ("https://a.example", "file://")}, []),
        ({}, {"cors_origins": ("a.example", "https://a.example/", "*")}, ["access.cors_origins"] * 3),
    ],
)
def test_values_that_do_not_fit_together_are_named(serve: Any, access: Any, keys: list[str]) -> None:
    config = Config(serve=ServeOptions(**serve), access=AccessOptions(**access))
    assert [key for key, _ in conflicts(config)] == keys


def test_no_two_options_have_one_name() -> None:
    for names in ([opt.flag for opt in OPTIONS], [opt.env for opt in OPTIONS], [opt.key for opt in OPTIONS]):
        assert len(set(names)) == len(names)


def test_bodies_are_limited_in_bytes() -> None:
    assert Config().max_body_bytes == 32 << 20
