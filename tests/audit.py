"""`make audit`: run pip-audit over UMA Serve's installed dependencies, those of its extra [http], and everything that
these need in turn.

Known vulnerabilities are looked up at the Python package index. Exit status: 1 if there is one, or if a package could
not be looked up.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOTS = ("uma-serve[http]",)


def closure(roots: tuple[str, ...] = ROOTS) -> dict[str, str]:
    """Return the version of every installed package that is needed, by name. The roots are left out: no index knows
    them.
    """
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(root) for root in roots]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            distribution = metadata.distribution(name)
            found[name] = distribution.version
            needed = (Requirement(text) for text in distribution.requires or ())
            waiting += [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]
    return {
        name: version
        for name, version in sorted(found.items())
        if name not in {canonicalize_name(Requirement(root).name) for root in roots}
    }


def main() -> int:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pinned:
        pinned.writelines(f"{name}=={version}\n" for name, version in closure().items())
        pinned.flush()
        return subprocess.run(
            [sys.executable, "-m", "pip_audit", "--strict", "--no-deps", "--disable-pip", "-r", pinned.name]
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
