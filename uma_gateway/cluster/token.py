"""Ray's token, without which a cluster that was started with one lets nobody in.

`ray start` asks for a token as soon as the user has one, and `ray.init` makes one; but a program that only connects
sends it where RAY_AUTH_MODE says so.

Rules: before the first import of ray, which reads that variable.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def use(environ: MutableMapping[str, str], home: Path) -> None:
    """Send the user's token, if there is one and nothing else is said."""
    has_token = bool(environ.get(TOKEN) or environ.get(TOKEN_PATH)) or (home / ".ray" / "auth_token").is_file()
    if has_token and MODE not in environ:
        environ[MODE] = "token"
