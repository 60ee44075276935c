"""A user's token for Ray is sent, unless the settings say otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from uma_gateway.cluster import token


@pytest.mark.parametrize("environ", [{"RAY_AUTH_TOKEN": "x"}, {"RAY_AUTH_TOKEN_PATH": "/elsewhere"}])
def test_a_token_of_the_environment_is_sent(tmp_path: Path, environ: dict[str, str]) -> None:
    token.use(environ, tmp_path)
    assert environ["RAY_AUTH_MODE"] == "token"


def test_the_file_that_ray_makes_is_sent(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    token.use(environ, tmp_path)
    assert not environ, "there is none"
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("x")
    token.use(environ, tmp_path)
    assert environ == {"RAY_AUTH_MODE": "token"}


def test_what_the_user_says_stands(tmp_path: Path) -> None:
    environ = {"RAY_AUTH_TOKEN": "x", "RAY_AUTH_MODE": "disabled"}
    token.use(environ, tmp_path)
    assert environ["RAY_AUTH_MODE"] == "disabled"
