"""The process's limit of open files, raised to what the configured connections need."""

from __future__ import annotations

import logging
import resource

from uma_core.types import n_extra

log = logging.getLogger(__name__)

OTHERS = 256  # descriptors beside those of connections: the model's files, the cache's, listeners, refused clients


def make_room(n_connections: int) -> None:
    """Raise the soft limit as far as the hard one allows.

    A limit that is too low is reported: clients will be shed there.
    """
    wanted = n_connections + n_extra(n_connections) + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays %d: %s", soft, error)
        return
    if limit < wanted:
        log.warning(
            "%d connections need about %d open files, the system allows %d (ulimit -Hn, LimitNOFILE)",
            n_connections,
            wanted,
            limit,
        )
