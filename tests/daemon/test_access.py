"""Who may connect, who may administer, and how urgent a user's requests may be. The peers are injected."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

from tests.daemon.support import (
    FORKED_HELPER,
    IMPORTED,
    ROOT,
    WAIT_S,
    DaemonProcess,
    Wire,
    eventually,
    is_ready,
    running,
)
from tests.forks import server_of

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


def test_groups_that_are_not_the_peers_first_count_too(folder):
    """The kernel reports the groups of a process that has supplementary groups."""
    if os.geteuid() != 0:
        pytest.skip("only root can be a process of other groups")
    os.chmod(folder, 0o755)
    with running(folder, "--engine", "fake", "--allow-gids", "77") as daemon:
        os.chmod(daemon.path, 0o666)
        for groups, event in (([76, 77], "reply"), ([76], "error"), ([*range(1000, 1400), 77], "reply"), ([], "error")):
            assert asked_as(OTHER, groups, daemon.path)["event"] == event, groups


def asked_as(uid, groups, path):
    """Return the reply to a health request from a process of this user and these groups."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups(groups)
            os.setgid(uid)
            os.setuid(uid)
            with Wire(path) as wire:
                os.write(writable, json.dumps(wire.ask("health")).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with open(readable, "rb") as answer:
        data = answer.read()
    os.waitpid(child, 0)
    return json.loads(data)


def test_one_process_does_not_lock_others_out(serve):
    daemon = serve("--max-connections", "8", "--max-sessions", "8", "--allow-uids", str(FRIEND))
    daemon.pull(peer=[FRIEND, FRIEND, 1], step_ms=20)
    with contextlib.ExitStack() as stack:
        hogs = [stack.enter_context(daemon.connect()) for _ in range(8)]
        for i, wire in enumerate(hogs[1:]):
            wire.send(id=i, prompt="on and on", max_tokens=2000, ignore_eos=True)
            wire.send(id="more", prompt="on and on", max_tokens=2000, ignore_eos=True)
        eventually(lambda: len(hogs[0].ask("sessions")["sessions"]) == 8)
        ninth = stack.enter_context(daemon.connect())
        ninth.send(type="health")
        refused = ninth.event()
        assert (refused["name"], refused["detail"]["n_held"], refused["detail"]["limit"]) == ("too_many_sessions", 8, 8)
        ninth.__exit__()
        daemon.pull(peer=[FRIEND, FRIEND, 2])
        with daemon.connect() as wire:
            wire.send(id="in", prompt="let me in", max_tokens=3, queue_updates=True)
            assert wire.event()["event"] == "queued", "it waits for its turn, and is not refused"
            wire.send(type="cancel", id="in")
            assert wire.until_final("in")[-1]["reason"] == "cancelled"


def test_admins_may_administer(serve):
    daemon = serve("--admin-uids", str(CLERK))
    daemon.pull(peer=[CLERK, CLERK, 1])
    assert daemon.ask("drain")["state"] == "draining"
    assert daemon.ask("undrain")["state"] == "ready"


def test_a_lane_ceiling_lowers_what_is_asked_for(serve):
    daemon = serve("--allow-uids", str(FRIEND), "--lane-ceiling", f"{FRIEND}=background")
    daemon.pull(peer=[FRIEND, FRIEND, 1], step_ms=20)
    stream = daemon.stream(max_tokens=4000, priority="interactive").begun()
    (row,) = eventually(lambda: daemon.ask("sessions")["sessions"])
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
    assert daemon.ask("reload")["changes"] == [
        {"name": "access.allow_uids", "old": [], "new": [FRIEND], "is_live": True}
    ]
    daemon.pull(peer=[FRIEND, FRIEND, 1])
    assert daemon.ask("status")["state"] == "ready"


def test_a_stranger_may_not_cancel_for_others(serve):
    daemon = serve("--allow-uids", f"{FRIEND},{OTHER}")
    daemon.pull(peer=[FRIEND, FRIEND, 1], step_ms=20)
    stream = daemon.stream(max_tokens=4000).begun()
    (row,) = eventually(lambda: daemon.ask("sessions")["sessions"])
    daemon.pull(peer=[OTHER, OTHER, 1])
    with daemon.connect() as wire:
        wire.send(type="cancel", id="s", conn=row["conn"])
        assert wire.event()["code"] == "E_ACCESS_002"
    stream.cancel()
    assert stream.end()["reason"] == "cancelled"


def test_only_trusted_peers_name_an_account(serve):
    daemon = serve("--allow-uids", str(FRIEND), "--trusted-uids", str(CLERK))
    daemon.pull(peer=[FRIEND, FRIEND, 1])
    refused = daemon.generate("hello", max_tokens=2, account="alice")
    assert [event["code"] for event in refused] == ["E_ACCESS_002"] and refused[0]["detail"]["field"] == "account"
    daemon.pull(peer=[CLERK, CLERK, 1], step_ms=20)
    stream = daemon.stream(max_tokens=4000, account="alice").begun()
    (row,) = eventually(lambda: daemon.ask("sessions")["sessions"])
    assert (row["account"], row["uid"], row["request_id"]) == ("alice", CLERK, "s")
    (client,) = daemon.status()["clients"]
    assert client["account"] == "alice"
    stream.cancel()
    assert stream.end()["reason"] == "cancelled"


def test_an_account_may_send_what_is_too_long_for_others(serve):
    daemon = serve("--max-prompt-bytes", "2000", "--n-ctx", "65536")
    prompt = "a long story, " * 300
    assert daemon.generate(prompt, max_tokens=2)[-1]["code"] == "E_LIMIT_001"
    assert daemon.generate(prompt, max_tokens=2, account="alice")[-1]["reason"] == "length"
    assert daemon.ask("props")["limits"]["max_prompt_bytes"] == 8 << 20


def test_a_waiting_request_is_told_where_it_stands(serve):
    daemon = serve("--parallel", "1")
    daemon.pull(step_ms=5)
    first = daemon.stream(max_tokens=4000).begun()
    with daemon.connect() as wire:
        wire.send(id="w", prompt="hello", max_tokens=2, queue_updates=True)
        event = wire.event()
        assert event["event"] == "queued" and event["position"] == 0 and event["wait_ms"] > 0
        first.cancel()
        events = wire.until_final("w")
    assert events[0] == {"id": "w", "event": "queued", "position": 0, "wait_ms": 0}
    assert events[-1]["reason"] == "length"
    first.end()


def test_a_trace_names_requests(serve):
    daemon = serve()
    daemon.pull(step_ms=5)
    stream = daemon.stream(max_tokens=4000).begun()
    events = daemon.ask("trace", seconds=0.2)["traceEvents"]
    stream.cancel()
    stream.end()
    named = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert "s" in named


def test_without_a_path_the_daemon_and_its_clients_meet_in_the_users_own_folder(folder):
    environ = {name: value for name, value in os.environ.items() if name != "UMA_SOCK"}
    environ |= {"XDG_RUNTIME_DIR": str(folder), "UMA_BUILD_CACHE": str(folder / "cache")}
    command, forks = ("uma_core", ["daemon", "--engine", "fake"]), server_of(*IMPORTED)
    with (folder / "first").open("wb") as log, (folder / "second").open("wb") as other:
        process = forks.start(*command, environ=environ, stderr=log.fileno(), children=FORKED_HELPER)
        try:
            eventually(lambda: is_ready(folder / "uma.sock"))
            done = subprocess.run(
                [sys.executable, "-m", "uma_ctl", "socket"],
                cwd=ROOT,
                env=environ,
                capture_output=True,
                text=True,
                timeout=WAIT_S,
            )
            assert done.stdout == f"{folder}/uma.sock\n", done.stderr
            second = forks.start(*command, environ=environ, stderr=other.fileno())
            assert second.wait(WAIT_S) == 1
            assert f"another daemon serves {folder}/uma.sock" in (folder / "second").read_text()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_S)


def test_a_folder_in_which_others_could_replace_the_socket_ends_the_start(folder):
    folder.chmod(0o777)
    daemon = DaemonProcess(folder, "--engine", "fake")
    assert daemon.wait() == 1
    assert "could be replaced by another user" in daemon.log
    daemon = DaemonProcess(folder, "--engine", "fake", "--no-check-folder").reach("ready")
    assert daemon.stop() == 0


def test_metadata_is_shown_to_its_user_and_to_administrators(serve):
    daemon = serve("--allow-uids", f"{FRIEND},{OTHER}", "--admin-uids", str(CLERK))
    daemon.pull(peer=[FRIEND, FRIEND, 1], step_ms=20)
    stream = daemon.stream("hello", max_tokens=2000, metadata={"job": "nightly"}).begun()
    for uid, shown in ((FRIEND, {"job": "nightly"}), (CLERK, {"job": "nightly"}), (OTHER, None)):
        daemon.pull(peer=[uid, uid, 1])
        (row,) = eventually(lambda: daemon.ask("sessions")["sessions"])
        assert row["uid"] == FRIEND and row.get("metadata") == shown
    daemon.pull(step_ms=0)
    stream.cancel()


def test_trusted_peers_may_send_longer_frames(serve):
    daemon = serve(
        "--max-frame-bytes",
        "2048",
        "--max-prompt-bytes",
        "1024",
        "--trusted-frame-bytes",
        "8192",
        "--allow-uids",
        str(FRIEND),
    )
    long = "x" * 4000
    assert daemon.ask("tokenize", content=long)["event"] == "reply"
    daemon.pull(peer=[FRIEND, FRIEND, 1])
    assert daemon.ask("tokenize", content=long)["name"] == "frame_too_large"
