"""The pages in a real browser: Chromium without its sandbox, which most containers do not allow.

The pages fetch nothing from elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from tests.daemon.support import ENDLESS, ROOT, WAIT_S, DaemonProcess, eventually
from tests.gateway.support import GatewayProcess, Json, Raw, n_busy
from tests.tools import need
from uma_gateway.keys import entry, new_key

PATHS = ("/", "/dashboard")
COUNTED = re.compile(r"\d+ tokens?, \d+ a second")  # shown when an answer has ended
expect.set_options(timeout=WAIT_S * 1e3)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    (path,) = need("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Window:
    """A window whose tabs the tests open and close, because a new window costs more than most tests: 1.3 s of a core
    (AMD EPYC). What the pages keep, they keep in a tab. A blank tab stays, and with it the process that draws.
    """

    def __init__(self, browser: Browser, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(WAIT_S * 1e3)
        self.blank = self.context.new_page()

    def close_tabs(self) -> None:
        for page in self.context.pages:
            if page != self.blank:
                page.close()


@pytest.fixture(scope="module")
def window(browser: Browser) -> Window:
    return Window(browser)


@pytest.fixture(scope="module")
def phone(browser: Browser) -> Window:
    return Window(browser, viewport={"width": 390, "height": 700}, has_touch=True)


class Tabs:
    """Opens pages, and records what a developer would see as wrong: errors in the console, and requests to other
    hosts.
    """

    def __init__(self, window: Window) -> None:
        self.context = window.context
        self.errors: list[str] = []
        self.urls: list[str] = []
        self._events: dict[Any, Any] = {
            "console": lambda message: (
                self.errors.append(message.text) if message.type in ("error", "warning") else None
            ),
            "weberror": lambda error: self.errors.append(str(error.error)),
            "request": lambda request: self.urls.append(request.url),
        }
        for event, handle in self._events.items():
            self.context.on(event, handle)

    def new(self) -> Page:
        return self.context.new_page()

    def open(self, url: str) -> Page:
        page = self.new()
        page.goto(url)
        return page

    def leave(self) -> None:
        for event, handle in self._events.items():
            self.context.remove_listener(event, handle)


@contextlib.contextmanager
def watched(window: Window) -> Iterator[Tabs]:
    tabs = Tabs(window)
    yield tabs
    window.close_tabs()
    tabs.leave()
    hosts = {re.match(r"(\w+:(//127\.0\.0\.1)?)", url)[1] for url in tabs.urls}  # type: ignore[index]
    assert hosts <= {"http://127.0.0.1", "data:"}, f"other hosts were asked: {tabs.urls}"
    assert tabs.errors == []


@pytest.fixture
def tabs(window: Window) -> Iterator[Tabs]:
    with watched(window) as tabs:
        yield tabs


@pytest.fixture
def phone_tabs(phone: Window) -> Iterator[Tabs]:
    with watched(phone) as tabs:
        yield tabs


def send(page: Page, words: str) -> None:
    page.get_by_role("textbox", name="Message", exact=True).fill(words)
    page.get_by_role("button", name="Send").click()


def last_answer(page: Page) -> Any:
    return page.locator("article.assistant .text").last


def wait_for_text(page: Page, n_least: int = 1) -> str:
    eventually(
        lambda: page.locator("article.assistant").count() and len(last_answer(page).inner_text()) >= n_least,
        "nothing was answered",
        every_s=0.05,  # each look passes four processes
    )
    return str(last_answer(page).inner_text())


def set_most(page: Page, n_tokens: int) -> None:
    page.get_by_text("Settings").click()
    page.get_by_label("Most tokens").fill(str(n_tokens))
    page.get_by_text("Settings").click()


# ---- the chat


def test_a_message_is_answered_and_the_chat_survives_a_reload(gateway: GatewayProcess, tabs: Tabs) -> None:
    page = tabs.open(gateway.url)
    expect(page.locator("#model")).to_contain_text("tokens of context")
    set_most(page, 20)
    send(page, "Hello <b>there</b>")
    expect(page.locator("#state")).to_contain_text(COUNTED)
    expect(page.locator("article.user .text")).to_have_text("Hello <b>there</b>")  # as text, not as markup
    answer = last_answer(page).inner_text()
    page.reload()
    expect(last_answer(page)).to_have_text(answer, use_inner_text=True)
    set_most(page, 1)
    page.get_by_role("button", name="Answer again").click()
    expect(page.locator("article.assistant .end")).to_have_text("The answer reached its token limit.")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("article")).to_have_count(0)


def test_the_text_of_an_answer_is_there_when_its_end_is_told(gateway: GatewayProcess, tabs: Tabs) -> None:
    page = tabs.new()
    page.add_init_script("window.requestAnimationFrame = () => 0")  # a tab in the background gets no frame
    page.goto(gateway.url)
    set_most(page, 5)
    send(page, "Hello")
    expect(page.locator("#state")).to_contain_text(COUNTED)
    assert last_answer(page).inner_text()
    assert page.locator("article.assistant .end").inner_text() == "The answer reached its token limit."
    assert page.get_by_role("button", name="Send").is_visible()


def test_stop_ends_the_answer_and_its_request(
    gateway: GatewayProcess, fake: DaemonProcess, levers: Callable[..., None], tabs: Tabs
) -> None:
    levers(step_ms=20)
    page = tabs.open(gateway.url)
    send(page, "Hello")
    wait_for_text(page, 5)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#state")).to_have_text("Stopped.")
    eventually(lambda: n_busy(fake) == 0, "its request still runs")
    assert len(last_answer(page).inner_text()) >= 5
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_a_reload_in_mid_answer_keeps_what_came(
    gateway: GatewayProcess, fake: DaemonProcess, levers: Callable[..., None], tabs: Tabs
) -> None:
    levers(step_ms=20)
    page = tabs.open(gateway.url)
    send(page, "Hello")
    seen = wait_for_text(page, 8)
    page.reload()
    assert wait_for_text(page).startswith(seen[:8])
    expect(page.locator("article.assistant .end")).to_contain_text("Cut off")
    eventually(lambda: n_busy(fake) == 0, "the request of a page that is gone still runs")
    levers(step_ms=0)
    set_most(page, 12)
    page.get_by_role("button", name="Answer again").click()
    expect(page.locator("#state")).to_contain_text(COUNTED)
    expect(page.locator("article")).to_have_count(2)


def test_a_message_that_is_refused_goes_back_to_its_box_and_the_next_one_is_answered(
    gateway: GatewayProcess, tabs: Tabs
) -> None:
    page = tabs.open(gateway.url)
    set_most(page, 5)
    long = "word " * 50_000
    for n in (1, 2):
        send(page, long)
        expect(page.locator("#state")).to_contain_text("maximum context length")
        expect(page.get_by_role("textbox", name="Message", exact=True)).to_have_value(long.strip())
        expect(page.locator("article")).to_have_count(2 * n - 2)
        send(page, "Hello")
        expect(page.locator("#state")).to_contain_text(COUNTED)
        expect(page.locator("article")).to_have_count(2 * n)
    assert all("400" in error for error in tabs.errors)
    tabs.errors.clear()


def test_settings_survive_a_reload(gateway: GatewayProcess, tabs: Tabs) -> None:
    """The chat went on without its system message, and nothing said so."""
    page = tabs.open(gateway.url)
    page.get_by_text("Settings").click()
    page.get_by_label("System message").fill("Be brief")
    page.get_by_label("Temperature").fill("0.2")
    page.get_by_label("Thinking").uncheck()
    page.reload()
    page.get_by_text("Settings").click()
    expect(page.get_by_label("System message")).to_have_value("Be brief")
    expect(page.get_by_label("Temperature")).to_have_value("0.2")
    expect(page.get_by_label("Most tokens")).to_have_value("1024")
    expect(page.get_by_label("Thinking")).not_to_be_checked()


SIDES = """node => {
  const range = document.createRange();
  range.selectNodeContents(node);
  const [text, box] = [range.getBoundingClientRect(), node.getBoundingClientRect()];
  return [text.left - box.left, box.right - text.right];
}"""


def test_text_from_right_to_left_begins_at_the_right(gateway: GatewayProcess, tabs: Tabs) -> None:
    page = tabs.open(gateway.url)
    set_most(page, 1)
    for words in ("Hello!", "\u05e9\u05dc\u05d5\u05dd!", "\u0645\u0631\u062d\u0628\u0627!"):
        send(page, words)
        expect(page.locator("#state")).to_contain_text(COUNTED)
        left, right = page.locator("article.user .text").last.evaluate(SIDES)
        assert left < right if words == "Hello!" else right < left, words


def test_a_chat_that_is_opened_before_the_daemon_is_there_notices_it(serve: Any, before: Any, tabs: Tabs) -> None:
    daemon = serve()
    gateway = before(daemon)
    daemon.stop()
    page = tabs.open(gateway.url)
    expect(page.locator("#state")).to_contain_text("daemon")
    serve()
    expect(page.locator("#model")).to_contain_text("tokens of context")
    expect(page.locator("#state")).to_be_empty()
    gateway.stop()
    send(page, "Hello")
    expect(page.locator("#state")).to_have_text("the gateway does not answer")
    tabs.errors.clear()  # the browser logs the 503 and the refused connection


NO_STORAGE = {
    "forbidden": "Object.defineProperty(window, 'sessionStorage', "
    "{get() { throw new DOMException('no', 'SecurityError'); }})",
    "full": "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }",
}


@pytest.mark.parametrize("how", NO_STORAGE)
def test_without_storage_a_chat_goes_on_and_says_that_it_is_not_kept(
    gateway: GatewayProcess, tabs: Tabs, how: str
) -> None:
    page = tabs.new()
    page.add_init_script(NO_STORAGE[how])
    page.goto(gateway.url)
    expect(page.locator("#model")).to_contain_text("tokens of context")
    set_most(page, 5)
    for n in (1, 2):
        send(page, "Hello")
        expect(page.locator("article.assistant")).to_have_count(n)
        expect(page.locator("#state")).to_contain_text(COUNTED)
        expect(page.locator("#state")).to_contain_text("a reload loses this chat")
    page.goto(gateway.url + "/dashboard")
    expect(page.locator("#model")).to_contain_text("tokens of context")


@pytest.mark.parametrize("how", NO_STORAGE)
def test_without_storage_a_key_is_asked_for_once(serve: Any, before: Any, folder: Any, tabs: Tabs, how: str) -> None:
    key, path = new_key(), folder / "keys.yaml"
    path.write_text(entry("alice", key))
    gateway = before(serve(), "--api-key-file", str(path))
    page, asked = tabs.new(), []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept(key)))
    page.add_init_script(NO_STORAGE[how])
    page.goto(gateway.url)
    expect(page.locator("#model")).to_contain_text("tokens of context")
    set_most(page, 5)
    send(page, "Hello")
    expect(page.locator("#state")).to_contain_text(COUNTED)
    assert len(asked) == 1
    tabs.errors.clear()  # the browser logs the 401


CODED = [
    {"role": "user", "content": "Rename it."},
    {"role": "assistant", "content": "Like this:\n\n```python\ntotal = 1\n```\n\nDone."},
]


def test_two_tabs_are_two_chats(gateway: GatewayProcess, levers: Callable[..., None], tabs: Tabs) -> None:
    levers(step_ms=5)
    pages = [tabs.new(), tabs.new()]
    for number, page in enumerate(pages):
        page.goto(gateway.url)
        set_most(page, 60)
        send(page, f"I am tab {number}")
    for page in pages:
        expect(page.locator("#state")).to_contain_text(COUNTED)
    for number, page in enumerate(pages):
        page.reload()
        expect(page.locator("article.user .text")).to_have_text(f"I am tab {number}")


def test_an_answer_can_be_copied_as_it_was_written(gateway: GatewayProcess, tabs: Tabs) -> None:
    page = tabs.open(gateway.url)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.add_init_script(f"sessionStorage.setItem('uma.chat', {json.dumps(json.dumps(CODED))})")
    page.reload()
    page.get_by_role("button", name="Copy the answer").click()
    expect(page.get_by_role("button", name="Copy the answer")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == CODED[1]["content"]


def test_everything_can_be_done_with_the_keyboard(
    gateway: GatewayProcess, fake: DaemonProcess, levers: Callable[..., None], tabs: Tabs
) -> None:
    levers(step_ms=20)
    page = tabs.open(gateway.url)
    expect(page.get_by_role("textbox", name="Message", exact=True)).to_be_focused()
    page.keyboard.type("Hello")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("again")
    page.keyboard.press("Enter")
    wait_for_text(page, 3)
    expect(page.locator("article.user .text")).to_have_text("Hello\nagain", use_inner_text=True)
    page.keyboard.press("Escape")
    expect(page.locator("#state")).to_have_text("Stopped.")
    eventually(lambda: n_busy(fake) == 0)
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or page.evaluate("document.activeElement === document.body"), (
            f"{reached[-1]} does not show its focus"
        )
        if reached[-1] == "Dashboard":
            break
    assert {"New chat", "Dashboard"} <= set(reached), reached
    page.keyboard.press("Enter")
    page.wait_for_url("**/dashboard")


def test_a_key_is_asked_for_once(serve: Any, before: Any, folder: Any, tabs: Tabs) -> None:
    key = new_key()
    (folder / "keys.yaml").write_text(entry("alice", key))
    gateway = before(serve(), "--api-key-file", str(folder / "keys.yaml"))
    page = tabs.new()
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept(key)))
    page.goto(gateway.url)
    expect(page.locator("#model")).to_contain_text("tokens of context")
    page.goto(f"{gateway.url}/dashboard")
    expect(page.locator("#state")).to_have_text("ready")
    assert len(asked) == 1
    assert all("401" in error for error in tabs.errors)
    tabs.errors.clear()


def test_a_dialog_for_a_key_that_is_closed_does_not_come_back_by_itself(
    serve: Any, before: Any, folder: Any, tabs: Tabs
) -> None:
    (folder / "keys.yaml").write_text(entry("alice", new_key()))
    gateway = before(serve(), "--api-key-file", str(folder / "keys.yaml"))
    page = tabs.new()
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.goto(f"{gateway.url}/dashboard")
    expect(page.locator("#state")).to_contain_text("no key")
    page.wait_for_timeout(2500)  # longer than the dashboard waits before it connects again
    assert len(asked) == 1
    page.goto(gateway.url)
    expect(page.locator("#state")).to_contain_text("key")
    with page.expect_event("dialog"):  # a user who has written something is asked again
        send(page, "Hello")
    tabs.errors.clear()


def test_a_key_that_no_header_can_hold_is_asked_for_again(serve: Any, before: Any, folder: Any, tabs: Tabs) -> None:
    key = new_key()
    (folder / "keys.yaml").write_text(entry("alice", key))
    gateway = before(serve(), "--api-key-file", str(folder / "keys.yaml"))
    page, answers = tabs.new(), ["\u201cwrong\u201d", f"\u200b{key}"]  # quotes, an invisible space
    page.on("dialog", lambda dialog: dialog.accept(answers.pop(0)))
    page.goto(gateway.url)
    expect(page.locator("#model")).to_contain_text("tokens of context")
    assert answers == []
    tabs.errors.clear()  # the browser logs the 401


# ---- the dashboard


def cell(page: Page, table: str, request: str, column: int) -> Any:
    return (
        page.get_by_role("table", name=table)
        .get_by_role("row")
        .filter(has_text=request)
        .get_by_role("cell")
        .nth(column)
    )


def test_the_dashboard_shows_who_runs_and_who_waits_for_whom(serve: Any, before: Any, tabs: Tabs) -> None:
    daemon = serve("--parallel", "1")
    gateway = before(daemon)
    daemon.pull(step_ms=20)
    page = tabs.open(f"{gateway.url}/dashboard")
    expect(page.locator("#waits")).to_contain_text("Nobody waits.")
    expect(page.locator("#requests")).to_contain_text("No request is in flight.")
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3000, "stream": True, "ignore_eos": True}
    with Raw(gateway.port) as first, Raw(gateway.port) as second:
        first.send("POST", "/v1/chat/completions", body, {"x-request-id": "first"})
        first.until(b'"content"')
        second.send("POST", "/v1/chat/completions", body, {"x-request-id": "second", "x-priority": "background"})
        expect(cell(page, "Who waits for whom", "second", 0)).to_have_text("first")
        expect(cell(page, "Requests in flight", "first", 2)).to_have_text("decode")
        expect(cell(page, "Requests in flight", "second", 1)).to_have_text("background")
        expect(page.locator("#kv")).to_have_attribute(
            "aria-label", re.compile(r"sequence 0: first, \d+ used, \d+ reserved")
        )
        expect(cell(page, "Shares of compute time", "http", 2)).to_contain_text("%")
        expect(page.locator("#streams svg")).to_have_attribute("aria-label", re.compile("2 requests in flight"))
        expect(page.locator("#streams rect.answers[width]:not([width='0'])")).to_have_count(1)
        expect(page.locator("#streams g.waiting")).to_have_count(1)  # its line does not strike its name through
        eventually(lambda: page.locator("#rate path.line").get_attribute("d"), "no throughput is drawn")
        expect(cell(page, "Prefix cache by tier", "RAM", 0)).to_contain_text("of")
        page.get_by_role("button", name="Cancel first").click()
        expect(page.locator("#told")).to_have_text("Cancelled first.")
        expect(cell(page, "Requests in flight", "second", 2)).to_have_text("decode")  # it has the sequence now
    expect(page.locator("#requests")).to_contain_text("No request is in flight.")


def test_a_table_that_goes_on_keeps_its_rows(gateway: GatewayProcess, levers: Callable[..., None], tabs: Tabs) -> None:
    levers(step_ms=20)
    page = tabs.open(f"{gateway.url}/dashboard")
    with Raw(gateway.port) as raw:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3000, "stream": True, "ignore_eos": True}
        raw.send("POST", "/v1/chat/completions", body, {"x-request-id": "long"})
        row = page.locator("#requests tbody tr")
        row.evaluate("node => { node.isTheSame = true; }")
        answered = cell(page, "Requests in flight", "long", 5)
        words = answered.inner_text()
        expect(answered).not_to_have_text(words)
        assert row.evaluate("node => node.isTheSame"), "it was made anew: what is selected or read aloud is lost"
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("button", name="Resume")).to_have_attribute("aria-pressed", "true")


def test_a_drain_and_its_end_are_seen_live(serve: Any, before: Any, tabs: Tabs) -> None:
    daemon = serve(**ENDLESS)
    gateway = before(daemon)
    daemon.pull(step_ms=100)  # slow enough for the answer to last
    board, chat = tabs.open(f"{gateway.url}/dashboard"), tabs.open(gateway.url)
    state = board.locator("#state")
    expect(state).to_have_text("ready")
    send(chat, "Hello")
    wait_for_text(chat, 3)
    board.get_by_role("button", name="Drain").click()
    board.get_by_role("button", name="Really drain?").click()
    expect(state).to_have_text("draining, 1 request left")
    late = tabs.open(gateway.url)
    send(late, "Too late")
    expect(late.locator("#state")).to_contain_text("drain")
    chat.get_by_role("button", name="Stop").click()
    expect(state).to_have_text("drained")
    board.get_by_role("button", name="Undrain").click()
    expect(state).to_have_text("ready")
    late.get_by_role("button", name="Answer again").click()
    wait_for_text(late, 3)
    assert all("503" in error for error in tabs.errors)
    tabs.errors.clear()


def test_a_restart_of_the_daemon_is_seen_live(serve: Any, before: Any, tabs: Tabs) -> None:
    daemon = serve()
    page = tabs.open(f"{before(daemon).url}/dashboard")
    state = page.locator("#state")
    expect(state).to_have_text("ready")
    daemon.stop()
    expect(state).to_contain_text("unreachable")
    serve()
    expect(state).to_have_text("ready")


def first_event(gateway: GatewayProcess) -> Json:
    """Return what the dashboard is told first."""
    with urllib.request.urlopen(f"{gateway.url}/uma/events", timeout=WAIT_S) as stream:
        event: Json = json.loads(stream.readline().removeprefix(b"data: "))
        return event


def stream_of(*events: Json) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)


def test_events_that_a_sleeping_tab_reads_late_are_drawn_at_their_times(gateway: GatewayProcess, tabs: Tabs) -> None:
    """All of them arrived within a millisecond, and the throughput became thousands of tokens a second."""
    now = first_event(gateway)
    looks = [
        {**now, "at_ms": now["at_ms"] + 250 * n, "metrics": {**now["metrics"], "tokens_generated_total": 50 * n}}
        for n in range(8)
    ]
    bodies = [stream_of(*looks)]
    page = tabs.new()
    page.route("**/uma/events", lambda route: route.fulfill(body=bodies.pop() if bodies else b""))
    page.goto(f"{gateway.url}/dashboard")
    expect(page.locator("#rate svg")).to_have_attribute("aria-label", re.compile("now 200$"))


def test_a_decision_of_an_idle_daemon_gets_old(gateway: GatewayProcess, tabs: Tabs) -> None:
    """Its last tick is in every status: the page said for ever that what had been decided then was decided now."""
    now = first_event(gateway)
    ticks = [{**now["tick"], "ms_last": n, "notes": [f"admission: {n} wait: no sequence is free"]} for n in (1, 2)]
    looks = [{**now, "tick": tick} for tick in (ticks[0], ticks[0], ticks[1])]
    bodies = [stream_of(*looks, {**looks[-1], "at_ms": now["at_ms"] + 20_000})]
    page = tabs.new()
    page.route("**/uma/events", lambda route: route.fulfill(body=bodies.pop() if bodies else b""))
    page.goto(f"{gateway.url}/dashboard")
    expect(page.get_by_role("table", name="Latest decisions").get_by_role("row")).to_have_text(
        ["WhenWhat", "20 s agoadmission: 2 wait: no sequence is free"]
    )


def test_the_dashboard_shows_what_drafts_brought(gateway: GatewayProcess, tabs: Tabs) -> None:
    now = first_event(gateway)
    assert set(now["speculation"]["drafted"]) >= {"lookup", "draft"}
    now["speculation"]["drafted"].update(lookup=1400, draft=20)
    now["speculation"]["accepted"].update(lookup=1200, draft=5)
    now["speculation"]["saved_ms"].update(lookup=3210.0, draft=-40.0)
    page = tabs.new()
    page.route("**/uma/events", lambda route: route.fulfill(body=stream_of(now)))
    page.goto(f"{gateway.url}/dashboard")
    expect(page.locator("#drafts")).to_have_text(
        "Accepted draft tokens: lookup 1,200 of 1,400 (saved 3.2 s), draft 5 of 20 (lost 40 ms)."
    )


def test_a_stream_that_the_gateway_ends_is_asked_for_again_at_once(gateway: GatewayProcess, tabs: Tabs) -> None:
    """A cluster's gateway ends each after a while. The page said for two seconds that it was unreachable."""
    event = stream_of(first_event(gateway))
    asked: list[Route] = []

    def end_the_first(route: Route) -> None:
        asked.append(route)
        if len(asked) < 3:
            route.fulfill(content_type="text/event-stream", body=event)
        else:
            route.continue_()

    page = tabs.new()
    page.route("**/uma/events", end_the_first)
    page.add_init_script("""
        window.states = new Set();
        const look = () => window.states.add(document.getElementById("state")?.textContent);
        new MutationObserver(look).observe(document, { subtree: true, childList: true, characterData: true });
    """)
    page.goto(f"{gateway.url}/dashboard")
    eventually(lambda: page.wait_for_timeout(10) or len(asked) >= 3, "the stream is not asked for again")
    expect(page.locator("#state")).to_have_text("ready")
    states = page.evaluate("[...window.states]")
    assert "ready" in states and not [state for state in states if "unreachable" in (state or "")]


# ---- the cluster's page, before a gateway that has no cluster

CLUSTER = ROOT / "uma_gateway" / "pages" / "cluster.html"
UNITS = [
    {"unit": "one/demo", "node": "one", "model": "demo", "is_open": True, "requests": 3, "sequences": 4, "pages": 1234}
    | {"load_ms": {"interactive": 120.4, "background": 5000.2}, "age_ms": 480},
    {"unit": "two/demo", "node": "", "model": "", "is_open": False},  # nothing was heard of it
]
COUNTS = {"routed": 12, "lost": 1, "prompt_tokens": 1000, "cached_tokens": 333}


def test_the_clusters_page_shows_its_daemons_and_that_the_gateway_is_gone(gateway: GatewayProcess, tabs: Tabs) -> None:
    told: Json = {"units": UNITS, "counts": COUNTS, "waiting": 2, "models": ["demo"], "in_flight": 5}
    bodies = [stream_of(told, {**told, "units": [{**UNITS[0], "requests": 4}, UNITS[1]]}), stream_of(told)]
    page = tabs.new()
    page.route("**/cluster", lambda route: route.fulfill(content_type="text/html", body=CLUSTER.read_text()))
    asked: list[Route] = []

    def answer(route: Route) -> None:
        asked.append(route)
        if bodies:
            route.fulfill(content_type="text/event-stream", body=bodies.pop())

    page.route("**/uma/cluster/events", answer)
    page.add_init_script(
        "window.gone = []; addEventListener('DOMContentLoaded', () => new MutationObserver("
        "(seen) => seen.forEach((each) => window.gone.push(...each.removedNodes)))"
        ".observe(document.body, { subtree: true, childList: true }));"
    )
    page.goto(f"{gateway.url}/cluster")
    expect(page.locator("#state")).to_have_text("ready")
    expect(cell(page, "Daemons", "one", 3)).to_have_text("4")
    row = page.get_by_role("table", name="Daemons").get_by_role("row").nth(1)
    expect(row.get_by_role("cell")).to_have_text(["demo", "open", "4", "4", "120 ms", "5 s", "1,234", "480 ms ago"])
    expect(page.locator("#units tbody tr").nth(1)).to_contain_text("closed")
    expect(cell(page, "Outcomes of requests", "ended by a loss", 0)).to_have_text("1")
    expect(page.locator("#tiles > *")).to_contain_text(["1 of 2", "2", "5 requests", "4 requests", "2", "33 %"])
    gone = page.evaluate("window.gone.map((node) => node.nodeName)")
    assert "TR" not in gone and "TABLE" not in gone, "it was made anew: what is selected or read aloud is lost"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CONTRAST) == []
    eventually(lambda: page.wait_for_timeout(10) or len(asked) >= 3)
    asked[-1].abort()
    expect(page.locator("#state")).to_have_text("unreachable: the gateway does not answer")
    tabs.errors.clear()  # the browser logs the refused connection


def test_the_dashboard_of_a_cluster_leads_to_its_page(gateway: GatewayProcess, tabs: Tabs) -> None:
    now = first_event(gateway)
    page = tabs.open(f"{gateway.url}/dashboard")
    expect(page.locator("#state")).to_have_text("ready")
    link = page.get_by_role("link", name="Cluster")
    expect(link).to_have_count(0)
    page.route("**/uma/events", lambda route: route.fulfill(body=stream_of({**now, "units": {"one/demo": {}}})))
    page.reload()
    expect(link).to_have_attribute("href", "/cluster")


# ---- the look of the pages, and what they may load

CONTRAST = """() => {
  const light = (rgb) => {
    const [r, g, b] = rgb.match(/[\\d.]+/g).map(Number).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$/.test(color) && color !== "transparent") return color;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = [];
  for (const node of document.body.querySelectorAll("*")) {
    const hasText = [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.textContent.trim());
    if (!hasText || !node.checkVisibility() || node.closest("svg")) continue;
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) faint.push(`${node.tagName} ${node.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return faint;
}"""


@pytest.mark.parametrize("path", PATHS)
def test_dark_and_light_can_be_read(gateway: GatewayProcess, tabs: Tabs, path: str) -> None:
    backs = {}
    page = tabs.open(gateway.url + path)
    expect(page.locator("#model")).to_contain_text("context")
    if path == "/":
        set_most(page, 5)
        send(page, "Hello")
        expect(page.locator("#state")).to_contain_text(COUNTED)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRAST) == []  # WCAG 2.2, 1.4.3: 4.5 to 1
        backs[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert backs["light"] != backs["dark"]


@pytest.mark.parametrize("path", PATHS)
def test_a_phone_shows_all_without_scrolling_sideways(gateway: GatewayProcess, phone_tabs: Tabs, path: str) -> None:
    page = phone_tabs.open(gateway.url + path)
    expect(page.locator("#model")).to_contain_text("context")
    if path == "/":
        box = page.get_by_role("textbox", name="Message", exact=True)
        assert box.evaluate("node => node.scrollHeight <= node.clientHeight"), "its words are cut off"
        set_most(page, 300)
        page.get_by_role("textbox", name="Message", exact=True).fill("Hello " + "x" * 300)
        page.get_by_role("button", name="Send").tap()
        wait_for_text(page)
    for width in (390, 320):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        outside = page.evaluate(
            "width => [...document.querySelectorAll('button, a, textarea')].filter((n) => n.checkVisibility() && "
            "!n.closest('.scroll'))"
            ".map((n) => [n.textContent, n.getBoundingClientRect()]).filter(([, r]) => r.left < 0 || r.right > "
            "width).map(([name]) => name)",
            width,
        )
        assert outside == []


@pytest.mark.parametrize("path", PATHS)
def test_what_a_page_was_not_given_it_cannot_load_or_run(gateway: GatewayProcess, tabs: Tabs, path: str) -> None:
    page = tabs.open(gateway.url + path)
    expect(page.locator("#model")).to_contain_text("context")
    ran = page.evaluate(
        """async () => {
          const script = document.createElement("script");
          script.textContent = "window.hasRun = true;";
          document.body.append(script);
          const box = document.createElement("div");
          box.innerHTML = "<img src=x: onerror='window.hasRun = true'><a style='color: red'>x</a>";
          document.body.append(box);
          const there = await fetch("http://127.0.0.1:9/").then(() => "loaded", (error) => error.name);
          return [Boolean(window.hasRun), getComputedStyle(box.lastChild).color === "rgb(255, 0, 0)", there];
        }"""
    )
    assert ran == [False, False, "TypeError"]
    assert len(tabs.errors) >= 3 and all(
        "Content Security Policy" in error or "Failed to" in error for error in tabs.errors
    ), tabs.errors
    tabs.errors.clear()
    tabs.urls.clear()  # the requests were tried and refused
