"""The control verbs against a scripted server."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time

import pytest

from uma_ctl.client import DEFAULT_TIMEOUT_S, Client
from uma_ctl.commands import drain, status
from uma_ctl.errors import CannotConnect, NoAnswer
from uma_ctl.options import Target

READY = {"state": "ready", "uptime_s": 5.0, "model": {"name": "m", "is_demo": True}}


def answering(**replies):
    """Return a script that answers each operation with the given fields, or calls the given function."""

    def script(peer, message):
        answer = replies[message["type"]]
        answer(peer, message) if callable(answer) else peer.reply(message, **answer)

    return script


def in_turn(*answers):
    """Give one answer after the other, and then repeat the last one."""
    left = list(answers)

    def answer(peer, message):
        peer.reply(message, **(left.pop(0) if len(left) > 1 else left[0]))

    return answer


def test_socket_prints_where_the_daemon_listens(serve, ctl, socket_path):
    serve(answering())
    assert ctl("socket").stdout == f"{socket_path}\n"
    assert json.loads(ctl("socket", "--json").stdout) == {"path": socket_path}
    done = ctl("socket", "--socket", "/nowhere")
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize(
    ("verb", "meant"),
    [
        ("generat", " Did you mean 'generate'?"),
        ("stats", " Did you mean 'status'?"),
        ("stop", " Did you mean 'drain --then exit'?"),
        ("x", ""),
    ],
)
def test_a_misspelt_verb_names_the_one_that_was_meant(ctl, verb, meant):
    done = ctl(verb)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"Error: No such command {verb!r}.{meant}"


def test_an_empty_socket_path_is_no_path(serve, ctl):
    serve(answering(health={"state": "ready", "is_ready": True}))
    assert ctl("--socket", "", "health").stdout == "ready\n"


@pytest.mark.parametrize(("state", "code"), [("ready", 0), ("degraded", 2), ("draining", 2), ("starting", 2)])
def test_status_tells_readiness_by_its_exit_code(serve, ctl, state, code):
    serve(answering(status={**READY, "state": state, "reason": "because"}))
    done = ctl("status")
    assert done.returncode == code
    assert state in done.stdout
    assert "demonstration model" in done.stdout


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--timeout", "3"], "--timeout goes with --wait"),
        (["--interval", "3"], "--interval goes with --watch"),
        (["--watch", "--wait", "ready"], "not both"),
    ],
)
def test_status_refuses_an_option_that_would_do_nothing(ctl, args, told):
    done = ctl("status", *args)
    assert done.returncode == 1 and told in done.stderr


@pytest.mark.parametrize("place", [("--json", "status"), ("status", "--json")])
def test_json_may_stand_before_or_after_the_verb(serve, ctl, place):
    serve(answering(status=READY))
    assert json.loads(ctl(*place).stdout) == READY


def test_wait_returns_once_the_state_is_there(serve, ctl):
    server = serve(answering(status=in_turn({"state": "starting"}, {"state": "starting"}, READY)))
    done = ctl("status", "--wait", "ready")
    assert (done.returncode, done.stdout) == (0, "ready\n")
    assert len(server.received) == 3


def test_wait_gives_up_with_what_it_saw_last(serve, ctl):
    serve(answering(status={"state": "starting"}))
    done = ctl("status", "--wait", "ready", "--timeout", "0.1")
    assert done.returncode == 2
    assert "starting, not ready" in done.stderr


@pytest.mark.parametrize("wanted", ["ready", "stopped"])
def test_a_silent_daemon_is_not_waited_for_past_the_timeout(wanted):
    asked: list[float] = []

    class Silent(Target):
        def connect(self, timeout_s=DEFAULT_TIMEOUT_S):
            asked.append(timeout_s)
            raise NoAnswer("no answer from the daemon in time")

    with pytest.raises(NoAnswer):
        status._wait(Silent(None, False), wanted, time.monotonic() + 0.2)
    assert max(asked) <= status.LEAST_S
    asked.clear()
    assert status._poll(Silent(None, False), time.monotonic() + 3600)[0] is None
    assert asked == [DEFAULT_TIMEOUT_S]


def test_wait_for_a_daemon_that_never_comes(ctl):
    assert ctl("status", "--wait", "ready", "--timeout", "0.1").returncode == 1


def test_wait_for_the_end_of_a_daemon(ctl):
    assert ctl("status", "--wait", "stopped", "--timeout", "0.1").returncode == 0


def test_a_daemon_that_cannot_be_reached_has_not_stopped(ctl, socket_path):
    with socket.socket(socket.AF_UNIX) as hung, contextlib.ExitStack() as waiting:
        hung.bind(socket_path)
        hung.listen(0)
        with pytest.raises(CannotConnect):
            while True:
                waiting.enter_context(Client(socket_path, 0.05))
        done = ctl("status", "--wait", "stopped", "--timeout", "0.1")
        assert (done.returncode, done.stdout) == (1, "")
        assert "cannot connect" in done.stderr
        with pytest.raises(CannotConnect):
            drain._ask(Impatient(socket_path, False))
    assert drain._ask(Impatient(socket_path, False))["state"] == "stopped"


class Impatient(Target):
    def connect(self, timeout_s=0.05):
        return super().connect(timeout_s)


def test_watch_shows_it_again_and_survives_refusals(serve, start):
    def fail(peer, message):
        peer.refuse(message["id"], "E_INTERNAL_003", "internal")

    answers = iter([lambda p, m: p.reply(m, **READY), fail, lambda p, m: p.reply(m, **READY)])
    serve(answering(status=lambda peer, message: next(answers, fail)(peer, message)))
    process = start("uma_ctl", "status", "--watch", "--json", "--interval", "0.05")
    lines = [json.loads(process.stdout.readline()) for _ in range(3)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert lines[0] == lines[2] == READY
    assert lines[1]["error"]["code"] == "E_INTERNAL_003"
    assert process.returncode == 130


@pytest.mark.parametrize(("is_ready", "code"), [(True, 0), (False, 2)])
def test_health(serve, ctl, is_ready, code):
    serve(answering(health={"state": "ready" if is_ready else "degraded", "is_ready": is_ready, "protocol": 1}))
    assert ctl("health").returncode == code


def test_metrics_for_people_for_machines_and_for_prometheus(serve, ctl):
    values = {"tokens_total": 12345, "ttft_ms": {"count": 2, "mean": 3.5, "p50": 3.0}}

    def metrics(peer, message):
        is_text = message.get("format") == "prometheus"
        peer.reply(message, **({"text": "# HELP uma_ready\numa_ready 1\n"} if is_text else {"metrics": values}))

    serve(answering(metrics=metrics))
    assert "tokens_total  12,345" in ctl("metrics").stdout
    assert json.loads(ctl("metrics", "--json").stdout) == values
    assert ctl("metrics", "--prometheus").stdout == "# HELP uma_ready\numa_ready 1\n"
    assert ctl("metrics", "--prometheus", "--json").returncode == 1


def test_sessions_are_listed(serve, ctl):
    items = [{"conn": 4, "request_id": "r9", "lane": "background", "phase": "decode", "uid": 1000, "pid": 7}]
    serve(answering(sessions={"sessions": items}))
    shown = ctl("sessions").stdout
    assert "r9" in shown and "background" in shown and "uid 1000 pid 7" in shown
    assert json.loads(ctl("sessions", "--json").stdout) == items


def flights(*conns):
    return {"sessions": [{"conn": conn, "request_id": "r9"} for conn in conns]}


def test_cancel_finds_the_connection_of_the_request(serve, ctl):
    server = serve(answering(sessions=flights(7), cancel={"found": True}))
    assert ctl("cancel", "r9").returncode == 0
    assert server.received[-1] == {"type": "cancel", "id": "r9", "conn": 7}


def test_cancel_of_a_request_that_is_gone(serve, ctl):
    serve(answering(sessions=flights()))
    done = ctl("cancel", "r9")
    assert done.returncode == 2
    assert "no request r9" in done.stdout


def test_cancel_asks_where_an_id_is_on_several_connections(serve, ctl):
    server = serve(answering(sessions=flights(3, 8), cancel={"found": True}))
    done = ctl("cancel", "r9")
    assert done.returncode == 1
    assert "3, 8" in done.stderr
    assert ctl("cancel", "r9", "--conn", "8").returncode == 0
    assert server.received[-1]["conn"] == 8


def test_drain_shows_progress_to_its_end(serve, ctl):
    left = [{"state": "draining", "drain": {"remaining": n, "estimate_ms": 500}} for n in (1, 0)]
    server = serve(answering(drain={"state": "draining", "remaining": 2, "estimate_ms": 1200}, status=in_turn(*left)))
    done = ctl("drain", "--timeout", "3")
    assert done.returncode == 0
    assert "2 requests left" in done.stderr and "1 request left" in done.stderr
    assert server.received[0]["timeout_ms"] == 3000
    assert server.received[0]["then"] == "stay"


def test_drain_then_exit_ends_with_the_daemon(serve, ctl):
    serve(answering(drain={"state": "draining", "remaining": 1}, status=lambda peer, message: peer.hang_up()))
    done = ctl("drain", "--then", "exit")
    assert (done.returncode, done.stdout) == (0, "stopping\n")


def test_a_drain_that_gets_no_answer_has_not_ended(serve, socket_path):
    serve(answering(status=lambda peer, message: None))
    with pytest.raises(NoAnswer):
        drain._ask(Impatient(socket_path, False))


def test_a_drain_whose_progress_is_refused_has_not_ended(serve, ctl):
    def refuse(peer, message):
        peer.refuse(message["id"], "E_LIMIT_004", "too_many_sessions", "too many")

    serve(answering(drain={"state": "draining", "remaining": 1}, status=refuse))
    done = ctl("drain", "--then", "exit")
    assert (done.returncode, done.stdout) == (2, "") and "too_many_sessions" in done.stderr


@pytest.mark.parametrize(
    ("then", "error", "code"), [("reload", True, 2), ("reload", False, 0), ("stay", True, 0)], ids=str
)
def test_a_reload_that_fails_after_the_drain_is_an_error(serve, ctl, then, error, code):
    failure = {"code": "E_CONFIG_001", "name": "config_invalid", "message": "bogus is not an option"}
    after = {"state": "ready", "reload": {"generation": 1, "error": failure if error else None}}
    serve(answering(drain={"state": "draining", "remaining": 1, "then": then}, status=after))
    done = ctl("drain", "--then", then)
    assert done.returncode == code
    assert ("E_CONFIG_001 config_invalid: bogus" in done.stderr) == (code != 0)
    assert done.stdout == ("" if code else "ready\n")


def test_drain_without_waiting(serve, ctl):
    serve(answering(drain={"state": "draining", "remaining": 4}))
    assert "4 requests left" in ctl("drain", "--no-wait").stdout


def test_undrain(serve, ctl):
    serve(answering(undrain=READY))
    assert ctl("undrain").stdout == "ready\n"


def test_an_empty_path_of_a_model_asks_for_no_reload(serve, ctl):
    server = serve(answering(reload={"generation": 2, "changes": []}))
    done = ctl("reload", "--model", "")
    assert (done.returncode, done.stdout) == (1, "") and "the path of the model is empty" in done.stderr
    assert not server.received


def test_reload_shows_what_changes(serve, ctl, tmp_path):
    changes = [{"name": "log.level", "old": "info", "new": "debug", "is_live": True}]
    server = serve(answering(reload={"generation": 2, "changes": changes}))
    shown = ctl("reload", "--model", str(tmp_path / "m.gguf")).stdout
    assert "log.level  info  debug       at once" in shown
    assert "generation 2" in shown
    assert server.received[0]["model"] == str(tmp_path / "m.gguf")
    assert "check" not in server.received[0]
    assert "generation" not in ctl("reload", "--check").stdout
    assert server.received[1]["check"] is True


def test_a_file_that_was_replaced_is_loaded_anew(serve, ctl):
    serve(answering(reload={"generation": 2, "changes": []}))
    assert "loaded again" in ctl("reload", "--model", "m.gguf").stdout
    assert "loaded again" not in ctl("reload").stdout
    assert "loaded again" not in ctl("reload", "--check", "--model", "m.gguf").stdout


@pytest.mark.parametrize(("fit", "said"), [("beside", "there is room for both"), ("swap", "there is no room for both")])
def test_a_check_says_whether_both_models_fit(serve, ctl, fit, said):
    serve(answering(reload={"generation": 2, "changes": [], "fit": fit}))
    assert said in ctl("reload", "--check", "--model", "m.gguf").stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("cache", "stats", "k1"), "stats takes no KEY"),
        (("cache", "list", "k1"), "list takes no KEY"),
        (("tokenize", "--ids", "--count", "text"), "--ids or --count, not both"),
    ],
)
def test_an_argument_that_would_be_ignored_is_refused(serve, ctl, arguments, told):
    server = serve(answering(cache={"stats": {}}, tokenize={"tokens": [1]}))
    done = ctl(*arguments)
    assert done.returncode == 1 and told in done.stderr
    assert not server.received


def test_cache_actions(serve, ctl):
    server = serve(answering(cache={"stats": {"bytes": 10, "tiers": {"ram": {"entries": 2}}}}))
    assert "entries: 2" in ctl("cache").stdout
    assert server.received[0]["action"] == "stats"
    assert ctl("cache", "pin").returncode == 1
    assert ctl("cache", "pin", "k1").returncode == 0
    assert server.received[1]["key"] == "k1"


def test_a_cache_without_entries_says_so(serve, ctl):
    serve(answering(cache={"entries": []}))
    assert ctl("cache", "list").stdout == "no entries\n"
    assert json.loads(ctl("cache", "list", "--json").stdout) == {"entries": []}


def test_trace_lines_go_to_a_file_one_by_one(serve, ctl, tmp_path):
    serve(answering(trace={"lines": [{"new_context": 1}, {"tick": 2}], "n_ticks": 1, "n_left_out": 3}))
    done = ctl("trace", "--seconds", "0.1", "--jsonl", "--out", str(tmp_path / "t.jsonl"))
    assert done.returncode == 0 and "1 tick in" in done.stderr and "left out: 3 later ticks" in done.stderr
    assert [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()] == [
        {"new_context": 1},
        {"tick": 2},
    ]


def test_a_trace_that_the_daemons_end_cut_short_is_written(serve, ctl, tmp_path):
    serve(answering(trace={"lines": [{"tick": 2}], "n_ticks": 1, "is_cut_short": True}))
    done = ctl("trace", "--seconds", "60", "--jsonl", "--out", str(tmp_path / "t.jsonl"))
    assert done.returncode == 0 and "the daemon stopped before the time was over" in done.stderr
    assert json.loads((tmp_path / "t.jsonl").read_text()) == {"tick": 2}


def test_a_trace_without_ticks_has_no_line(serve, ctl, tmp_path):
    serve(answering(trace={"lines": [], "n_ticks": 0}))
    done = ctl("trace", "--seconds", "0.1", "--jsonl")
    assert (done.returncode, done.stdout) == (0, "") and "no tick" in done.stderr
    done = ctl("trace", "--seconds", "0.1", "--jsonl", "--out", str(tmp_path / "t.jsonl"))
    assert "0 ticks in" in done.stderr and (tmp_path / "t.jsonl").read_text() == ""


def test_trace_goes_to_a_file(serve, ctl, tmp_path):
    serve(answering(trace={"traceEvents": [{"name": "tick", "ph": "X"}]}))
    done = ctl("trace", "--seconds", "0.1", "--out", str(tmp_path / "t.json"))
    assert done.returncode == 0
    assert json.loads((tmp_path / "t.json").read_text()) == {"traceEvents": [{"name": "tick", "ph": "X"}]}
    assert "1 event in" in done.stderr


def test_a_trace_is_not_recorded_for_a_file_that_cannot_be_created(serve, ctl, tmp_path):
    server = serve(answering(trace={"traceEvents": []}))
    done = ctl("trace", "--out", str(tmp_path / "none" / "t.json"))
    assert done.returncode == 1 and "cannot create" in done.stderr
    assert server.received == []


@pytest.mark.parametrize(
    "verb", ["drain", "undrain", "reload", "cache", "trace", "status", "metrics", "sessions", "health"]
)
def test_a_refusal_is_shown_with_its_code(serve, ctl, verb):
    serve(lambda peer, m: peer.refuse(m["id"], "E_ACCESS_002", "admin_only", "not you"))
    done = ctl(verb)
    assert done.returncode == 2
    assert done.stderr == "uma-ctl: E_ACCESS_002 admin_only: not you\n"


def test_watch_says_that_it_outlives_its_daemon(ctl):
    assert "Repeat until Ctrl-C, even while the daemon is gone" in " ".join(ctl("status", "--help").stdout.split())


def test_wrong_usage_is_status_one(ctl):
    for args in (["nonsense"], ["status", "--nonsense"], ["generate", "--temp", "hot"]):
        done = ctl(*args)
        assert done.returncode == 1
        assert "Usage:" in done.stderr or "Error" in done.stderr


def test_every_verb_has_help(ctl):
    from uma_ctl.main import COMMANDS

    listed = ctl("--help").stdout
    for verb in COMMANDS:
        assert f"  {verb} " in listed
        assert ctl(verb, "--help").returncode == 0
