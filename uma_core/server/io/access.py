"""Decides who may do what, by peer credentials and the `access` options. The daemon's user is its owner."""

from __future__ import annotations

import os

from uma_core.config.options import AccessOptions
from uma_core.endpoint import ROOT, UNKNOWN
from uma_core.types import Peer, Priority


def may_connect(peer: Peer, options: AccessOptions) -> bool:
    """Admit administrators, trusted users, and permitted users and groups.

    For a peer that the kernel does not identify, the socket's file mode is the only check.
    """
    is_known = is_admin(peer, options) or is_trusted(peer, options) or peer.uid in (UNKNOWN, *options.allow_uids)
    return is_known or not {peer.gid, *peer.groups}.isdisjoint(options.allow_gids)


def is_admin(peer: Peer, options: AccessOptions) -> bool:
    return peer.uid in (os.getuid(), ROOT, *options.admin_uids)


def is_trusted(peer: Peer, options: AccessOptions) -> bool:
    """Whether the peer may send requests on behalf of others, as a gateway does."""
    return peer.uid in (os.getuid(), ROOT, *options.trusted_uids)


def priority_for(peer: Peer, priority: Priority | None, options: AccessOptions) -> Priority | None:
    """Lower a request's priority to its user's ceiling. None (inferred later) stays None if there is no ceiling."""
    ceiling = options.ceiling(peer.uid)
    if priority is None:
        return None if ceiling is Priority.INTERACTIVE else ceiling
    return max(priority, ceiling)
