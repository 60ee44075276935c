"""Who may connect, who may administer, and how urgent their requests may be. Peers are injected."""

from __future__ import annotations

import os

OTHER, FRIEND, CLERK = 4001, 4002, 4003


def test_strangers_are_refused_with_a_code_and_logged(serve):
    daemon = serve()
    daemon.pull(peer=[OTHER, OTHER, 1])
    with daemon.connect() as wire:
        wire.send(type="status", id=1)
        assert wire.event()["code"] == "E_ACCESS_001"
        assert wire.is_closed_by_peer()
    daemon.logs(f"uid {OTHER}")
    daemon.logs("E_ACCESS_001")


def test_allowed_users_and_groups_may_generate_but_not_administer(serve):
    daemon = serve("--allow-uids", str(FRIEND), "--allow-gids", "77")
    for peer in ([FRIEND, 1, 1], [OTHER, 77, 1]):
        daemon.pull(peer=peer)
        assert daemon.generate("hello", max_tokens=2)[-1]["reason"] == "length"
        for op in ("drain", "undrain", "reload", "cache", "trace"):
            assert daemon.ask(op)["code"] == "E_ACCESS_002", op
        assert daemon.state() == "ready"


def test_admins_may_administer(serve):
    daemon = serve("--admin-uids", str(CLERK))
    daemon.pull(peer=[CLERK, CLERK, 1])
    assert daemon.ask("drain")["state"] == "draining"
    assert daemon.ask("undrain")["state"] == "ready"


def test_a_lane_ceiling_lowers_what_is_asked_for(serve):
    daemon = serve("--allow-uids", str(FRIEND), "--lane-ceiling", f"{FRIEND}=background")
    daemon.pull(peer=[FRIEND, FRIEND, 1], step_ms=20)
    stream = daemon.stream(max_tokens=4000, priority="interactive").begun()
    (row,) = daemon.ask("sessions")["sessions"]
    assert row["lane"] == "background"
    stream.cancel()
    assert stream.end()["reason"] == "cancelled"


def test_access_changes_with_a_reload(serve, folder):
    config = folder / "config.yaml"
    config.write_text("access: {}\n")
    daemon = serve("--config", str(config))
    daemon.pull(peer=[FRIEND, FRIEND, 1])
    assert daemon.ask("status")["code"] == "E_ACCESS_001"
    config.write_text(f"access:\n  allow_uids: [{FRIEND}]\n")
    daemon.pull(peer=[os.getuid(), os.getgid(), os.getpid()])
    assert daemon.ask("reload")["changes"] == [{"name": "access.allow_uids", "old": [], "new": [FRIEND], "is_live": True}]
    daemon.pull(peer=[FRIEND, FRIEND, 1])
    assert daemon.ask("status")["state"] == "ready"


def test_a_stranger_may_not_cancel_for_others(serve):
    daemon = serve("--allow-uids", f"{FRIEND},{OTHER}")
    daemon.pull(peer=[FRIEND, FRIEND, 1], step_ms=20)
    stream = daemon.stream(max_tokens=4000).begun()
    (row,) = daemon.ask("sessions")["sessions"]
    daemon.pull(peer=[OTHER, OTHER, 1])
    with daemon.connect() as wire:
        wire.send(type="cancel", id="s", conn=row["conn"])
        assert wire.event()["code"] == "E_ACCESS_002"
    stream.cancel()
    assert stream.end()["reason"] == "cancelled"
