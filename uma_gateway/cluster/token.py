"""Ray's token. A cluster that was started with a token refuses every program without it.

`ray start` asks for a token as soon as the user has one, and `ray.init` makes one. But a program that only connects
sends the token only if RAY_AUTH_MODE says so.

Rules: before the first import of ray, which reads that variable.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def use(environ: MutableMapping[str, str], home: Path) -> None:
    """Make Ray send the user's token, if there is one and the user has not set RAY_AUTH_MODE."""
    has_token = bool(environ.get(TOKEN) or environ.get(TOKEN_PATH)) or (home / ".ray" / "auth_token").is_file()
    if has_token and MODE not in environ:
        environ[MODE] = "token"
