"""Decides who may do what, by peer credentials and the `access` options. Pure."""

from __future__ import annotations

from uma_core.config.options import AccessOptions
from uma_core.endpoint import ROOT, UNKNOWN
from uma_core.types import Peer, Priority


def may_connect(peer: Peer, owner_uid: int, options: AccessOptions) -> bool:
    """Admit the owner, root, and permitted users and groups.

    For a peer that the kernel does not identify, the socket's file mode is the only check.
    """
    return (
        peer.uid in (owner_uid, ROOT, UNKNOWN)
        or peer.uid in options.allow_uids
        or peer.uid in options.admin_uids
        or peer.uid in options.trusted_uids
        or peer.gid in options.allow_gids
        or any(gid in options.allow_gids for gid in peer.groups)
    )


def is_admin(peer: Peer, owner_uid: int, options: AccessOptions) -> bool:
    return peer.uid in (owner_uid, ROOT) or peer.uid in options.admin_uids


def is_trusted(peer: Peer, owner_uid: int, options: AccessOptions) -> bool:
    """Whether the peer may send requests on behalf of others, as a gateway does."""
    return peer.uid in (owner_uid, ROOT) or peer.uid in options.trusted_uids


def priority_for(peer: Peer, priority: Priority | None, options: AccessOptions) -> Priority | None:
    """Lower a request's priority to its user's ceiling. None (inferred later) stays None if there is no ceiling."""
    ceiling = options.ceiling(peer.uid)
    if priority is None:
        return None if ceiling is Priority.INTERACTIVE else ceiling
    return max(priority, ceiling)
