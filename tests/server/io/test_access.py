from __future__ import annotations

import os

import pytest

from uma_core.config.options import AccessOptions
from uma_core.server.io.access import is_admin, may_connect, priority_for
from uma_core.types import Peer, Priority

OWNER = os.getuid()
OTHER = OWNER + 2000


@pytest.mark.parametrize(
    ("peer", "options", "connects", "administers"),
    [
        (Peer(OWNER, 1, 1), AccessOptions(), True, True),
        (Peer(0, 0, 1), AccessOptions(), True, True),
        (Peer(OTHER, 1, 1), AccessOptions(), False, False),
        (Peer(OTHER, 1, 1), AccessOptions(allow_uids=(OTHER,)), True, False),
        (Peer(OTHER, 50, 1), AccessOptions(allow_gids=(50,)), True, False),
        (Peer(OTHER, 1, 1), AccessOptions(admin_uids=(OTHER,)), True, True),
        (Peer(OTHER, 1, 1), AccessOptions(trusted_uids=(OTHER,)), True, False),
        (Peer(), AccessOptions(), True, False),
    ],
)
def test_who_may_do_what(peer, options, connects, administers):
    assert may_connect(peer, options) is connects
    assert is_admin(peer, options) is administers


@pytest.mark.parametrize(
    ("wish", "ceiling", "priority"),
    [
        (None, "interactive", None),
        (None, "background", Priority.BACKGROUND),
        (Priority.INTERACTIVE, "background", Priority.BACKGROUND),
        (Priority.BACKGROUND, "interactive", Priority.BACKGROUND),
        (Priority.INTERACTIVE, "interactive", Priority.INTERACTIVE),
    ],
)
def test_lane_ceilings(wish, ceiling, priority):
    assert priority_for(Peer(7, 7, 7), wish, AccessOptions(lane_ceiling={7: ceiling})) == priority
    assert priority_for(Peer(8, 8, 8), wish, AccessOptions(lane_ceiling={7: ceiling})) == wish
