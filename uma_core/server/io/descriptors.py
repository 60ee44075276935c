"""Raises the process's limit on open files to what the configured connections need."""

from __future__ import annotations

import logging
import resource

from uma_core.types import n_extra

log = logging.getLogger(__name__)

OTHERS = 256  # descriptors besides connections: the files of the model and the cache, listeners, refused clients


def make_room(n_connections: int) -> None:
    """Raise the soft limit as far as the hard limit allows.

    Warns if that is too low: the daemon will then refuse clients for lack of descriptors.
    """
    wanted = n_connections + n_extra(n_connections) + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit on open files stays at %d: %s", soft, error)
        return
    if limit < wanted:
        log.warning(
            "%d connections need about %d open files, the system allows %d (ulimit -Hn, LimitNOFILE)",
            n_connections,
            wanted,
            limit,
        )
