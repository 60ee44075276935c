"""Who may ask what: names, origins, keys and lanes."""

from __future__ import annotations

import signal

import pytest

from tests.daemon.support import eventually
from tests.gateway.support import Answer, Raw, n_busy
from uma_gateway.keys import entry, new_key

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:{}",
        "localhost:{}",
        "localhost",
        "[::1]:{}",
        "10.1.2.3",
        "app.localhost:1",
        "LOCALHOST",
        "localhost:",
        "127.0.0.1:",
        "[::1]:",
    ],
)
def test_addresses_and_local_names_are_answered(gateway, host):
    assert gateway.get("/health", host=host.format(gateway.port)).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8080", "1270.0.1", "evil.example:"]
)
def test_other_names_are_refused(gateway, host):
    answer = gateway.get("/v1/models", host=host)
    assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "host",
    ["", ":", ":80", "localhost::", "localhost:x", "a b", "a/b", "[::1", "localhost:99999999", "x" * 300 + "\xe9"],
)
def test_a_host_that_is_none(gateway, host):
    assert gateway.get("/v1/models", host=host).status == 400


def test_http_1_0_needs_no_host(gateway):
    """Health checks of old proxies send no Host."""
    for host, status in (("", 200), ("host: evil.example\r\n", 403)):
        with Raw(gateway.port) as raw:
            raw.sock.sendall(f"GET /health HTTP/1.0\r\n{host}\r\n".encode())
            assert Answer(raw.rest()).status == status
    with Raw(gateway.port) as raw:
        raw.sock.sendall(b"GET /health HTTP/1.0\r\norigin: http://evil.example\r\n\r\n")
        assert Answer(raw.rest()).status == 403


def test_what_may_be_asked_is_told_without_an_origin_too(gateway):
    answer = gateway.ask("OPTIONS", "/v1/chat/completions")
    assert (answer.status, answer.body, answer.headers["allow"]) == (200, b"", "POST")


def test_exactly_one_host(gateway):
    for hosts in ("", "Host: localhost\r\nHost: localhost\r\n"):
        with Raw(gateway.port) as raw:
            raw.sock.sendall(f"GET /health HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode())
            assert Answer(raw.rest()).status == 400


def test_allowed_names_are_answered(folder, before):
    gateway = before(str(folder / "s"), "--allowed-hosts", "box.example.org")
    assert gateway.get("/v1/models", host="box.example.org:8080").status == 503, (
        "past the guard, and there is no daemon"
    )
    assert gateway.get("/v1/models", host="other.example.org").status == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "http://127.0.0.1"])
def test_pages_of_other_origins_are_refused(gateway, origin):
    answer = gateway.ask("POST", "/v1/chat/completions", CHAT, {"origin": origin})
    assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("scheme", ["http", "https"])  # https: a proxy before the gateway speaks TLS
def test_the_gateway_s_own_pages_may_ask(gateway, scheme):
    assert gateway.get("/health", origin=f"{scheme}://127.0.0.1:{gateway.port}").status == 200


def test_allowed_origins_get_their_headers_and_others_none(folder, before):
    gateway = before(str(folder / "s"), "--cors-origins", "https://chat.example.org,file://")
    wanted = "authorization,content-type,x-stainless-lang,anthropic-dangerous-direct-browser-access"
    preflight = gateway.ask(
        "OPTIONS",
        "/v1/chat/completions",
        None,
        {"origin": "https://chat.example.org", "access-control-request-headers": wanted},
    )
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-origin"] == "https://chat.example.org"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert preflight.headers["access-control-allow-headers"] == wanted
    shown = preflight.headers["access-control-expose-headers"].split(", ")
    assert {"retry-after-ms", "x-queue-position", "x-queue-wait-ms", "x-request-id", "x-should-retry"} <= set(shown)
    assert (
        gateway.get("/v1/models", origin="https://chat.example.org").headers["access-control-allow-origin"]
        == "https://chat.example.org"
    )
    assert gateway.get("/v1/models", origin="file://").headers["access-control-allow-origin"] == "file://"
    others = (
        "https://chat.example.org.evil.example",
        "http://chat.example.org",
        "https://chat.example.org:444",
        "null",
    )
    for origin in others:
        assert gateway.ask("OPTIONS", "/v1/models", None, {"origin": origin}).status == 403


@pytest.fixture
def keyed(serve, before, folder):
    """A gateway with the keys of alice, bob (background, one request at a time) and carl (two requests a minute)."""
    keys = {name: new_key() for name in ("alice", "bob", "carl")}
    path = folder / "keys.yaml"
    path.write_text(
        entry("alice", keys["alice"])
        + entry("bob", keys["bob"]).replace("interactive", "background")
        + "  max_in_flight: 1\n"
        + entry("carl", keys["carl"])
        + "  rate: 2\n"
    )
    daemon = serve()
    gateway = before(daemon, "--api-key-file", str(path))
    return daemon, gateway, keys, path


def as_(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_only_known_keys_are_answered(keyed):
    _, gateway, keys, _ = keyed
    assert gateway.chat(max_tokens=2, headers=as_(keys["alice"])).status == 200
    assert gateway.get("/v1/models", x_api_key=keys["alice"]).status == 200
    assert gateway.get("/health").status == 200, "for whoever watches the process"
    for headers in (
        {},
        as_("wrong"),
        as_(""),
        {"authorization": f"Basic {keys['alice']}"},
        as_(keys["alice"] + "x"),
        as_(keys["alice"][:-1]),
    ):
        answer = gateway.chat(headers=headers)
        assert (answer.status, answer.error["type"], answer.error["code"]) == (
            401,
            "authentication_error",
            "invalid_api_key",
        )
    assert not any(key in gateway.log for key in keys.values())


def test_a_key_may_have_any_letters(before, fake):
    gateway = before(fake, environ={"UMA_GATEWAY_API_KEY": "schlüssel"})
    for coding in ("utf-8", "latin-1"):  # Raw writes a header's letters as Latin-1
        key = "schlüssel".encode(coding).decode("latin-1")
        assert gateway.get("/v1/models", authorization=f"Bearer {key}").status == 200
        assert gateway.get("/v1/models", x_api_key=key).status == 200
        assert gateway.get("/v1/models", authorization=f"Bearer {key}x").status == 401


def test_a_key_is_an_account_with_a_ceiling(keyed):
    daemon, gateway, keys, _ = keyed
    daemon.pull(step_ms=20)
    priorities = {}
    for name in ("alice", "bob"):
        with Raw(gateway.port) as raw:
            raw.send(
                "POST",
                "/v1/chat/completions",
                {**CHAT, "max_tokens": 500, "stream": True},
                {**as_(keys[name]), "x-priority": "interactive"},
            )
            raw.until(b"delta")
            (row,) = eventually(lambda: daemon.ask("sessions")["sessions"])
            priorities[row["account"]] = row["lane"]
        eventually(lambda: n_busy(daemon) == 0)
    assert priorities == {"alice": "interactive", "bob": "background"}


def test_a_key_s_requests_in_flight_are_limited(keyed):
    daemon, gateway, keys, _ = keyed
    daemon.pull(step_ms=20)
    with Raw(gateway.port) as raw:
        raw.send("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 500, "stream": True}, as_(keys["bob"]))
        raw.until(b"delta")
        refused = gateway.chat(headers=as_(keys["bob"]))
        assert (refused.status, refused.error["code"]) == (429, "too_many_requests") and int(
            refused.headers["retry-after-ms"]
        ) > 0
        assert gateway.get("/v1/models", authorization=f"Bearer {keys['bob']}").status == 200
    eventually(lambda: gateway.chat(max_tokens=1, headers=as_(keys["bob"])).status == 200)


def test_a_key_s_rate_is_limited_with_the_time_to_come_back(keyed):
    _, gateway, keys, _ = keyed
    answers = [gateway.chat(max_tokens=1, headers=as_(keys["carl"])) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[0].headers["x-ratelimit-remaining-requests"] == "1"
    assert answers[2].headers["x-ratelimit-remaining-requests"] == "0"
    assert 1_000 < int(answers[2].headers["retry-after-ms"]) <= 30_001


def test_keys_are_read_again_at_a_hup_and_a_wrong_file_changes_nothing(keyed):
    _, gateway, keys, path = keyed
    new = new_key()
    path.write_text(path.read_text() + entry("dora", new))
    assert gateway.chat(headers=as_(new)).status == 401
    gateway.signal(signal.SIGHUP)
    gateway.logs("keys in force: 4")
    assert gateway.chat(max_tokens=1, headers=as_(new)).status == 200
    path.write_text("- name: alice\n  hash: md5:00\n")
    gateway.signal(signal.SIGHUP)
    gateway.logs("the keys stay as they are")
    assert gateway.chat(max_tokens=1, headers=as_(keys["alice"])).status == 200
    path.write_text(entry("dora", new))
    gateway.signal(signal.SIGHUP)
    gateway.logs("keys in force: 1")
    assert gateway.chat(headers=as_(keys["alice"])).status == 401


def test_service_tiers_and_the_header_choose_the_lane(gateway, fake, levers):
    levers(step_ms=20)
    for more, priority in (
        ({"headers": {"x-priority": "background"}}, "background"),
        ({"service_tier": "flex"}, "background"),
        ({"service_tier": "priority"}, "interactive"),
        ({"priority": "background"}, "background"),
    ):
        headers = more.pop("headers", None)
        with Raw(gateway.port) as raw:
            raw.send("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 500, "stream": True, **more}, headers)
            raw.until(b"delta")
            (row,) = eventually(lambda: fake.ask("sessions")["sessions"], "what runs is listed a little later")
            assert row["lane"] == priority, more
        eventually(lambda: n_busy(fake) == 0)
