from __future__ import annotations

import io
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from tests.daemon.support import ROOT
from tests.gateway.chat.conftest import ENDS_OF_TEXT, source
from uma_gateway.chat import check
from uma_gateway.chat.errors import ChatCode, ChatError
from uma_gateway.chat.library import encode
from uma_gateway.chat.templates import Templates

NO_THREADS = """import threading
def start(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = start
"""
RECURSIVE = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"
ENDLESS = "{% for i in range(1000000000) %}{% endfor %}"
GROWING = (
    "{% set ns = namespace(a='x' * 1000) %}{% for i in range(40) %}{% set ns.a = ns.a + ns.a %}{% endfor %}{{ ns.a }}"
)
NESTED = "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}"
# it calls itself 40 times for each level of its argument
DEEP = (
    "{%- macro f(v, n) -%}{%- if n > 0 -%}{{ f(v, n - 1) }}{%- elif v is mapping -%}{%- for k in v -%}{{ f(v[k], 40) "
    "}}{%- endfor -%}"
    "{%- endif -%}{%- endmacro -%}{% for t in tools %}{{ f(t, 1) }}{% endfor %}{{ messages[0].content }}"
)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (RECURSIVE, "overflows the stack"),
        (NESTED, "overflows the stack"),
        (ENDLESS, "runs for more than"),
        (GROWING, "memory|runs for more"),
    ],
)
def test_a_template_that_would_end_or_hold_the_process_is_refused(
    source: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "DEPTHS", (48,))
    # lower limits show the same sooner; a stack overflows a moment after the imports, which a slow machine needs a
    # second for
    monkeypatch.setattr(check, "CPU_SECONDS", 1 if "runs for more" in reason else 4)
    monkeypatch.setattr(check, "MEMORY_BYTES", 512 << 20)
    with pytest.raises(ChatError, match=reason) as caught:
        Templates(source)
    assert caught.value.code is ChatCode.TEMPLATE_UNSAFE


def test_a_template_that_goes_deep_gets_shallower_requests_only() -> None:
    assert check.check_template(encode({"chat_template": "{{ messages[0].content }}"}, "a template")) == check.DEPTHS[0]
    assert check.check_template(encode({"chat_template": DEEP}, "a template")) == check.DEPTHS[1]


def test_every_bundled_template_may_go_deep(name: str) -> None:
    """Tried as in the product, but in a fork: most of the time of a new process would go to its imports."""
    request = encode({"chat_template": source(name), **ENDS_OF_TEXT}, "a template")
    pid = os.fork()
    if not pid:
        try:
            sys.stdin = io.TextIOWrapper(io.BytesIO(request))
            check.main(check.DEPTHS[0], check.CPU_SECONDS, check.MEMORY_BYTES)
        except BaseException:  # no exception may reach the fork's copy of the test runner
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("limit", ["-v 1500000", "-t 3"])
def test_limits_that_are_lower_already_stay(limit: str) -> None:
    """A service or a container may set lower limits, which most processes may not raise."""
    code = (
        "from uma_gateway.chat.check import check_template; from uma_gateway.chat.library import encode;"
        "check_template(encode({'chat_template': '{{ messages[0].content }}'}, 'a template'))"
    )
    command = f'ulimit {limit}; exec {sys.executable} -c "{code}"'
    done = subprocess.run(["/bin/sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_system_that_allows_no_thread_says_nothing_about_a_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template is checked again when the system allows threads."""
    source = "{{ messages[0].content }} later"
    (tmp_path / "sitecustomize.py").write_text(NO_THREADS)
    with monkeypatch.context() as short:
        short.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(OSError, match="unavailable"):
            Templates(source)
    Templates(source)


def test_a_template_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "{{ messages[0].content }} once"
    Templates(source)
    monkeypatch.setattr(check.subprocess, "run", lambda *_, **__: pytest.fail("tried again"))
    Templates(source)


def test_files_in_the_working_directory_are_not_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway may be started in a folder where anybody may write, such as /tmp."""
    (tmp_path / "resource.py").write_text("raise SystemExit('this ran')")
    monkeypatch.chdir(tmp_path)
    assert check.check_template(encode({"chat_template": "Hello, {{ messages[0].content }}"}, "a template"))
