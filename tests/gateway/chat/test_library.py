"""The chat layer's library on a system without enough memory for the request."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.daemon.support import ROOT
from uma_gateway.chat.library import LibraryError
from uma_gateway.errors import Kind, from_chat
from uma_gateway.exchange import retry_headers

RENDER = """
import resource
from uma_gateway.chat.library import Handle, LibraryError, call, encode
source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"
handle = Handle("templates", encode({"chat_template": source}, "a template"))
small, large = (encode({"messages": [{"role": "user", "content": "a" * n}]}, "a request") for n in (9, 32 << 20))
call("uma_chat_apply", handle.pointer, small)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
most = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), most))
try:
    call("uma_chat_apply", handle.pointer, large)
except LibraryError as error:
    print(error.code.value)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
call("uma_chat_apply", handle.pointer, small)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="macOS enforces no limit of memory")
def test_a_prompt_that_there_is_no_memory_for_is_not_the_template_s_fault() -> None:
    done = subprocess.run([sys.executable, "-c", RENDER], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "overloaded\n"), done.stderr
    told = from_chat(LibraryError("memory", "out of memory", ""))
    assert told.kind is Kind.UNAVAILABLE and retry_headers(told)
