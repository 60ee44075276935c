"""Tries a template in a separate process before it is used: some templates crash the process, some never end.

A template is a program that came with a model file. One that calls itself overflows the stack; one with range(1e9)
computes for minutes. So it is first loaded and rendered in a process that may crash without harm, with limits on time
and memory.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import resource
import subprocess
import sys
import threading
from typing import Any

from uma_core.own_python import python_command
from uma_gateway.chat.errors import ChatCode, ChatError

CPU_SECONDS = 5  # the slowest bundled template needs 0.3 s on one core
WALL_SECONDS = 60  # a busy machine may be far slower
MEMORY_BYTES = 2 << 30  # the interpreter and the library take 0.1 GB; macOS does not enforce it
STACK_BYTES = 8 << 20
DEPTHS = (240, 48)  # levels of nested JSON in a request; the library's own limit is 256, and deep requests are rare

_SIGNS = {
    -11: "it overflows the stack",
    -24: f"it runs for more than {CPU_SECONDS} s",
    -9: f"it runs for more than {CPU_SECONDS} s, or takes too much memory",
    -6: "it ends the process",
}
_QUESTION = {"role": "user", "content": "Question."}


def _requests(depth: int) -> list[dict[str, Any]]:
    """Return requests with which to try a template: a question, a conversation, and a tool call whose schema and
    arguments are nested this deep.
    """
    schema: dict[str, Any] = {"type": "string"}
    arguments: Any = None
    for _ in range(depth // 2 - 5):  # two levels each, besides those of the request around it
        schema = {"type": "object", "properties": {"a": schema}}
        arguments = [{"a": arguments}]
    tools = [{"type": "function", "function": {"name": "probe", "description": "Tries.", "parameters": schema}}]
    call = {
        "id": "call00001",
        "type": "function",
        "function": {"name": "probe", "arguments": json.dumps({"a": arguments})},
    }
    conversation: list[dict[str, Any]] = [
        {"role": "system", "content": "System."},
        _QUESTION,
        {"role": "assistant", "content": "", "reasoning_content": "Thought.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "name": "probe", "content": json.dumps(arguments)},
        {"role": "assistant", "content": "Answer."},
        _QUESTION,
    ]
    return [
        {"messages": [_QUESTION]},
        {"messages": [*conversation[:2], *conversation[4:]]},
        {"messages": conversation[:2], "tools": tools, "tool_choice": "required", "parallel_tool_calls": True},
        {"messages": conversation, "tools": tools},
    ]


@functools.lru_cache(maxsize=64)
def check_template(request: bytes) -> int:
    """Load and render the templates of a `uma_chat_templates_new` request in another process. Blocks for about 0.3 s,
    once for each request.

    Returns how deep the JSON of requests to the template may be nested. A refusal by the template is not a fault,
    because it may refuse only these messages. Raises: ChatError if the template crashes or does not end; OSError if the
    system has no process or thread to try it with, which says nothing about the template.
    """
    reason = ""
    for depth in DEPTHS:
        reason = _trial(request, depth)
        if not reason:
            return depth
    raise ChatError(ChatCode.TEMPLATE_UNSAFE, f"the chat template is not used: {reason}")


def _trial(request: bytes, depth: int) -> str:
    """Return what goes wrong in a separate process, or ""."""
    arguments = f"{depth}, {CPU_SECONDS}, {MEMORY_BYTES}"
    command = python_command(f"from uma_gateway.chat.check import main; main({arguments})")
    try:
        done = subprocess.run(command, input=request, capture_output=True, timeout=WALL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"it runs for more than {WALL_SECONDS} s"
    if not done.returncode:
        return ""
    if done.returncode == os.EX_TEMPFAIL:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return _SIGNS.get(done.returncode) or done.stderr.decode(errors="replace").strip()[-300:]


def main(depth: int, cpu_seconds: int, memory_bytes: int) -> None:
    """Run in the separate process: set its limits, then do what the first requests would do."""
    _limit(resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 1)
    _limit(resource.RLIMIT_CORE, 0, 0)
    if sys.platform != "darwin":
        _limit(resource.RLIMIT_AS, memory_bytes, memory_bytes)
    threading.stack_size(STACK_BYTES)
    ended: list[str] = []
    trial = threading.Thread(target=lambda: ended.append(_try(sys.stdin.buffer.read(), depth)))
    try:
        trial.start()
    except RuntimeError:  # the system allows no thread
        sys.exit(os.EX_TEMPFAIL)
    trial.join()
    if ended != [""]:
        sys.exit(ended[0] if ended else 1)


def _limit(kind: int, soft: int, hard: int) -> None:
    """Lower a limit, unless it is already lower."""
    most = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))


def _try(request: bytes, depth: int) -> str:
    """Return what the library could not do, or ""."""
    from uma_gateway.chat.library import Handle, LibraryError, call, encode

    try:
        handle = Handle("templates", request)
        for asked in _requests(depth):
            try:
                call("uma_chat_apply", handle.pointer, encode(asked, "a trial"))
            except LibraryError as error:
                if error.kind in ("memory", "time", "internal", "request", "depth"):
                    raise
    except LibraryError as error:
        return "" if error.kind == "template" else f"{error.kind}: {error}"
    return ""
