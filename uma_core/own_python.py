"""How a program starts Python for code of its own, such as the HTTP gateway.

`python -m` and `python -c` look for modules in the working directory first. That may be /tmp, where any user could
leave a file with a library's name, and it would run as this user.
"""

from __future__ import annotations

import sys


def python_command(code: str) -> list[str]:
    """Return the command that runs `code`, which may use `sys`, in a new process with this one's import path."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"]
