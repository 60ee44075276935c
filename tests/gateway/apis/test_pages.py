"""The pages and the data behind them: what is served, what a page may load, and what it shows."""

from __future__ import annotations

import json
import re

import pytest

from tests.daemon.support import eventually
from tests.gateway.support import Raw, n_busy
from uma_gateway.keys import digest_of

PAGES = ["/", "/dashboard"]
BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_nothing_from_elsewhere(gateway, path):
    page = gateway.get(path, accept=BROWSER)
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    html = page.body.decode()
    assert "://" not in html and "<style" not in html and not re.search(r"\son\w+=", html) and "style=" not in html
    for name in re.findall(r'(?:src|href)="(/pages/[^"]+)"', html):
        part = gateway.get(name)
        assert part.status == 200 and "://" not in part.body.decode()
        for inner in re.findall(r'from "\./([^"]+)"', part.body.decode()):
            assert gateway.get(f"/pages/{inner}").status == 200


@pytest.mark.parametrize("accept", [{}, {"accept": "*/*"}, {"accept": "application/json"}])
def test_a_program_that_looks_for_ollama_finds_it(gateway, accept):
    found = gateway.get("/", **accept)
    assert (found.status, found.body, found.headers["vary"]) == (200, b"Ollama is running", "accept")


@pytest.mark.parametrize("path", ["/pages/none.js", "/pages/..%2fapp.py", "/pages/__init__.py"])
def test_only_the_pages_files_are_served(gateway, path):
    assert gateway.get(path).status == 404


def test_the_overview_tells_requests_without_their_text(gateway, levers):
    levers(step_ms=20)
    with Raw(gateway.port) as raw:
        body = {"messages": [{"role": "user", "content": "a secret word"}], "max_tokens": 200, "stream": True}
        raw.send("POST", "/v1/chat/completions", body, {"x-request-id": "seen-1"})
        raw.until(b'"content"')
        overview = eventually(lambda: (v := gateway.get("/uma/status").json)["requests"] and v, "no request is shown")
    assert overview["requests"][0]["request_id"].startswith("seen-1") and overview["state"] == "ready"
    assert (
        overview["metrics"]["tokens_generated_total"]
        and overview["cache"]["is_on"]
        and "secret" not in json.dumps(overview)
    )


def test_events_come_one_after_the_other_until_the_client_goes(gateway):
    with Raw(gateway.port) as raw:
        raw.send("GET", "/uma/events")
        first = raw.until(b"\n\n")
        while b"data: " not in first:
            first += raw.until(b"\n\n")
        raw.until(b"data: ")
    assert b"text/event-stream" in first
    assert gateway.get("/health").status == 200


def test_drain_undrain_and_reload_need_an_administrators_key(folder, serve, before):
    daemon = serve()
    keys = folder / "keys.yaml"
    keys.write_text(
        "".join(
            f"- {{name: {name}, hash: 'sha256:{digest_of(f'{name}-key-0123456789').hex()}', admin: {is_admin}}}\n"
            for name, is_admin in (("boss", "true"), ("user", "false"))
        )
    )
    gateway = before(daemon, "--api-key-file", str(keys))
    user, boss = ({"authorization": f"Bearer {name}-key-0123456789"} for name in ("user", "boss"))
    assert gateway.ask("GET", "/uma/status").status == 401 and gateway.ask("GET", "/").status == 200
    assert gateway.ask("POST", "/uma/drain", {}, user).status == 403
    assert gateway.ask("POST", "/uma/drain", {}, boss).json["state"] in ("draining", "drained")
    assert gateway.chat(headers=user).status == 503
    assert gateway.ask("POST", "/uma/undrain", {}, boss).json["state"] == "ready"
    assert gateway.chat(headers=user, max_tokens=2).status == 200
    assert gateway.ask("POST", "/uma/reload", {"check": True}, boss).json["changes"] == []
    assert gateway.ask("POST", "/uma/cancel", {"request_id": "x"}, user).status == 403
    assert gateway.ask("POST", "/uma/cancel", {"request_id": "x"}, boss).json["found"] is False
    assert gateway.ask("POST", "/uma/cancel", {}, boss).status == 400


def test_a_request_of_any_client_can_be_cancelled(serve, before):
    daemon = serve()
    gateway = before(daemon)
    daemon.pull(step_ms=20)
    streams = [
        daemon.stream(max_tokens=1000) for _ in range(2)
    ]  # requests of the daemon's own clients, all with the same id
    rows = eventually(
        lambda: len(rows := gateway.get("/uma/status").json["requests"]) == 2 and rows, "the requests are not shown"
    )
    answer = gateway.post("/uma/cancel", request_id=rows[0]["request_id"], conn=rows[0]["conn"])
    assert answer.json["found"] is True
    eventually(lambda: n_busy(daemon) == 1, "none, or both, were cancelled")
    assert sum(stream.has_ended for stream in streams) <= 1


@pytest.mark.parametrize("request_id", ["x" * 129, "", 5])
def test_what_is_no_id_is_refused_at_once(gateway, request_id):
    """The daemon could not say which cancel it refuses, and all other cancels would wait."""
    assert gateway.post("/uma/cancel", request_id=request_id).status == 400
