"""One daemon per socket: a second daemon refuses to start, and a new one replaces a dead one."""

from __future__ import annotations

import signal
import socket

import pytest

from tests.daemon.support import DaemonProcess, text_of


def test_a_second_daemon_refuses_and_the_first_goes_on(serve, folder):
    """The second one reads about the first, not about a port: the same command gives both the same ports."""
    with socket.create_server(("127.0.0.1", 0)) as held_by_the_first:
        port = held_by_the_first.getsockname()[1]
        first = serve()
        second = DaemonProcess(folder, "--engine", "fake", "--metrics-listen", f"127.0.0.1:{port}", "--http", str(port))
        assert second.wait() == 1
    assert "E_CONFIG_002" in second.log
    assert first.generate("unharmed", max_tokens=3)[-1]["reason"] == "length"


def test_kill_9_and_restart(serve, folder):
    """Clients see the end of the connection, the stale socket is replaced, and the new daemon reports how fast it was
    ready.
    """
    first = serve()
    first.pull(step_ms=5)
    stream = first.stream(max_tokens=4000).begun()
    idle = first.connect()
    first.signal(signal.SIGKILL)
    first.wait()
    with pytest.raises((EOFError, ConnectionResetError)):
        stream.end()
    assert idle.is_closed_by_peer()
    assert (folder / "uma.sock").is_socket(), "nobody could clean up"
    second = serve()
    assert second.status()["start_ms"] > 0
    second.logs("replacing the stale socket")
    assert second.generate("again", max_tokens=3)[-1]["reason"] == "length"


def test_a_file_that_is_no_socket_is_not_touched(folder):
    (folder / "uma.sock").write_text("precious")
    daemon = DaemonProcess(folder, "--engine", "fake")
    assert daemon.wait() == 1
    assert "E_CONFIG_001" in daemon.log
    assert (folder / "uma.sock").read_text() == "precious"


@pytest.mark.parametrize("model", ["absent.gguf", "text.gguf"])
def test_a_model_that_cannot_be_loaded_ends_the_start(folder, model):
    (folder / "text.gguf").write_text("hello")
    daemon = DaemonProcess(folder, "--model", str(folder / model))
    assert daemon.wait() == 1
    assert "E_MODEL_002" in daemon.log
    assert not (folder / "uma.sock").exists()


def test_a_policy_that_cannot_be_composed_ends_the_start(folder):
    daemon = DaemonProcess(folder, "--engine", "fake", "--stages", "admission,nonsense")
    assert daemon.wait() == 1
    assert "E_CONFIG_001" in daemon.log


@pytest.mark.model
@pytest.mark.parametrize("engine", ["llama", "graph"])
@pytest.mark.parametrize("ram_mb", ["512", "0"])
def test_conversations_go_on_after_a_restart_with_a_cache_directory(serve_model, folder, engine, ram_mb):
    """All conversations begin with BOS and a chat header, as with every current model."""
    options = ("--engine", engine, "--cache-dir", str(folder / "kv"), "--cache-ram-mb", ram_mb)
    chats = [
        [{"role": "user", "content": f"{name} is the first word. " + "The shell reads a line. " * 12}]
        for name in ("One", "Two", "Three")
    ]
    first = serve_model(*options)
    answers = [first.chat(chat, max_tokens=4) for chat in chats]
    assert first.stop() == 0
    kept = sorted((folder / "kv").iterdir())
    for _ in range(2):
        again = serve_model(*options)
        again.logs(f"cache directory: {len(kept)} snapshots")
        for chat, answer in zip(chats, answers, strict=True):
            events = again.chat(chat, max_tokens=4)
            assert text_of(events) == text_of(answer)
            usage = events[-1]["usage"]
            assert usage["cached_tokens"] == usage["prompt_tokens"] - 1
        assert "E_IO_002" not in again.log
        assert again.stop() == 0
        assert kept == sorted((folder / "kv").iterdir())
