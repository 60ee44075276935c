"""The replicas that Ray Serve has reported to this process.

This is a separate module because Serve sends the router's class by value, with copies of its globals.
"""

from __future__ import annotations

# by deployment: names of the running replicas, and their nodes; values are replaced, never changed
_replicas: dict[str, dict[str, str]] = {}


def told(deployment: str, replicas: dict[str, str]) -> None:
    """Replace the replicas of a deployment. Any thread."""
    _replicas[deployment] = replicas


def running(deployment: str) -> dict[str, str]:
    """Return the name and node of every running replica. Any thread; empty until this process has used a handle."""
    return dict(_replicas.get(deployment, {}))
