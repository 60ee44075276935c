"""Raises the process's limit on open files."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)


def make_room(wanted: int, users: str) -> None:
    """Raise the soft limit to `wanted`, or as far as the hard limit allows. `users`: what needs the descriptors.

    Warns if the limit stays too low: clients will then be refused for lack of descriptors.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError) as error:  # macOS may report no hard limit although it has one
        log.warning("the limit on open files stays at %d: %s", soft, error)
        return
    if limit < wanted:
        log.warning("%s need about %d open files, the system allows %d (ulimit -Hn, LimitNOFILE)", users, wanted, limit)
