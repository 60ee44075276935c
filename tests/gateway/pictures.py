"""Makes the pictures of the pages in docs/: `python -m tests.gateway.pictures MODEL`. The model must be able to chat.

Needs Chromium and Pillow.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.daemon.support import ROOT, running
from tests.folders import short_folder
from tests.gateway.support import GatewayProcess, Raw, gateway_before
from tests.tools import find
from uma_gateway.keys import entry, new_key

OUT = ROOT / "docs" / "pictures"
NAMES = ("alice", "bob", "nightly")
LOAD_S = 24.0
COLOURS = 128  # colours of a picture: a third of the bytes, and no visible difference
TEXT = (ROOT / "docs" / "SYSTEM_DESIGN.md").read_text()
CODE = "```python\ndef mean(values):\n    count = len(values)\n    return sum(values) / count\n```"
WORDS = ("Hello, who are you?", f"Rename `count` to `total` everywhere.\n\n{CODE}")
VIEWS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1240, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1240, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 780}, "color_scheme": "light"},
}


class Load(threading.Thread):
    """One client that keeps sending requests: short chats, or long documents in the background."""

    def __init__(self, gateway: GatewayProcess, key: str, name: str, number: int) -> None:
        super().__init__(daemon=True)
        self.is_over = False
        self._gateway, self._key, self._name = gateway, key, name
        self._rng = random.Random(number)
        self._number = number
        self.start()

    def run(self) -> None:
        rng, is_chat = self._rng, self._name != "nightly"
        time.sleep(rng.random() * 4)
        n = 0
        while not self.is_over:
            n += 1
            at = rng.randrange(len(TEXT) - 4000)
            words = TEXT[at : at + (rng.randrange(40, 160) if is_chat else rng.choice((900, 2200)))]
            body = {
                "messages": [{"role": "user", "content": words}],
                "max_tokens": rng.randrange(150, 500),
                "stream": True,
                "ignore_eos": True,
            }
            priority = "interactive" if is_chat else "background"
            headers = {
                "authorization": f"Bearer {self._key}",
                "x-priority": priority,
                "x-request-id": f"{'chat' if is_chat else 'summary'}-{self._number}{n}",
            }
            with contextlib.suppress(OSError), Raw(self._gateway.port) as raw:
                raw.send("POST", "/v1/chat/completions", body, headers)
                while not self.is_over and raw.sock.recv(1 << 16):
                    pass
            time.sleep(rng.random() * (3 if is_chat else 1))


def save(page: Page, name: str, is_full: bool = False) -> None:
    data = page.screenshot(full_page=is_full)
    picture = Image.open(io.BytesIO(data)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    OUT.mkdir(exist_ok=True)
    picture.save(OUT / f"{name}.png", optimize=True)
    print(f"{name}: {(OUT / f'{name}.png').stat().st_size / 1024:.0f} KiB")


def chat(page: Page) -> None:
    page.get_by_text("Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_text("Settings").click()
    for words in WORDS:
        page.get_by_role("textbox", name="Message", exact=True).fill(words)
        page.get_by_role("button", name="Send").click()
        page.get_by_role("button", name="Answer again").wait_for()


def main(model: str) -> None:
    keys = {name: new_key() for name in NAMES}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(short_folder())
        (folder / "keys.yaml").write_text(
            "".join(entry(name, key) for name, key in keys.items()).replace("priority", "admin: true\n  priority")
        )
        daemon = stack.enter_context(
            running(folder, "--model", model, "--threads", "1", "--n-ctx", "8192", "--parallel", "4")
        )
        gateway = stack.enter_context(gateway_before(folder, daemon, "--api-key-file", str(folder / "keys.yaml")))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=find("chromium"), args=["--no-sandbox"])
        pages = {}
        for name, options in VIEWS.items():
            context = browser.new_context(**options)
            context.add_init_script(f"sessionStorage.setItem('uma.key', '{keys['alice']}')")
            pages[name] = context.new_page()
            pages[name].goto(gateway.url)
            chat(pages[name])
            save(pages[name], f"chat-{name}")
        for page in pages.values():
            page.goto(f"{gateway.url}/dashboard")
        kinds = ("alice", "alice", "bob", "nightly", "nightly", "nightly")
        loads = [Load(gateway, keys[name], name, number) for number, name in enumerate(kinds, 1)]
        time.sleep(LOAD_S)
        for name, page in pages.items():
            save(page, f"dashboard-{name}", is_full=name != "phone")
        for load in loads:
            load.is_over = True
        browser.close()


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
